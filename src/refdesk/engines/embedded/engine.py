"""The embedded engine: every tenant's documents in files of its own, found by words and by meaning.

This module only directs: `stores` has the files, `keeping` the SQL, `searching` finds, `writing` brings documents in.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
from anyio import CancelScope

from refdesk.calls import TenantId, UserId
from refdesk.documents.conversions import Conversions
from refdesk.documents.packed_document import Shelf
from refdesk.engines.background import in_background
from refdesk.engines.base import (
    SHARED,
    UNDER_WAY,
    CollectionInfo,
    Document,
    DocumentInfo,
    DocumentStatus,
    FolderSync,
    Hit,
    Listing,
    NewDocument,
    Passage,
    PastSearch,
    Search,
    Status,
    TenantInfo,
)
from refdesk.engines.embedded import read
from refdesk.engines.embedded.embedding.base import Embedder
from refdesk.engines.embedded.ingest_scheduler import Supervision
from refdesk.engines.embedded.pauses import PAUSES, Pauses
from refdesk.engines.embedded.search import Searcher
from refdesk.engines.embedded.store_pool import Stores
from refdesk.engines.embedded.tenant_store import TenantStore
from refdesk.engines.storage import queue, records
from refdesk.engines.storage.history import History
from refdesk.engines.storage.intake import Intake
from refdesk.engines.storage.rows import added_up
from refdesk.errors import EngineError
from refdesk.telemetry import Log, Metrics

WAIT_STEP_SECONDS = 0.1
"""Between two looks at documents that somebody waits for."""

FIRST_ANSWER_SECONDS = 45.0
"""Longest wait of the first search for the manual: a few seconds, and more on a slow machine whose packages have just
been installed. It is less than a call may take."""

Listener = Callable[[TenantId], None]


class EmbeddedEngine:
    """See `engines.port.Engine`; made by `open_embedded`."""

    lacks: frozenset[str] = frozenset()

    def __init__(self, stores: Stores, searcher: Searcher, supervision: Supervision, history: History) -> None:
        self._stores = stores
        self._searcher = searcher
        self._supervision = supervision
        self._history = history
        self._listeners: list[Listener] = []
        self._answers = False
        supervision.listen(self._tell)

    async def search(self, tenant: TenantId, search: Search) -> Sequence[Hit]:
        return await self._searcher.search(await self._readable(tenant), search)

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        for store in await self._readable(tenant):
            found = await store.run(lambda database: read.read(database, document_id))
            if found is not None:
                return found
        return None

    async def open(self, tenant: TenantId, document_id: str) -> Shelf | None:
        for store in await self._readable(tenant):
            found = await store.run(lambda database: read.open_shelf(database, document_id))
            if found is not None:
                return found
        return None

    async def info(self, tenant: TenantId, document_id: str) -> DocumentInfo | None:
        for store in await self._readable(tenant):
            found = await store.run(lambda database: read.info(database, document_id))
            if found is not None:
                return found
        return None

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        for store in await self._readable(tenant):
            found = await store.run(partial(_window, document_id, chunk_id, before, after))
            if found is not None:
                return found
        return None

    async def document_ids(self, tenant: TenantId, *, prefix: str = "", limit: int = 100) -> Sequence[str]:
        found: set[str] = set()
        for store in await self._readable(tenant):
            found |= set(await store.run(lambda database: records.document_ids(database, prefix, limit)))
        return sorted(found)[:limit]

    async def ingest(self, tenant: TenantId, documents: Sequence[NewDocument]) -> Sequence[DocumentStatus]:
        store = await self._stores.make(tenant)
        ids = await store.change(lambda database: records.ask_for(database, documents))
        self._begin(store)
        return await self._statuses(store, ids)

    async def retry(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        store = await self._stores.find(tenant)
        if store is None or not await store.change(lambda database: queue.retry(database, document_id)):
            return None
        self._begin(store)
        return next(iter(await self._statuses(store, [document_id])), None)

    async def sync_folder(
        self,
        tenant: TenantId,
        collection: str,
        folder: Path,
        documents: Sequence[NewDocument],
        *,
        unseen: Sequence[str] = (),
    ) -> FolderSync:
        store = await self._stores.make(tenant)
        synced = await store.change(
            lambda database: records.sync_folder(database, collection, folder, documents, unseen)
        )
        if synced.new or synced.changed or synced.removed:
            self._begin(store)
        return synced

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        store = await self._stores.find(tenant)
        if store is None:
            return []
        first = statuses = await self._statuses(store, document_ids)
        with anyio.move_on_after(seconds):
            while statuses == first and any(found.status in UNDER_WAY for found in statuses):
                await anyio.sleep(WAIT_STEP_SECONDS)
                statuses = await self._statuses(store, document_ids)
        return statuses

    async def status(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        for store in await self._readable(tenant):
            for found in await self._statuses(store, [document_id]):
                return found
        return None

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        stores = [store for store in await self._readable(tenant) if _holds(store, listing)]
        if not stores:
            return [], 0
        # What comes with Refdesk is listed only where it is asked for by its name.
        store = stores[0]
        return await store.run(lambda database: records.documents(database, listing, dict(store.converting)))

    async def delete(self, tenant: TenantId, document_id: str) -> bool:
        store = await self._stores.find(tenant)
        if store is None or not await store.change(lambda database: records.delete(database, document_id)):
            return False
        self._begin(store)
        return True

    async def collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        stores = await self._readable(tenant)
        for store in stores:
            await store.refresh()
        return [entry for store in stores for entry in store.sets]

    async def create_collection(
        self, tenant: TenantId, name: str, *, description: str = "", version: str = ""
    ) -> CollectionInfo:
        store = await self._stores.make(tenant)
        shared = self._stores.at_hand(SHARED)
        taken = [entry.id for entry in shared.sets] if shared and shared is not store else []
        id = await store.change(lambda database: records.create_collection(database, name, description, version, taken))
        self._tell(tenant)
        return next(entry for entry in store.sets if entry.id == id)

    async def delete_collection(self, tenant: TenantId, collection: str) -> bool:
        store = await self._stores.find(tenant)
        if store is None or not await store.change(lambda database: records.delete_collection(database, collection)):
            return False
        self._begin(store)
        return True

    async def reindex(self, tenant: TenantId) -> None:
        store = await self._stores.find(tenant)
        if store is None:
            return
        await self._supervision.rebuild(store)
        while store.is_to_be_reindexed:
            if store.trouble:
                raise EngineError(store.trouble)
            await anyio.sleep(WAIT_STEP_SECONDS)

    def sets(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        stores = (self._stores.at_hand(owner) for owner in dict.fromkeys((tenant, SHARED)))
        return [entry for store in stores if store for entry in store.sets]

    def revision(self, tenant: TenantId) -> Hashable:
        return tuple(self._stores.revision(owner) for owner in dict.fromkeys((tenant, SHARED)))

    async def remember(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        self._history.add(tenant, user, search)

    async def history(self, tenant: TenantId, user: UserId, limit: int = 10) -> Sequence[PastSearch]:
        return await self._history.of(tenant, user, limit)

    async def check(self) -> str:
        troubled = [store.trouble for store in self._stores if store.trouble]
        if troubled:
            raise EngineError(troubled[0])
        for store in self._stores:
            await store.run(records.revision)
        # Not how many documents there are: whoever may ask this may not see all of them.
        return "documents can be found"

    async def tenants(self) -> Sequence[TenantInfo]:
        return await self._stores.census()

    async def waiting(self) -> Mapping[Status, int]:
        return added_up([await store.run(records.waiting) for store in self._stores])

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    async def _until_it_answers(self) -> None:
        """Wait until what comes with Refdesk can be found, which on a new machine takes a second or two."""
        with anyio.move_on_after(FIRST_ANSWER_SECONDS):
            shared = await self._stores.make(SHARED)
            while await shared.run(records.arriving):  # noqa: ASYNC110  another process may be the one that works
                await anyio.sleep(WAIT_STEP_SECONDS)
        self._answers = True

    def _tell(self, tenant: TenantId) -> None:
        for listener in self._listeners:
            listener(tenant)

    def _begin(self, store: TenantStore) -> None:
        self._supervision.begin(store)
        self._tell(store.tenant)

    async def _readable(self, tenant: TenantId) -> list[TenantStore]:
        """The tenant's own store and the shared one, as far as they are there."""
        if not self._answers:
            await self._until_it_answers()
        found = [await self._stores.find(owner) for owner in dict.fromkeys((tenant, SHARED))]
        return [store for store in found if store is not None]

    async def _statuses(self, store: TenantStore, ids: Sequence[str]) -> list[DocumentStatus]:
        return await store.run(lambda database: records.statuses(database, ids, dict(store.converting)))


