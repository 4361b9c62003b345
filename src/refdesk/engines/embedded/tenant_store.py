"""The files of one tenant: the record, and the two indexes that are made from it, open for reading.

    knowledge.db    SQLite: the system of record
    fulltext/       tantivy, derived
    vectors/        memory-mapped vectors, derived
    writer.lock     held by the one process that writes the indexes

Everything that touches a file runs in a thread, so that the event loop never waits for a disk.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import threading
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import SHARED, CollectionInfo
from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.fulltext import FullText
from refdesk.engines.embedded.threads import SearchThreads
from refdesk.engines.embedded.vectors import Vectors
from refdesk.engines.embedded.vectors.manifest import MANIFEST
from refdesk.engines.storage import records
from refdesk.engines.storage.connections import Connections
from refdesk.engines.storage.filters import Condition
from refdesk.engines.storage.folders import DATABASE, translated
from refdesk.engines.storage.schema import schema_for
from refdesk.errors import EngineError

SCHEMA_VERSION = 3
"""Of the record. Rises with every change to it: what another version wrote is not guessed at."""
MAX_FILTERS = 32
"""Whose documents are kept in mind, for each tenant."""

REINDEX = "reindex"
"""A file whose being there is an order."""

T = TypeVar("T")


class Filtered:
    """The documents that filters have let through lately: to find them costs more than the search itself."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[int, Sequence[int]]] = OrderedDict()
        self._lock = threading.Lock()

    def documents(self, database: sqlite3.Connection, condition: Condition) -> Sequence[int]:
        """The keys of the documents that meet a condition."""
        revision = records.revision(database)
        asked = condition.sql, tuple(condition.parameters)
        with self._lock:
            kept = self._kept.get(asked)
        if kept is not None and kept[0] == revision:
            return kept[1]
        rows = database.execute(
            f"SELECT d.key FROM documents d JOIN collections c ON c.key = d.collection WHERE {condition.sql}",
            list(condition.parameters),
        )
        found = [row[0] for row in rows]
        with self._lock:
            self._kept[asked] = revision, found
            if len(self._kept) > MAX_FILTERS:
                self._kept.popitem(last=False)
        return found


