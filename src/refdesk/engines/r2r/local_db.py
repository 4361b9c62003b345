"""What is kept on disk of one tenant's documents at R2R: the queue, the catalogue, the history. SQLite, in WAL mode.

Its tables are those of the embedded engine too, so that queueing, listing and filtering are the same on both; R2R's
ids stand beside them. R2R is the truth about everything that has come in: what is kept of that here can be made again.
"""

from __future__ import annotations

import os
import sqlite3
from asyncio import CancelledError
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import CollectionInfo, TenantInfo
from refdesk.engines.r2r import catalogue
from refdesk.engines.storage.connections import Connections
from refdesk.engines.storage.folders import DATABASE, census, folder_of, tenants_in, translated
from refdesk.engines.storage.schema import schema_for
from refdesk.errors import EngineError

SCHEMA_VERSION = 3001
"""Of the record: that of the tables which both engines have, times a thousand, and our own."""

CHANGED = "changed"
"""A file that is touched whenever a search may find something else, for other processes to see."""

THREADS = 8
"""That read and write records; SQLite lets one write at a time anyway."""

T = TypeVar("T")


class Record:
    """One tenant's file; made on the disk by `prepare`."""

    def __init__(self, folder: Path, tenant: TenantId, limiter: CapacityLimiter) -> None:
        self.folder = folder
        self.tenant = tenant
        self.sets: tuple[CollectionInfo, ...] = ()
        self.uuids: dict[str, str] = {}
        """Of its collections at R2R, by their ids here."""
        self.given_up: frozenset[str] = frozenset()
        """The ids at R2R of documents that are still there and not to be found any more."""
        self.converting: dict[int, float] = {}
        """How far each conversion under way in this process is, by the document's key."""
        self._limiter = limiter
        self._seen: Hashable = None
        self._connections = Connections(folder / DATABASE)
        self._mark = f"{folder}/{CHANGED}"

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Work with the file, in a thread."""
        call = object()

        def run() -> T:
            with translated("the record of documents failed"), self._connections.borrow(call) as database:
                return work(database)

        try:
            return await to_thread.run_sync(run, limiter=self._limiter)
        except CancelledError:
            self._connections.interrupt(call)
            raise

    @property
    def is_behind(self) -> bool:
        """Whether another process has changed something that is in memory here."""
        return self.revision != self._seen

    async def reread(self) -> None:
        """Have in memory what the file says now."""
        self._seen = self.revision
        sets, self.uuids = await self.run(catalogue.collections)
        self.sets = tuple(sets)
        self.given_up = await self.run(catalogue.given_up)

    def slug_of(self, collection: str) -> str:
        """The id here of a collection that may be named by its id at R2R."""
        return next((slug for slug, uuid in self.uuids.items() if uuid == collection.lower()), collection)

    @property
    def revision(self) -> Hashable:
        """Another value whenever this or another process here has changed what can be found."""
        try:
            return os.stat(self._mark).st_mtime_ns
        except FileNotFoundError:
            return None

    def touch(self) -> None:
        """Searches may find something else from now on."""
        with translated(f"cannot write to {self.folder}"):
            was_behind, before = self.is_behind, self.revision
            Path(self._mark).touch()
            if self.revision == before and isinstance(before, int):
                os.utime(self._mark, ns=(before + 1, before + 1))
            if not was_behind:
                self._seen = self.revision

    def prepare(self) -> None:
        """Create or check the file; one of another version is refused, never guessed at."""
        with translated(f"cannot use {self.folder}"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._connections.borrow(self) as database:
                _prepare(database, self.folder / DATABASE, self.tenant)

    def close(self) -> None:
        """Stop what is under way and close the file."""
        self._connections.close()


class Records:
    """The records of all tenants, in folders of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._limiter = CapacityLimiter(THREADS)
        self._open: dict[TenantId, Record] = {}

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._open.values()))

    def at_hand(self, tenant: TenantId) -> Record | None:
        """A tenant's record, if it is open."""
        return self._open.get(tenant)

    async def find(self, tenant: TenantId) -> Record | None:
        """A tenant's record, if there is one; another process may have made it."""
        if found := self._open.get(tenant):
            return found
        return await self.make(tenant) if (self._folder / folder_of(tenant) / DATABASE).exists() else None

    async def prepare(self) -> None:
        """Make the folder, and open what is in it."""
        with translated(f"cannot use {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = {record.folder for record in self}
        for tenant in await to_thread.run_sync(tenants_in, self._folder, known):
            await self.make(tenant)

    async def make(self, tenant: TenantId) -> Record:
        """A tenant's record, made when there is none."""
        if found := self._open.get(tenant):
            return found
        record = Record(self._folder / folder_of(tenant), tenant, self._limiter)
        await to_thread.run_sync(record.prepare)
        # Another caller may have opened it meanwhile.
        kept = self._open.setdefault(tenant, record)
        if kept is not record:
            await to_thread.run_sync(record.close)
            return kept
        await record.reread()
        return record

    async def census(self) -> Sequence[TenantInfo]:
        """How much each tenant has, as far as it was seen from here."""
        with translated(f"cannot read {self._folder}"):
            return await to_thread.run_sync(census, self._folder)

    async def close(self) -> None:
        """Close all of them."""
        for record in self:
            await to_thread.run_sync(record.close)


def _prepare(database: sqlite3.Connection, path: Path, tenant: TenantId) -> None:
    with _exclusive(database):
        found = database.execute("PRAGMA user_version").fetchone()[0]
        if found == 0:
            _run_all(database, schema_for(__package__))
            database.execute("INSERT INTO owner (tenant) VALUES (?)", (tenant,))
            database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        elif found != SCHEMA_VERSION:
            raise EngineError(
                f"{path} was written by another version of Refdesk (schema {found}, this one reads {SCHEMA_VERSION}); "
                "use another --data folder, or remove the file: what R2R holds is listed anew"
            )


@contextmanager
def _exclusive(database: sqlite3.Connection) -> Iterator[None]:
    """One process makes the file, the others find it made."""
    database.execute("BEGIN EXCLUSIVE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _run_all(database: sqlite3.Connection, script: str) -> None:
    """Every statement of a script, within the transaction that is open; `executescript` would end it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            database.execute(statement)
            statement = ""