@asynccontextmanager
async def open_embedded(
    folder: Path,
    shared: Path,
    embedder: Embedder | None,
    conversions: Conversions,
    *,
    log: Log,
    metrics: Metrics,
    readers: int = 2,
    closed: Sequence[Path] = (),
    pauses: Pauses = PAUSES,
) -> AsyncIterator[EmbeddedEngine]:
    """The engine on the files in a folder, which is made when it is missing.

    `shared` is the folder for what everybody can read; `readers` is how many documents are converted at a time, and
    `closed` are files and folders that nobody brings in.
    """
    stores = Stores(folder, shared)
    history = History(stores)
    supervision = Supervision(stores, Intake(conversions, closed), embedder, readers, log, metrics, pauses)
    try:
        await stores.prepare()
        await stores.make(SHARED)
        await stores.open_new()
        async with in_background(supervision.run()), history.writing():
            yield EmbeddedEngine(stores, Searcher(embedder), supervision, history)
    finally:
        with CancelScope(shield=True):
            await stores.close()


def _window(
    document_id: str, chunk_id: str, before: int, after: int, database: records.Database
) -> Sequence[Passage] | None:
    return read.window(database, document_id, chunk_id, before, after)


def _holds(store: TenantStore, listing: Listing) -> bool:
    if listing.collection is None:
        return not store.is_shared
    return any(entry.id == listing.collection for entry in store.sets)
