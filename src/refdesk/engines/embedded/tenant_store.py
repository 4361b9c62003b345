"""Files of a tenant, and a pool of the open ones: the document store and readers of the two indexes derived from it.


    knowledge.db    SQLite: the system of record
    fulltext/       tantivy, derived
    vectors/        memory-mapped vectors, derived
    writer.lock     held by the one process that writes the indexes

A tenant's files are created with its first document. All file access runs in threads, so that the event loop never
waits for a disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import SHARED, CollectionInfo, TenantInfo
from refdesk.engines.embedded.fulltext import FullText, IndexDamaged
from refdesk.engines.embedded.threads import SearchThreads
from refdesk.engines.embedded.vectors import Vectors
from refdesk.engines.embedded.vectors.manifest import MANIFEST
from refdesk.engines.storage import records
from refdesk.engines.storage.databases import (
    DATABASE,
    TenantDatabase,
    collect_tenant_info,
    list_new_tenants,
    tenant_folder_name,
    translate_errors,
)
from refdesk.engines.storage.filters import Condition
from refdesk.errors import EngineError

SCHEMA_VERSION = 3
"""Version of the database schema, raised with every change. Files of other versions are rejected."""
MAX_CACHED_FILTERS = 32
"""Filters whose documents are cached per tenant."""

REINDEX_FILE = "reindex"
"""Marker file that requests a rebuild of the indexes."""

T = TypeVar("T")


class FilterCache:
    """Cache of the documents that match recent filters: finding them costs more than the search itself."""

    def __init__(self) -> None:
        self._cache: OrderedDict[Hashable, tuple[int, Sequence[int]]] = OrderedDict()
        self._lock = threading.Lock()

    def find_documents(self, database: sqlite3.Connection, condition: Condition) -> Sequence[int]:
        """Return the keys of the documents that meet a condition."""
        revision = records.read_revision(database)
        key = condition.sql, tuple(condition.parameters)
        with self._lock:
            cached = self._cache.get(key)
        if cached is not None and cached[0] == revision:
            return cached[1]
        rows = database.execute(
            f"SELECT d.key FROM documents d JOIN collections c ON c.key = d.collection WHERE {condition.sql}",
            list(condition.parameters),
        )
        found = [row[0] for row in rows]
        with self._lock:
            self._cache[key] = revision, found
            if len(self._cache) > MAX_CACHED_FILTERS:
                self._cache.popitem(last=False)
        return found


class TenantStore(TenantDatabase):
    """Database and indexes of a tenant."""

    schema_package = __package__
    schema_version = SCHEMA_VERSION
    other_version_hint = "use another --data folder, or remove the folder that it is in and add the documents again"

    def __init__(self, folder: Path, tenant: TenantId, limiter: CapacityLimiter, search_threads: SearchThreads) -> None:
        super().__init__(folder, tenant, limiter)
        self.fulltext = self._open_index(FullText, folder / "fulltext")
        self.vectors = self._open_index(Vectors, folder / "vectors")
        self.error: str | None = None
        """Why ingestion is currently stopped."""
        self.collections: tuple[CollectionInfo, ...] = ()
        self.filter_cache = FilterCache()
        self.used_at = monotonic()
        self._commit_files = (f"{folder}/fulltext/meta.json", f"{folder}/vectors/{MANIFEST}")
        """Files that every index commit replaces."""
        self._known_revision = 0
        self._search_threads = search_threads

    @property
    def revision(self) -> Hashable:
        """Value that changes whenever search results may differ.

        It is the same in all processes and after a restart, so that they can validate each other's cached results.
        """
        return self._known_revision, *map(_stat_identity, self._commit_files)

    async def search(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function with the database in a search thread."""
        return await self._call_in_thread(work, self._search_threads.run)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection, for code that already runs in a thread."""
        with self._connections.borrow(object()) as database:
            yield database

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function that changes the database."""
        try:
            return await self.run(work)
        finally:
            await self.refresh()

    async def refresh(self) -> None:
        """Load changes made by this or another process."""

        def read(database: sqlite3.Connection) -> tuple[int, tuple[CollectionInfo, ...]]:
            return records.read_revision(database), tuple(records.list_collections(database, shared=self.is_shared))

        self._known_revision, self.collections = await self.run(read)

    async def refresh_if_changed(self) -> bool:
        """Refresh if another process has changed something. Returns whether it has."""
        if await self.run(records.read_revision) == self._known_revision:
            return False
        await self.refresh()
        return True

    def is_behind(self, last: int, *, has_vectors: bool) -> bool:
        """Whether an index lacks this change. An unreadable index lacks all changes."""
        try:
            self.fulltext.refresh()
            self.vectors.refresh()
        except IndexDamaged:
            return True
        return self.fulltext.mark < last or (has_vectors and self.vectors.mark < last)

    def _open_index(self, index: Callable[[Path], T], folder: Path) -> T:
        """Open an index for reading. A damaged one is deleted and rebuilt, unless another process is writing it."""
        try:
            return index(folder)
        except IndexDamaged as error:
            with self.hold_writer_lock() as is_ours:
                if not is_ours:
                    raise EngineError(f"{error}; it is being rebuilt, try again soon") from error
                with translate_errors(f"cannot remove {folder}"):
                    shutil.rmtree(folder)
            return index(folder)

    @property
    def is_shared(self) -> bool:
        """Whether all tenants can read it."""
        return self.tenant == SHARED

    @property
    def is_reindex_requested(self) -> bool:
        """Whether a rebuild of the indexes was requested. The next worker of any process does it."""
        return (self.folder / REINDEX_FILE).exists()

    async def request_reindex(self) -> None:
        """Request a rebuild of both indexes."""
        with translate_errors(f"cannot write to {self.folder}"):
            await to_thread.run_sync((self.folder / REINDEX_FILE).touch)

    def clear_reindex_request(self) -> None:
        """Mark the rebuild as done."""
        (self.folder / REINDEX_FILE).unlink(missing_ok=True)

    @contextmanager
    def hold_writer_lock(self) -> Iterator[bool]:
        """Try to take the writer lock, and yield whether it was acquired.

        The kernel releases it when the process ends.
        """
        path = self.folder / "writer.lock"
        with translate_errors(f"cannot use {path}"):
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True
        finally:
            os.close(lock)