class TenantStore:
    """A tenant's documents; made on the disk by `prepare`."""

    def __init__(self, folder: Path, tenant: TenantId, limiter: CapacityLimiter, searching: SearchThreads) -> None:
        self.folder = folder
        self.tenant = tenant
        self.fulltext = self._opened(FullText, folder / "fulltext")
        self.vectors = self._opened(Vectors, folder / "vectors")
        self.converting: dict[int, float] = {}
        """How far each conversion under way in this process is, by the document's key."""
        self.trouble: str | None = None
        """Why the writer cannot go on just now."""
        self.sets: tuple[CollectionInfo, ...] = ()
        self.filtered = Filtered()
        self.busy = 0
        """How many work with it; it is not to be closed under them."""
        self.used_at = monotonic()
        self._commits = (f"{folder}/fulltext/meta.json", f"{folder}/vectors/{MANIFEST}")
        """The files that every commit of an index replaces."""
        self._seen = 0
        self._limiter = limiter
        self._searching = searching
        self._connections = Connections(folder / DATABASE)

    @property
    def revision(self) -> Hashable:
        """Another value whenever a search may find something else, and the same one in every process and after a
        restart: by it, processes know whether an answer that another one has kept still holds."""
        return self._seen, *map(_glance, self._commits)

    async def run(self, work: Callable[[sqlite3.Connection], T], limiter: CapacityLimiter | None = None) -> T:
        """Work with the record, in a thread."""
        return await self._called(work, partial(to_thread.run_sync, limiter=limiter or self._limiter))

    async def search(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Search, in one of the threads that do nothing else."""
        return await self._called(work, self._searching.run)

    async def _called(
        self, work: Callable[[sqlite3.Connection], T], in_thread: Callable[[Callable[[], T]], Awaitable[T]]
    ) -> T:
        call = object()

        def run() -> T:
            with translated("the document store failed"), self._connections.borrow(call) as database:
                return work(database)

        self.busy += 1
        try:
            return await in_thread(run)
        except CancelledError:
            # A cancelled task leaves its thread behind; nobody waits for what it would find.
            self._connections.interrupt(call)
            raise
        finally:
            self.busy -= 1

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The record, for who is in a thread already."""
        with self._connections.borrow(object()) as database:
            yield database

    async def change(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Work that changes the record."""
        try:
            return await self.run(work)
        finally:
            await self.refresh()

    async def refresh(self) -> None:
        """See what this or another process has changed."""
        self._seen, self.sets = await self.run(self._look)

    async def look(self) -> bool:
        """Refresh if another process has changed something; whether it has."""
        if await self.run(records.revision) == self._seen:
            return False
        await self.refresh()
        return True

    def _look(self, database: sqlite3.Connection) -> tuple[int, tuple[CollectionInfo, ...]]:
        return records.revision(database), tuple(records.collections(database, shared=self.is_shared))

    def is_behind(self, last: int, *, has_vectors: bool) -> bool:
        """Whether an index lacks this change; one that cannot be read lacks all of them."""
        try:
            self.fulltext.refresh()
            self.vectors.refresh()
        except IndexDamaged:
            return True
        return self.fulltext.mark < last or (has_vectors and self.vectors.mark < last)

    def _opened(self, index: Callable[[Path], T], folder: Path) -> T:
        """An index for reading. One that is damaged is removed, unless another process writes it, and made anew."""
        try:
            return index(folder)
        except IndexDamaged as error:
            with self.writing() as is_ours:
                if not is_ours:
                    raise EngineError(f"{error}; it is being made anew, try again soon") from error
                with translated(f"cannot remove {folder}"):
                    shutil.rmtree(folder)
            return index(folder)

    @property
    def is_shared(self) -> bool:
        """Whether everybody can read it."""
        return self.tenant == SHARED

    @property
    def is_to_be_reindexed(self) -> bool:
        """Whether somebody wants both indexes made anew; whichever process writes next does it."""
        return (self.folder / REINDEX).exists()

    async def order_reindex(self) -> None:
        """Have both indexes made anew."""
        with translated(f"cannot write to {self.folder}"):
            await to_thread.run_sync((self.folder / REINDEX).touch)

    def end_reindex(self) -> None:
        """Both indexes are made anew."""
        (self.folder / REINDEX).unlink(missing_ok=True)

    def prepare(self) -> None:
        """Create or check the record; a file of another version is refused, never guessed at."""
        with translated(f"cannot use {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # One process makes the file, the others find it made.
            with _locked(self.folder / "opening.lock"), self._connections.borrow(self) as database:
                _prepare(database, self.folder / DATABASE, self.tenant)

    def close(self) -> None:
        """Stop what is under way and close the files."""
        self._connections.close()

    @contextmanager
    def writing(self) -> Iterator[bool]:
        """The writer's lock: whether it is ours. The kernel lets go of it when the process ends, however it ends."""
        with _locked(self.folder / "writer.lock", wait=False) as is_ours:
            yield is_ours


@contextmanager
def _locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """A lock that is ours until the block ends, or until the process does; whether it is, if it is not waited for."""
    with translated(f"cannot use {path}"):
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(lock)


def _prepare(database: sqlite3.Connection, path: Path, tenant: TenantId) -> None:
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found == 0:
        database.executescript(f"BEGIN IMMEDIATE; {schema_for(__package__)} PRAGMA user_version = {SCHEMA_VERSION};")
        database.execute("INSERT INTO owner (tenant) VALUES (?)", (tenant,))
        database.execute("COMMIT")
    elif found != SCHEMA_VERSION:
        raise EngineError(
            f"{path} was written by another version of Refdesk (schema {found}, this one reads {SCHEMA_VERSION}); "
            "use another --data folder, or remove the folder that it is in and add the documents anew"
        )


def _glance(path: str) -> Hashable:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino
