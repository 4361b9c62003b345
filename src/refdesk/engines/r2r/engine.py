"""The engine on R2R: see `engines.port.Engine`. R2R keeps the documents; what it cannot keep is in a file beside it.

This module only directs: `mirror` knows what is at R2R, `searching` and `answering` ask it, `writing` brings documents
in, `reading` puts them together again. What others change at R2R is seen within `mirror.LOOK_SECONDS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
from anyio import CancelScope

from refdesk.calls import TenantId, UserId
from refdesk.config import CircuitBreakerConfig, R2RConfig
from refdesk.documents.conversions import Conversions
from refdesk.documents.packed_document import Shelf
from refdesk.engines.background import in_background
from refdesk.engines.base import (
    LACKS_REINDEX,
    LACKS_SHARED,
    SHARED,
    UNDER_WAY,
    CollectionInfo,
    Document,
    DocumentInfo,
    DocumentStatus,
    EngineAnswer,
    FolderSync,
    Hit,
    Listing,
    NewDocument,
    NotToBeRetried,
    Passage,
    PastSearch,
    Search,
    Status,
    TenantInfo,
)
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.answering import Answerer
from refdesk.engines.r2r.client import Generation, R2RClient, open_client
from refdesk.engines.r2r.document_cache import Library
from refdesk.engines.r2r.ingest import WRITER_PAUSES, Writer, WriterPauses
from refdesk.engines.r2r.local_db import Record, Records
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.schemas import RemoteChunk
from refdesk.engines.r2r.search import Searcher
from refdesk.engines.storage import queue
from refdesk.engines.storage import records as rows
from refdesk.engines.storage.history import History
from refdesk.engines.storage.rows import added_up
from refdesk.errors import DependencyError, DocumentNotFound, EngineError, R2RRefused, Refused
from refdesk.resilience.dependency import Dependency
from refdesk.telemetry import Log, Metrics

WAIT_STEP_SECONDS = 0.1
"""Between two looks at documents that somebody waits for."""

Listener = Callable[[TenantId], None]


class R2REngine:
    """See `engines.port.Engine` and `engines.port.Answering`; made by `open_r2r`."""

    lacks = frozenset((LACKS_REINDEX, LACKS_SHARED))
    """The port's promises that R2R does not let us keep."""

    def __init__(
        self,
        client: R2RClient,
        records: Records,
        mirror: Mirror,
        writer: Writer,
        searcher: Searcher,
        answerer: Answerer,
        library: Library,
        history: History,
        dependencies: Sequence[Dependency],
    ) -> None:
        self.dependencies = tuple(dependencies)
        """R2R itself and its model, for whoever tells how they are."""
        self._client = client
        self._records = records
        self._mirror = mirror
        self._writer = writer
        self._searcher = searcher
        self._answerer = answerer
        self._library = library
        self._history = history
        self._listeners: list[Listener] = []
        mirror.listen(self._tell)
        writer.listen(lambda record: self._tell(record.tenant))

    async def search(self, tenant: TenantId, search: Search) -> Sequence[Hit]:
        record = await self._mirror.record(tenant)
        return await self._searcher.search(record, search) if record else []

    async def answer(
        self,
        tenant: TenantId,
        question: str,
        search: Search,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> EngineAnswer:
        record = await self._mirror.record(tenant)
        if record is None:
            return EngineAnswer("", (), "")
        return await self._answerer.answer(record, question, search, Generation(model, max_tokens, temperature))

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        found = await self._library.find(tenant, document_id)
        return await self._library.read(*found) if found else None

    async def open(self, tenant: TenantId, document_id: str) -> Shelf | None:
        found = await self._library.find(tenant, document_id)
        return await self._library.open(*found) if found else None

    async def info(self, tenant: TenantId, document_id: str) -> DocumentInfo | None:
        found = await self._library.find(tenant, document_id)
        if found is None:
            return None
        record, known = found
        return await record.run(lambda database: catalogue.info(database, known.key))

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        found = await self._library.find(tenant, document_id)
        return await self._library.window(*found, chunk_id, before, after) if found else None

    async def document_ids(self, tenant: TenantId, *, prefix: str = "", limit: int = 100) -> Sequence[str]:
        record = await self._mirror.record(tenant)
        if record is None:
            return []
        slugs = [slug for slug in record.uuids if f"{slug}/".startswith(prefix) or prefix.startswith(f"{slug}/")]
        await self._mirror.list_documents(record, slugs)
        return await record.run(lambda database: rows.document_ids(database, prefix, limit))

    async def ingest(self, tenant: TenantId, documents: Sequence[NewDocument]) -> Sequence[DocumentStatus]:
        record = await self._record_with(tenant, {document.collection for document in documents})
        given = [replace(document, collection=record.slug_of(document.collection)) for document in documents]
        # What was brought in from elsewhere is to be known, so that it is replaced; but nobody waits for R2R to be up.
        with suppress(DependencyError):
            await self._mirror.list_documents(record, list({document.collection for document in given}))
        ids = await record.run(lambda database: rows.ask_for(database, given))
        await self._begin(record)
        return await self._statuses(record, ids)

    async def retry(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        if (status := await self.status(tenant, document_id)) is None:
            return None
        record = await self._records.make(tenant)
        if await record.run(lambda database: catalogue.is_of_others(database, status.id)):
            raise NotToBeRetried(f"{status.id} was brought in by somebody else, who has to try again.")
        await record.run(lambda database: queue.retry(database, status.id))
        await self._begin(record)
        return next(iter(await self._statuses(record, [status.id])), None)

    async def sync_folder(
        self,
        tenant: TenantId,
        collection: str,
        folder: Path,
        documents: Sequence[NewDocument],
        *,
        unseen: Sequence[str] = (),
    ) -> FolderSync:
        record = await self._record_with(tenant, {collection})
        slug = record.slug_of(collection)
        given = [replace(document, collection=slug) for document in documents]
        await self._mirror.list_documents(record, [slug])
        synced = await record.run(lambda database: rows.sync_folder(database, slug, folder, given, unseen))
        if synced.removed:
            await self._writer.sweep(record)
        if synced.new or synced.changed or synced.removed:
            await self._begin(record)
        return synced

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        record = await self._mirror.record(tenant)
        if record is None:
            return []
        first = statuses = await self._statuses(record, document_ids)
        with anyio.move_on_after(seconds):
            while statuses == first and any(found.status in UNDER_WAY for found in statuses):
                await anyio.sleep(WAIT_STEP_SECONDS)
                statuses = await self._statuses(record, document_ids)
        return statuses

    async def status(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        record = await self._mirror.record(tenant)
        if record is None:
            return None
        if not await self._statuses(record, [document_id]):
            await self._library.find(tenant, document_id)
        id = await record.run(lambda database: catalogue.id_for(database, document_id))
        return next(iter(await self._statuses(record, [id])), None)

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        record = await self._mirror.record(tenant)
        if record is None:
            return [], 0
        slug = record.slug_of(listing.collection) if listing.collection is not None else None
        await self._mirror.list_documents(record, list(record.uuids) if slug is None else [slug])
        wanted = replace(listing, collection=slug)
        return await record.run(lambda database: rows.documents(database, wanted, dict(record.converting)))

    async def delete(self, tenant: TenantId, document_id: str) -> bool:
        if (status := await self.status(tenant, document_id)) is None:
            return False
        record = await self._records.make(tenant)
        if not await record.run(lambda database: rows.delete(database, status.id)):
            return False
        await self._writer.sweep(record)
        await self._begin(record)
        return True

    async def collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        try:
            await self._mirror.look()
            record = self._records.at_hand(tenant)
            if record is not None:
                await self._mirror.count(record)
        except DependencyError:
            # While R2R is down, what was last seen of it is better than nothing, unless nothing was.
            record = self._records.at_hand(tenant)
            if record is None or not record.sets:
                raise
        return record.sets if record else []

    async def create_collection(
        self, tenant: TenantId, name: str, *, description: str = "", version: str = ""
    ) -> CollectionInfo:
        if tenant == SHARED:
            raise EngineError("R2R has no documents that everybody can read.")
        return await self._mirror.make_collection(tenant, name, description, version)

    async def delete_collection(self, tenant: TenantId, collection: str) -> bool:
        record = await self._mirror.record(tenant)
        if record is None or record.slug_of(collection) not in record.uuids:
            return False
        await self._mirror.drop_collection(record, record.slug_of(collection))
        await self._writer.sweep(record)
        return True

    def sets(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        record = self._records.at_hand(tenant)
        return record.sets if record else ()

    def revision(self, tenant: TenantId) -> Hashable:
        record = self._records.at_hand(tenant)
        return record.revision if record else None

    async def remember(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        self._history.add(tenant, user, search)

    async def history(self, tenant: TenantId, user: UserId, limit: int = 10) -> Sequence[PastSearch]:
        return await self._history.of(tenant, user, limit)

    async def reindex(self, tenant: TenantId) -> None:
        raise R2RRefused("R2R keeps its own index of the documents; there is none here to make anew.")

    async def look(self) -> None:
        """See now what others have changed at R2R, which else is seen at the next look."""
        await self._mirror.look_once()

    async def tenants(self) -> Sequence[TenantInfo]:
        return await self._records.census()

    async def waiting(self) -> Mapping[Status, int]:
        return added_up([await record.run(catalogue.waiting) for record in self._records])

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def check(self) -> str:
        try:
            await self._client.check()
        except (DependencyError, Refused) as error:
            raise EngineError(error.detail, retry_after=error.retry_after) from error
        return "R2R answers; documents can be found"

    async def _record_with(self, tenant: TenantId, collections: Set[str]) -> Record:
        """A tenant's record, which has these collections."""
        record = await self._mirror.record(tenant)
        for collection in sorted(collections):
            if record is None or record.slug_of(collection) not in record.uuids:
                raise DocumentNotFound(f"There is no collection {collection!r}; make it first.")
        return record or await self._records.make(tenant)

    async def _begin(self, record: Record) -> None:
        """There is work, or less than there was."""
        await self._mirror.reread(record)
        self._writer.nudge()

    async def _statuses(self, record: Record, ids: Sequence[str]) -> list[DocumentStatus]:
        return await record.run(lambda database: rows.statuses(database, ids, dict(record.converting)))

    def _tell(self, tenant: TenantId) -> None:
        for listener in self._listeners:
            listener(tenant)


@asynccontextmanager
async def open_r2r(
    settings: R2RConfig,
    breaker: CircuitBreakerConfig,
    folder: Path,
    conversions: Conversions,
    *,
    log: Log,
    metrics: Metrics,
    readers: int = 2,
    closed: Sequence[Path] = (),
    pauses: WriterPauses = WRITER_PAUSES,
) -> AsyncIterator[R2REngine]:
    """The engine on the R2R server that is set; its own files are in a folder, which is made when it is missing.

    `readers` is how many documents are brought in at a time, and `closed` are files and folders that nobody brings in.
    """
    r2r = Dependency("r2r", breaker)
    model = Dependency("r2r_model", breaker)
    records = Records(folder)
    foreign = _ForeignChunks(log, metrics)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(settings, r2r, metrics))
        stack.push_async_callback(_closed, records)
        await records.prepare()
        mirror = Mirror(client, records, log)
        writer = Writer(
            client, records, conversions, folder,
            ingest_seconds=settings.ingest_timeout_seconds, log=log, metrics=metrics, at_once=readers, closed=closed,
            pauses=pauses,
        )  # fmt: skip
        searcher = Searcher(client, mirror, foreign.told)
        history = History(records)
        engine = R2REngine(
            client, records, mirror, writer, searcher, Answerer(client, searcher, model),
            Library(client, mirror, conversions, foreign.told), history, (r2r, model),
        )  # fmt: skip
        await stack.enter_async_context(history.writing())
        await stack.enter_async_context(in_background(mirror.run(), writer.run()))
        yield engine


async def _closed(records: Records) -> None:
    with CancelScope(shield=True):
        await records.close()


class _ForeignChunks:
    """Tells of chunks that R2R gave although nobody may see them who asked."""

    def __init__(self, log: Log, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics

    def told(self, record: Record, chunk: RemoteChunk) -> None:
        """One more."""
        self._metrics.foreign_chunks(1)
        self._log.events.error("r2r.foreign_chunk", tenant=record.tenant, chunk=chunk.id, document=chunk.document)