def _stat_identity(path: str) -> Hashable:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino


DATABASE_THREADS = 4
"""Threads for everything but searches, which have their own. More would only wait for each other."""

MIN_SEARCH_THREADS, MAX_SEARCH_THREADS = 2, 4
"""Bounds of the number of search threads, otherwise one per core. Searches are CPU-bound: with more threads each takes
longer and none finishes sooner."""

MAX_OPEN_STORES = 128
"""Tenants whose files are open. Beyond it, idle ones are closed."""

IDLE_SECONDS = 60.0
"""Time without use before a store may be closed: far longer than any caller holds one."""


class StorePool:
    """Stores of all tenants. The shared store has its own folder."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self._folder = folder
        self._shared = shared
        self._open: OrderedDict[TenantId, TenantStore] = OrderedDict()
        self._open_lock = anyio.Lock()
        self._limiter = CapacityLimiter(DATABASE_THREADS)
        self._search_threads = SearchThreads(min(max(_count_cores(), MIN_SEARCH_THREADS), MAX_SEARCH_THREADS))

    def __iter__(self) -> Iterator[TenantStore]:
        return iter(list(self._open.values()))

    def get_open(self, tenant: TenantId) -> TenantStore | None:
        """Return a tenant's store if it is already open."""
        return self._open.get(tenant)

    def revision(self, tenant: TenantId) -> Hashable:
        """Return the revision of a tenant's store. For a store that isn't open it is always a new value."""
        store = self._open.get(tenant)
        if store is not None:
            return store.revision
        return monotonic_ns() if (self._path(tenant) / DATABASE).exists() else None

    async def prepare(self) -> None:
        """Create the folder of the tenants."""
        with translate_errors(f"cannot use {self._folder}"):
            await to_thread.run_sync(lambda: self._folder.mkdir(parents=True, exist_ok=True, mode=0o700))

    async def open_new(self) -> None:
        """Open stores that other processes have created, up to the limit."""
        known = {store.folder for store in self}
        for tenant in await to_thread.run_sync(list_new_tenants, self._folder, known):
            if len(self._open) < MAX_OPEN_STORES:
                # A store that can't be opened doesn't affect the others; its tenant gets the error.
                with suppress(EngineError):
                    await self.get_or_create(tenant)

    async def get(self, tenant: TenantId) -> TenantStore | None:
        """Return a tenant's store, or None if it has none."""
        store = self._open.get(tenant)
        if store is not None:
            self._open.move_to_end(tenant)
            store.used_at = monotonic()
            return store
        path = self._path(tenant) / DATABASE
        return await self.get_or_create(tenant) if await to_thread.run_sync(path.exists) else None

    async def get_or_create(self, tenant: TenantId) -> TenantStore:
        """Return a tenant's store, creating it if missing."""
        async with self._open_lock:
            store = self._open.get(tenant)
            if store is None:
                with translate_errors(f"cannot use {self._path(tenant)}"):
                    create = partial(TenantStore, self._path(tenant), tenant, self._limiter, self._search_threads)
                    store = await to_thread.run_sync(create)
                await to_thread.run_sync(store.prepare)
                await store.refresh()
                self._open[tenant] = store
                await self._close_idle()
        return store

    async def list_tenants(self) -> Sequence[TenantInfo]:
        """Return the sizes of all tenants, including those whose store isn't open."""
        with translate_errors(f"cannot read {self._folder}"):
            return await to_thread.run_sync(collect_tenant_info, self._folder)

    async def close(self) -> None:
        """Close all stores."""
        while self._open:
            _, store = self._open.popitem()
            await to_thread.run_sync(store.close)
        self._search_threads.close()

    async def _close_idle(self) -> None:
        since = monotonic() - IDLE_SECONDS
        idle = [t for t, store in self._open.items() if store.busy == 0 and store.used_at < since and t != SHARED]
        for tenant in idle[: max(len(self._open) - MAX_OPEN_STORES, 0)]:
            await to_thread.run_sync(self._open.pop(tenant).close)

    def _path(self, tenant: TenantId) -> Path:
        return self._shared if tenant == SHARED else self._folder / tenant_folder_name(tenant)


def _count_cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
