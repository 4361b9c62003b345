"""R2R engine; see `engines.base.Engine`. R2R stores the documents, a local database everything else.

This module mostly delegates: `mirror` tracks R2R's content, `search` queries it, `read` reads documents, and `ingest`
adds them. Changes by other R2R users are visible within `mirror.SYNC_SECONDS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from refdesk.calls import TenantId
from refdesk.config.models import CircuitBreakerConfig, R2RConfig
from refdesk.documents.conversions import Conversions
from refdesk.engines.base import (
    LACKS_REINDEX,
    LACKS_SHARED,
    SHARED,
    CollectionInfo,
    DocumentStatus,
    EngineTraits,
    FolderSync,
    Hit,
    Listing,
    NewDocument,
    NotToBeRetried,
    Search,
    Status,
    TenantInfo,
)
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.catalogue import THREADS, LocalDb, LocalDbPool
from refdesk.engines.r2r.client import open_client
from refdesk.engines.r2r.ingest import R2R_PAUSES, R2RIngestWorker, R2RPauses
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.read import R2RReader
from refdesk.engines.r2r.schemas import RemoteChunk
from refdesk.engines.r2r.search import R2RSearcher
from refdesk.engines.storage import ingest_queue, records
from refdesk.engines.storage.ingest_queue import SourceReader
from refdesk.engines.storage.records import sum_counts
from refdesk.errors import DependencyError, DocumentNotFound, EngineError, R2RRefused, Refused
from refdesk.resilience.dependency import Dependency
from refdesk.support.tasks import in_background
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics


@dataclass(eq=False, repr=False)
class R2REngine(R2RReader):
    """Engine on an R2R server; see `engines.base.Engine`. Created by `open_r2r`."""

    _local_dbs: LocalDbPool
    _worker: R2RIngestWorker
    writer: R2RSearcher
    """Searches, too: R2R's model answers from its search."""
    dependencies: Sequence[Dependency]
    traits: EngineTraits

    async def search(self, tenant: TenantId, search: Search) -> Sequence[Hit]:
        local_db = await self._mirror.get_local_db(tenant)
        return await self.writer.search(local_db, search) if local_db else []

    async def find_absent(self, tenant: TenantId, query: str, collections: Sequence[str]) -> Sequence[str]:
        return ()  # R2R can't be asked whether a word occurs

    async def ingest(self, tenant: TenantId, documents: Sequence[NewDocument]) -> Sequence[DocumentStatus]:
        local_db = await self._require_collections(tenant, {document.collection for document in documents})
        translated = [
            replace(document, collection=local_db.resolve_slug(document.collection)) for document in documents
        ]
        # Foreign documents must be known to be replaced, but ingestion doesn't wait for R2R to be up.
        with suppress(DependencyError):
            await self._mirror.list_documents(local_db, list({document.collection for document in translated}))
        ids = await local_db.run(records.queue_documents, translated)
        await self._refresh_and_wake(local_db)
        return await local_db.get_statuses(ids)

    async def retry(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        if (status := await self.status(tenant, document_id)) is None:
            return None
        local_db = await self._local_dbs.get_or_create(tenant)
        if await local_db.run(catalogue.is_foreign, status.id):
            raise NotToBeRetried(f"{status.id} was added by another R2R user and can only be retried there.")
        await local_db.run(ingest_queue.retry, status.id)
        await self._refresh_and_wake(local_db)
        return await local_db.get_status(status.id)

    async def sync_folder(
        self,
        tenant: TenantId,
        collection: str,
        folder: Path,
        documents: Sequence[NewDocument],
        *,
        unseen: Sequence[str] = (),
    ) -> FolderSync:
        local_db = await self._require_collections(tenant, {collection})
        slug = local_db.resolve_slug(collection)
        translated = [replace(document, collection=slug) for document in documents]
        await self._mirror.list_documents(local_db, [slug])
        synced = await local_db.run(records.sync_folder, slug, folder, translated, unseen)
        if synced.removed:
            await self._worker.delete_leftovers(local_db)
        if synced.new or synced.changed or synced.removed:
            await self._refresh_and_wake(local_db)
        return synced

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        local_db = await self._mirror.get_local_db(tenant)
        return await local_db.wait(document_ids, seconds) if local_db else []

    async def status(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None:
            return None
        if await local_db.get_status(document_id) is None:
            await self.find_document(tenant, document_id)
        entry = await local_db.run(catalogue.find_document, document_id)
        return await local_db.get_status(entry.id if entry else document_id)

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None:
            return [], 0
        slug = local_db.resolve_slug(listing.collection) if listing.collection is not None else None
        await self._mirror.list_documents(local_db, list(local_db.uuids) if slug is None else [slug])
        return await local_db.list_documents(replace(listing, collection=slug))

    async def delete(self, tenant: TenantId, document_id: str) -> bool:
        if (status := await self.status(tenant, document_id)) is None:
            return False
        local_db = await self._local_dbs.get_or_create(tenant)
        if not await local_db.run(records.delete, status.id):
            return False
        await self._worker.delete_leftovers(local_db)
        await self._refresh_and_wake(local_db)
        return True

    async def collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        try:
            await self._mirror.sync_collections()
            local_db = self._local_dbs.get_open(tenant)
            if local_db is not None:
                await self._mirror.count_documents(local_db)
        except DependencyError:
            # While R2R is down, return the last known collections, if there are any.
            local_db = self._local_dbs.get_open(tenant)
            if local_db is None or not local_db.collections:
                raise
        return local_db.collections if local_db else []

    async def create_collection(
        self, tenant: TenantId, name: str, *, description: str = "", version: str = ""
    ) -> CollectionInfo:
        if tenant == SHARED:
            raise EngineError("R2R has no shared documents.")
        return await self._mirror.get_or_create_collection(tenant, name, description, version)

    async def delete_collection(self, tenant: TenantId, collection: str) -> bool:
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None or not local_db.has_collection(collection):
            return False
        await self._mirror.drop_collection(local_db, local_db.resolve_slug(collection))
        await self._worker.delete_leftovers(local_db)
        return True

    def cached_collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        local_db = self._local_dbs.get_open(tenant)
        return local_db.collections if local_db else ()

    def revision(self, tenant: TenantId, collections: Collection[str] = ()) -> Hashable:
        local_db = self._local_dbs.get_open(tenant)
        return local_db.revision if local_db else None

    async def reindex(self, tenant: TenantId) -> None:
        raise R2RRefused("R2R keeps its own index; Refdesk can't rebuild it.")

    async def sync(self) -> None:
        """Sync with R2R now instead of at the next interval."""
        await self._mirror.sync()

    async def tenants(self) -> Sequence[TenantInfo]:
        return await self._local_dbs.list_tenants()

    async def waiting(self) -> Mapping[Status, int]:
        return sum_counts([await local_db.run(catalogue.count_pending) for local_db in self._local_dbs])

    def listen(self, listener: Callable[[TenantId], None]) -> None:
        self._local_dbs.listeners.append(listener)

    def problems(self) -> Sequence[str]:
        return tuple(self._local_dbs.problems.values())

    async def check(self, tenant: TenantId | None = None) -> str:
        try:
            await self._client.check()
        except (DependencyError, Refused) as error:
            raise EngineError(error.detail, retry_after=error.retry_after) from error
        return "R2R responds; documents are searchable"

    async def _require_collections(self, tenant: TenantId, collections: Set[str]) -> LocalDb:
        """Return a tenant's database, if it has these collections."""
        local_db = await self._mirror.get_local_db(tenant)
        for collection in sorted(collections):
            if local_db is None or not local_db.has_collection(collection):
                raise DocumentNotFound(f"There is no collection {collection!r}; create it first.")
        return local_db or await self._local_dbs.get_or_create(tenant)

    async def _refresh_and_wake(self, local_db: LocalDb) -> None:
        await self._mirror.reload(local_db)
        self._worker.wake()


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
    pauses: R2RPauses = R2R_PAUSES,
) -> AsyncIterator[R2REngine]:
    """Open the engine on the configured R2R server. Its local files are in `folder`, which is created if missing.

    `readers` is the number of documents ingested concurrently. `closed` are files and folders that must not be
    ingested.
    """
    credential = settings.password or settings.api_key
    traits = EngineTraits(
        name="r2r",
        cache_namespace=str(settings.api_url),
        cache_secret=credential.get_secret_value().encode() if credential is not None else None,
        has_certain_revision=False,
        lacks=frozenset((LACKS_REINDEX, LACKS_SHARED)),
    )
    r2r = Dependency("r2r", breaker)
    model = Dependency("r2r_model", breaker)

    def report_foreign_chunk(local_db: LocalDb, chunk: RemoteChunk) -> None:
        """Count and log a chunk that R2R returned although the caller may not see it."""
        metrics.foreign_chunks.inc()
        log.events.error("r2r.foreign_chunk", tenant=local_db.tenant, chunk=chunk.id, document=chunk.document)

    async with open_client(settings, r2r, metrics) as client, LocalDbPool(folder, LocalDb, THREADS, None) as local_dbs:
        await local_dbs.open_new()
        mirror = Mirror(client, local_dbs, log)
        worker = R2RIngestWorker(
            client, local_dbs, SourceReader(conversions, closed), folder, settings.ingest_timeout_seconds, readers,
            log, metrics, pauses,
        )  # fmt: skip
        writer = R2RSearcher(client, mirror, report_foreign_chunk, model)
        engine = R2REngine(
            client, mirror, conversions, report_foreign_chunk, local_dbs, worker, writer, (r2r, model), traits
        )
        async with in_background(mirror.run(), worker.run()):
            yield engine
