"""Embedded engine: every tenant's documents in its own files, with full-text and semantic search.

This module only delegates: `tenant_store` has the files, `storage` the SQL, `search` the search, and
`ingest_worker` the ingestion.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import anyio
from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import (
    SHARED,
    CollectionInfo,
    Document,
    DocumentInfo,
    DocumentStatus,
    EngineTraits,
    FolderSync,
    Hit,
    Listing,
    NewDocument,
    Passage,
    Search,
    Status,
    TenantInfo,
)
from refdesk.engines.embedded import document_content
from refdesk.engines.embedded.embedding import Embedder
from refdesk.engines.embedded.ingest_worker import IngestScheduler, IngestWorker
from refdesk.engines.embedded.search import HybridSearcher
from refdesk.engines.embedded.tenant_store import StorePool, TenantStore
from refdesk.engines.ranking import MIN_CONFIDENCE
from refdesk.engines.storage import ingest_queue, records
from refdesk.engines.storage.databases import POLL_SECONDS
from refdesk.engines.storage.ingest_queue import PAUSES, Pauses, SourceReader
from refdesk.engines.storage.records import sum_counts
from refdesk.errors import EngineError
from refdesk.support.tasks import in_background
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics

MANUAL_WAIT_SECONDS = 45.0
"""Maximum time the first search waits for the manual to be indexed. That takes a few seconds, and more on a slow
machine right after installation. Shorter than a call's deadline."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(eq=False, repr=False)
class EmbeddedEngine:
    """Engine on local files; see `engines.base.Engine`. Created by `open_embedded`."""

    _stores: StorePool
    _searcher: HybridSearcher
    _scheduler: IngestScheduler
    traits: EngineTraits
    writer: None = None
    dependencies: tuple[()] = ()
    _is_manual_ready: bool = False

    async def search(self, tenant: TenantId, search: Search) -> Sequence[Hit]:
        return await self._searcher.search(await self._open_readable(tenant), search)

    async def find_absent(self, tenant: TenantId, query: str, collections: Sequence[str]) -> Sequence[str]:
        return await self._searcher.find_absent(await self._open_readable(tenant), query, collections)

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        return await self._find(tenant, document_content.load_document, document_id)

    async def open(self, tenant: TenantId, document_id: str) -> PackedDocument | None:
        return await self._find(tenant, document_content.open_packed_document, document_id)

    async def info(self, tenant: TenantId, document_id: str) -> DocumentInfo | None:
        return await self._find(tenant, records.load_info, document_id)

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        return await self._find(tenant, document_content.load_window, document_id, chunk_id, before, after)

    async def _find(self, tenant: TenantId, load: Callable[[records.Database, *Ts], T | None], *args: *Ts) -> T | None:
        """Return what a query finds in the first store of the tenant that has it."""
        for store in await self._open_readable(tenant):
            if (found := await store.run(load, *args)) is not None:
                return found
        return None

    async def list_document_ids(
        self, tenant: TenantId, *, prefix: str = "", parts: Sequence[str] = (), limit: int = 100
    ) -> Sequence[str]:
        found: set[str] = set()
        for store in await self._open_readable(tenant):
            found |= set(await store.run(records.list_document_ids, prefix, parts, limit))
        return sorted(found)[:limit]

    async def filter_ids(self, tenant: TenantId, ids: Collection[str]) -> frozenset[str]:
        found: frozenset[str] = frozenset()
        for store in await self._open_readable(tenant):
            found |= await store.run(records.filter_ids, ids)
        return found

    async def ingest(self, tenant: TenantId, documents: Sequence[NewDocument]) -> Sequence[DocumentStatus]:
        store = await self._stores.get_or_create(tenant)
        ids = await store.change(records.queue_documents, documents)
        self._schedule(store)
        return await store.get_statuses(ids)

    async def retry(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        store = await self._change(tenant, ingest_queue.retry, document_id)
        return await store.get_status(document_id) if store else None

    async def sync_folder(
        self,
        tenant: TenantId,
        collection: str,
        folder: Path,
        documents: Sequence[NewDocument],
        *,
        unseen: Sequence[str] = (),
    ) -> FolderSync:
        store = await self._stores.get_or_create(tenant)
        synced = await store.change(records.sync_folder, collection, folder, documents, unseen)
        if synced.new or synced.changed or synced.removed:
            self._schedule(store)
        return synced

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        store = await self._stores.get(tenant)
        return await store.wait(document_ids, seconds) if store else []

    async def status(self, tenant: TenantId, document_id: str) -> DocumentStatus | None:
        for store in await self._open_readable(tenant):
            if (found := await store.get_status(document_id)) is not None:
                return found
        return None

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        for store in await self._open_readable(tenant):
            # Shared documents are only listed if their collection is requested.
            ids = [entry.id for entry in store.collections]
            if listing.collection in ids or (listing.collection is None and not store.is_shared):
                return await store.list_documents(listing)
        return [], 0

    async def delete(self, tenant: TenantId, document_id: str) -> bool:
        return await self._change(tenant, records.delete, document_id) is not None

    async def collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        stores = await self._open_readable(tenant)
        for store in stores:
            await store.refresh()
        return [entry for store in stores for entry in store.collections]

    async def create_collection(
        self, tenant: TenantId, name: str, *, description: str = "", version: str = ""
    ) -> CollectionInfo:
        store = await self._stores.get_or_create(tenant)
        shared = self._stores.get_open(SHARED)
        taken = [entry.id for entry in shared.collections] if shared and shared is not store else []
        id = await store.change(records.create_collection, name, description, version, taken)
        self._stores.notify(tenant)
        return next(entry for entry in store.collections if entry.id == id)

    async def delete_collection(self, tenant: TenantId, collection: str) -> bool:
        return await self._change(tenant, records.delete_collection, collection) is not None

    async def _change(
        self, tenant: TenantId, change: Callable[[records.Database, str], bool], id: str
    ) -> TenantStore | None:
        """Change a document or collection. Returns the tenant's store, or None if there is no such thing in it."""
        store = await self._stores.get(tenant)
        if store is None or not await store.change(change, id):
            return None
        self._schedule(store)
        return store

    async def reindex(self, tenant: TenantId) -> None:
        store = await self._stores.get(tenant)
        if store is None:
            return
        await store.request_reindex()
        self._scheduler.wake(store)
        while store.is_reindex_requested:
            if store.error:
                raise EngineError(store.error)
            await anyio.sleep(POLL_SECONDS)

    def cached_collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        return [entry for owner in dict.fromkeys((tenant, SHARED)) for entry in self._stores.get_collections(owner)]

    def revision(self, tenant: TenantId, collections: Collection[str] = ()) -> Hashable:
        return tuple(self._stores.revision(owner, collections) for owner in dict.fromkeys((tenant, SHARED)))

    def problems(self) -> Sequence[str]:
        return [*self._stores.problems.values(), *(store.error for store in self._stores if store.error)]

    async def check(self, tenant: TenantId | None = None) -> str:
        store = self._stores.get_open(tenant or SHARED)
        if store is not None and store.error:
            raise EngineError(store.error)
        await to_thread.run_sync(self._stores.check_folder)
        if store is not None:
            await store.run(records.read_revision)
        if (problems := self.problems()) and all(store.error for store in self._stores if not store.is_shared):
            raise EngineError(problems[0])
        # No document count: callers of this may not see all documents.
        return "documents are searchable"

    async def tenants(self) -> Sequence[TenantInfo]:
        return await self._stores.list_tenants()

    async def waiting(self) -> Mapping[Status, int]:
        return sum_counts([await store.run(records.count_pending) for store in self._stores])

    def listen(self, listener: Callable[[TenantId], None]) -> None:
        self._stores.listeners.append(listener)

    def _schedule(self, store: TenantStore) -> None:
        self._scheduler.wake(store)
        self._stores.notify(store.tenant)

    async def _open_readable(self, tenant: TenantId) -> list[TenantStore]:
        """Return the tenant's own store and the shared one, if they exist."""
        if not self._is_manual_ready:
            with anyio.move_on_after(MANUAL_WAIT_SECONDS):
                shared = await self._stores.get_or_create(SHARED)
                while await shared.run(records.has_unindexed):  # noqa: ASYNC110  another process may be indexing it
                    await anyio.sleep(POLL_SECONDS)
            self._is_manual_ready = True
        found = [await self._stores.get(owner) for owner in dict.fromkeys((tenant, SHARED))]
        return [store for store in found if store is not None]


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
    """Open the engine on a folder, creating it if missing.

    `shared` is the folder of the documents all tenants can read. `readers` is the number of concurrent conversions.
    `closed` are files and folders that must not be ingested.
    """
    model = embedder.name if embedder is not None else None
    confidence = MIN_CONFIDENCE if model else 0.0
    traits = EngineTraits(
        name="embedded", cache_namespace=str(folder), embedding_model=model, min_confidence=confidence
    )
    async with StorePool(folder, shared) as stores:
        reader = SourceReader(conversions, closed)

        def make_worker(store: TenantStore) -> IngestWorker:
            on_change = partial(stores.notify, store.tenant)
            return IngestWorker(store, reader, embedder, readers, metrics, on_change, pauses)

        scheduler = IngestScheduler(stores, embedder, make_worker, log, pauses)
        await stores.get_or_create(SHARED)
        await stores.open_new()
        async with in_background(scheduler.run()):
            yield EmbeddedEngine(stores, HybridSearcher(embedder), scheduler, traits)
