"""Files of a tenant, and a pool of the open ones: the document store and readers of the two indexes derived from it.


    knowledge.db    SQLite: the system of record
    fulltext/       tantivy, derived
    vectors/        memory-mapped vectors, derived
    writer.lock     held by the one process that writes the indexes

A tenant's files are created with its first document. All file access runs in threads, so that the event loop never
waits for a disk.
"""

from __future__ import annotations

import logging
import os
import resource
import shutil
import sqlite3
import threading
from asyncio import Future, get_running_loop
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic_ns
from typing import Any, TypeVar, TypeVarTuple

from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import SHARED, CollectionInfo
from refdesk.engines.embedded.fulltext import FullText, IndexDamaged
from refdesk.engines.embedded.vectors import Vectors
from refdesk.engines.storage import records
from refdesk.engines.storage.databases import DATABASE, TenantDatabase, TenantPool, hold_writer_lock, translate_errors
from refdesk.engines.storage.filters import Condition
from refdesk.errors import EngineError
from refdesk.support.lru import BoundedDict

SCHEMA_VERSION = 3
"""Version of the database schema, raised with every change. Files of other versions are rejected."""
MAX_CACHED_FILTERS = 32
"""Filters whose documents are cached per tenant."""

REINDEX_FILE = "reindex"
"""Marker file that requests a rebuild of the indexes."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class _Call:
    """Search with the future that receives its result."""

    work: Callable[[], Any]
    context: Context
    done: Future[Any]


class SearchThreads:
    """Pool with a fixed number of threads and a queue, which reuses the most recently used thread.

    A search takes a few milliseconds. The guards and counters of anyio's threads took a twentieth of that, and cold
    caches as much again, because Python's own pool rotates its threads. Everything but the work itself runs in the
    event loop.
    """

    def __init__(self, count: int) -> None:
        self._unstarted = count
        """Number of threads that may still be started."""
        self._idle: list[_Worker] = []
        self._queue: deque[_Call] = deque()
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function in a thread. If the caller is cancelled, the function continues unattended."""
        if self._is_closed:
            raise EngineError("the engine is closed")
        done: Future[T] = get_running_loop().create_future()
        self._queue.append(_Call(work, copy_context(), done))
        if not self._idle and self._unstarted:
            self._unstarted -= 1
            self._idle.append(_Worker(self._finish))
        self._dispatch()
        return await done

    def close(self) -> None:
        """Reject new calls; running ones finish."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().calls.put(None)

    def _dispatch(self) -> None:
        while self._idle and self._queue:
            call = self._queue.popleft()
            if not call.done.cancelled():
                self._idle.pop().calls.put(call)

    def _finish(self, worker: _Worker, call: _Call, result: Any, error: BaseException | None) -> None:
        self._idle.append(worker)
        self._dispatch()
        if self._is_closed:
            self.close()
        if error is not None and not call.done.cancelled():
            call.done.set_exception(error)
        elif not call.done.cancelled():
            call.done.set_result(result)


class _Worker(threading.Thread):
    """Daemon thread, so that a hanging disk doesn't keep the process alive."""

    def __init__(self, on_finish: Callable[[_Worker, _Call, Any, BaseException | None], None]) -> None:
        super().__init__(name="refdesk-search", daemon=True)
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._finish = on_finish
        self.start()

    def run(self) -> None:
        while (call := self.calls.get()) is not None:
            result, error = None, None
            try:
                result = call.context.run(call.work)
            except BaseException as raised:  # noqa: BLE001  raised in the awaiting task
                error = raised
            with suppress(RuntimeError):  # the loop is closed, nobody awaits the result
                call.done.get_loop().call_soon_threadsafe(self._finish, self, call, result, error)
            del call, result, error  # release the references while waiting for the next one


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
        self._filtered: BoundedDict[Hashable, tuple[int, Sequence[int]]] = BoundedDict(MAX_CACHED_FILTERS)
        """Documents that match recent filters, by filter: finding them costs more than the search itself."""
        self._filtered_lock = threading.Lock()
        self._known_revision = 0
        self._settled_stamps: object = None
        """Stamps of indexes that contain all known changes."""
        self._search_threads = search_threads

    @property
    def revision(self) -> Hashable:
        """Value that changes whenever search results may differ.

        It is the same in all processes and after a restart, so that they can validate each other's cached results.
        """
        return self._known_revision, self._read_stamps()

    def get_revision_of(self, collections: Collection[str]) -> Hashable:
        """Return a value like `revision` that doesn't change with the documents of other collections.

        While an index lacks changes or is rebuilt, it's that of the whole store.
        """
        stamps = self._read_stamps()
        if stamps is None or stamps != self._settled_stamps:
            return self._known_revision, stamps
        return tuple((info.id, info.revision) for info in self.collections if info.id in collections)

    def _read_stamps(self) -> tuple[object, object] | None:
        """Return what identifies the newest commits of both indexes."""
        try:
            return self.fulltext.read_stamp(), self.vectors.read_stamp()
        except OSError:
            return None  # the search reports it

    async def search(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function with the database in a search thread."""
        return await self._call_in_thread(work, self._search_threads.run)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection, for code that already runs in a thread."""
        with self._connections.borrow(object()) as database:
            yield database

    def find_documents(self, database: sqlite3.Connection, condition: Condition) -> Sequence[int]:
        """Return the keys of the documents that meet a condition."""
        revision = records.read_revision(database)
        key = condition.sql, tuple(condition.parameters)
        with self._filtered_lock:
            cached = self._filtered.get(key)
        if cached is not None and cached[0] == revision:
            return cached[1]
        rows = database.execute(
            f"SELECT d.key FROM documents d JOIN collections c ON c.key = d.collection WHERE {condition.sql}",
            condition.parameters,
        )
        found = [row[0] for row in rows]
        with self._filtered_lock:
            self._filtered[key] = revision, found
        return found

    async def change(self, work: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        """Run a function that changes the database."""
        try:
            return await self.run(work, *args)
        finally:
            await self.refresh()

    async def refresh(self) -> None:
        """Load changes made by this or another process."""

        def read(database: sqlite3.Connection) -> tuple[int, tuple[CollectionInfo, ...], object]:
            stamps = self._read_stamps()
            has_vectors = stamps is not None and stamps[1] is not None
            is_behind = self.is_behind(records.read_last_change(database), has_vectors=has_vectors)
            collections = tuple(records.list_collections(database, shared=self.is_shared))
            return records.read_revision(database), collections, None if is_behind else stamps

        self._known_revision, self.collections, self._settled_stamps = await self.run(read)

    async def refresh_if_changed(self) -> bool:
        """Refresh if another process has changed something. Returns whether it has."""
        if await self.run(records.read_revision) == self._known_revision:
            return False
        await self.refresh()
        return True

    def is_behind(self, last: int, *, has_vectors: bool) -> bool:
        """Whether an index lacks this change, or has later ones. An unreadable index lacks all changes."""
        try:
            self.fulltext.refresh()
            self.vectors.refresh()
        except IndexDamaged:
            return True
        return self.fulltext.mark != last or (has_vectors and self.vectors.mark != last)

    def _open_index(self, index: Callable[[Path], T], folder: Path) -> T:
        """Open an index for reading. A damaged one is deleted and rebuilt, unless another process is writing it."""
        try:
            return index(folder)
        except (IndexDamaged, NotADirectoryError) as error:
            with hold_writer_lock(self.folder) as is_ours:
                if not is_ours:
                    raise EngineError(f"{error}; it is being rebuilt, try again soon") from error
                logger.error("engine.index_rebuilt", extra={"fields": {"detail": str(error)}})
                with translate_errors(f"cannot remove {folder}"):
                    shutil.rmtree(folder) if folder.is_dir() else folder.unlink()
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


DATABASE_THREADS = 4
"""Threads for everything but searches, which have their own. More would only wait for each other."""

MIN_SEARCH_THREADS, MAX_SEARCH_THREADS = 2, 4
"""Bounds of the number of search threads, otherwise one per core. Searches are CPU-bound: with more threads each takes
longer and none finishes sooner."""

MIN_OPEN_STORES, MAX_OPEN_STORES = 16, 128
"""Bounds of the number of tenants whose files are open at the same time."""

FILES_PER_STORE = 10
"""Open files of a tenant that is searched concurrently. All stores together may have half of the process's limit."""


class StorePool(TenantPool[TenantStore]):
    """Stores of all tenants. The shared store has its own folder."""

    def __init__(self, folder: Path, shared: Path) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._search_threads = SearchThreads(min(max(cores, MIN_SEARCH_THREADS), MAX_SEARCH_THREADS))
        self._shared = shared
        create = partial(TenantStore, search_threads=self._search_threads)
        affordable = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 // FILES_PER_STORE
        max_open = min(max(affordable, MIN_OPEN_STORES), MAX_OPEN_STORES)
        super().__init__(folder, create, DATABASE_THREADS, max_open)

    def revision(self, tenant: TenantId, collections: Collection[str] = ()) -> Hashable:
        """Return the revision of a tenant's store, or of some of its collections.

        For a store that isn't open it is always a new value.
        """
        store = self._open.get(tenant)
        if store is not None:
            return store.get_revision_of(collections) if collections else store.revision
        return monotonic_ns() if (self.path(tenant) / DATABASE).exists() else None

    async def _open_found(self, tenant: TenantId) -> None:
        # A store that can't be opened doesn't affect the others; its tenant gets the error.
        with suppress(EngineError):
            await self.get_or_create(tenant)

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
        self._search_threads.close()

    def path(self, tenant: TenantId) -> Path:
        return self._shared if tenant == SHARED else super().path(tenant)
