"""Databases of tenants: folders, connections and schema."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import sqlite3
import threading
from asyncio import CancelledError
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from time import monotonic, sleep
from traceback import clear_frames
from typing import Generic, Self, TypeVar, TypeVarTuple

import anyio
from anyio import CancelScope, CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import IN_PROGRESS, SHARED, CollectionInfo, DocumentStatus, Listing, TenantInfo
from refdesk.engines.storage import records
from refdesk.engines.storage.records import transaction
from refdesk.errors import DatabaseDamaged, EngineError
from refdesk.support.fs import make_private_folder

DATABASE = "knowledge.db"
"""Name of the database file in a tenant's folder."""

MAX_LISTED_TENANTS = 10_000
"""Maximum number of tenants in the tenant list; reading each takes about a millisecond."""

POLL_SECONDS = 0.1
"""Interval for polling documents that a caller waits for."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_COUNTS = """
SELECT tenant, (SELECT count(*) FROM documents), (SELECT count(*) FROM collections),
       (SELECT coalesce(sum(size_bytes), 0) FROM documents)
FROM owner
"""

_TENANT_AND_WORK = f"SELECT tenant, EXISTS (SELECT 1 FROM documents WHERE {records.IS_IN_PROGRESS}) FROM owner"

logger = logging.getLogger(__name__)


def tenant_folder_name(tenant: TenantId) -> str:
    """Return the folder name of a tenant: readable where the tenant's name allows it, and unique."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,60}", tenant):
        return f"n-{tenant}"
    return f"h-{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


DAMAGE_CODES = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise storage errors as EngineError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGE_CODES:
            raise DatabaseDamaged(f"{what}: {error}. Restore {DATABASE} from a backup.") from error
        raise EngineError(f"{what}: {error}") from error


INDEX_FOLDERS = ("fulltext", "vectors")
"""Folders of the indexes beside a database that are derived from it."""


def describe_loss(folder: Path, *, is_empty: bool = False) -> str | None:
    """Return why a folder's database can't be the one that its indexes are of, or None if there is no doubt.

    `is_empty` is whether the database is known to have no tables.
    """
    path = folder / DATABASE
    indexes = [name for name in INDEX_FOLDERS if (folder / name).exists()]
    if not indexes or not (is_empty or not path.exists() or path.stat().st_size == 0):
        return None
    return (
        f"{path} is missing or empty, but there is {' and '.join(indexes)}: documents were lost. Restore {DATABASE} "
        f"from a backup, or remove {folder} and add the documents again."
    )


@contextmanager
def hold_writer_lock(folder: Path) -> Iterator[bool]:
    """Try to take the writer lock of a folder, and yield whether it was acquired.

    The kernel releases it when the process ends.
    """
    path = folder / "writer.lock"
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


BUSY_SECONDS = 10.0
"""Time a writer waits for another process that is writing."""

RETRY_SECONDS = 0.02

MAX_IDLE_CONNECTIONS = 4
"""Idle connections kept per database. Each has two open files."""

ADDED_TABLE = "collection_revisions"
"""Table that databases of the same schema version may lack. Programs without it can use a database that has it."""

PRAGMAS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"


class ConnectionPool:
    """Connections to one database, one per concurrent call, closed together."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.absolute().as_uri()}?mode=rw"
        """A file that was deleted is never created again: what is written to it would be lost, too."""
        self._idle: list[sqlite3.Connection] = []
        self._busy: dict[object, sqlite3.Connection] = {}
        self._max_idle = MAX_IDLE_CONNECTIONS
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, call: object) -> Iterator[sqlite3.Connection]:
        """Yield a connection reserved for this call."""
        with self._changed:
            if self._closed:
                raise EngineError("the engine is closed")
            connection = self._busy[call] = self._idle.pop() if self._idle else self._open()
        is_clean = False
        try:
            yield connection
            is_clean = not connection.in_transaction
        except BaseException as error:
            _release_cursors(error)
            raise
        finally:
            with self._changed:
                del self._busy[call]
                if is_clean and len(self._idle) < self._max_idle:
                    self._idle.append(connection)
                else:
                    # A failed call may leave a query open, and all later writes on its connection would fail.
                    _close(connection)
                self._changed.notify_all()

    def interrupt(self, call: object) -> None:
        """Interrupt the running query of a call, if any."""
        with self._changed:
            if call in self._busy:
                self._busy[call].interrupt()

    def retire(self) -> None:
        """Close the connections that aren't in use, and keep none open between calls from now on."""
        with self._changed:
            self._max_idle = 0
            while self._idle:
                _close(self._idle.pop())

    def close(self) -> None:
        """Interrupt all calls, wait until each has returned its connection, and close all connections."""
        with self._changed:
            self._closed = True
            for connection in self._busy.values():
                connection.interrupt()
            self._changed.wait_for(lambda: not self._busy)
            while self._idle:
                _close(self._idle.pop())

    def _open(self) -> sqlite3.Connection:
        # Used by one thread at a time, though not always the same one.
        connection = sqlite3.connect(
            self._uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        give_up_at = monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.executescript(PRAGMAS)
                return connection
            except sqlite3.Error as error:
                # SQLite doesn't wait while another process switches a new file to WAL mode.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() >= give_up_at:
                    connection.close()
                    raise
                sleep(RETRY_SECONDS)


def _close(connection: sqlite3.Connection) -> None:
    """Close a connection. The last one of a database applies the write-ahead log and removes it.

    An interrupt that came between two statements would end that. The next statement clears it.
    """
    with suppress(sqlite3.Error):
        connection.execute("SELECT 1").close()
    connection.close()


def _release_cursors(error: BaseException) -> None:
    """Clear the local variables of the frames that an exception left.

    A connection keeps its files open until the last of its cursors is gone, even after it's closed, and a traceback
    may live long: in a task, a log record or an error report.
    """
    cause: BaseException | None = error
    while cause is not None:
        clear_frames(cause.__traceback__)
        cause = cause.__context__


class TenantDatabase:
    """Database of one tenant, created on disk by `prepare`. Queries run in threads."""

    schema_package: str
    """Package whose `schema.sql` follows the tables shared by all engines."""
    schema_version: int
    other_version_hint: str
    """What to do about a database of another schema version."""

    def __init__(self, folder: Path, tenant: TenantId, limiter: CapacityLimiter) -> None:
        self.folder = folder
        self.tenant = tenant
        self.conversion_progress: dict[int, float] = {}
        """Progress of the conversions in this process, by document key."""
        self.collections: tuple[CollectionInfo, ...] = ()
        self.busy = 0
        """Number of current users. The database isn't retired while there are any."""
        self._limiter = limiter
        self._connections = ConnectionPool(folder / DATABASE)
        self._inode = 0

    def prepare(self) -> None:
        """Create the database or check its version."""
        with translate_errors(f"cannot use {self.folder}"):
            make_private_folder(self.folder)
            self._require_database()
            (self.folder / DATABASE).touch(mode=0o600)
            with self._connections.borrow(self) as database:
                self._inode = (self.folder / DATABASE).stat().st_ino
                version = _read_version(database)
                if version == 0:
                    self._require_database(is_empty=True)
                    # One process creates the tables, the others find them complete.
                    with transaction(database):
                        version = _read_version(database) or self._create_tables(database)
                if version != self.schema_version:
                    raise DatabaseDamaged(
                        f"{self.folder / DATABASE} was written by another version of Refdesk (schema {version}, this "
                        f"one reads {self.schema_version}); {self.other_version_hint}"
                    )
                if not _has_table(database, ADDED_TABLE):
                    with transaction(database):
                        if not _has_table(database, ADDED_TABLE):
                            _execute_script(database, resources.files(__package__).joinpath(f"{ADDED_TABLE}.sql"))

    def _require_database(self, *, is_empty: bool = False) -> None:
        """Refuse to create a database in place of a lost one. The shared one is filled again at every start."""
        if self.tenant != SHARED and (loss := describe_loss(self.folder, is_empty=is_empty)):
            raise DatabaseDamaged(loss)

    def is_replaced(self) -> bool:
        """Return whether the file that was opened is gone, or another one is in its place."""
        try:
            return (self.folder / DATABASE).stat().st_ino != self._inode
        except FileNotFoundError:
            return True

    def _create_tables(self, database: sqlite3.Connection) -> int:
        for package in (__package__, self.schema_package):
            _execute_script(database, resources.files(package).joinpath("schema.sql"))
        database.execute("INSERT INTO owner (tenant) VALUES (?)", (self.tenant,))
        database.execute(f"PRAGMA user_version = {self.schema_version}")
        return self.schema_version

    async def run(self, work: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        """Call a function with the database, and with the other arguments, in a thread."""
        return await self.run_with(self._limiter, work, *args)

    async def run_with(self, limiter: CapacityLimiter, work: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        """Call a function as `run` does, in a thread of this limiter."""
        in_thread = partial(to_thread.run_sync, limiter=limiter)
        return await self._call_in_thread(lambda database: work(database, *args), in_thread)

    async def _call_in_thread(
        self, work: Callable[[sqlite3.Connection], T], in_thread: Callable[[Callable[[], T]], Awaitable[T]]
    ) -> T:
        call = object()

        def run() -> T:
            with translate_errors("the document store failed"), self._connections.borrow(call) as database:
                return work(database)

        self.busy += 1
        try:
            return await in_thread(run)
        except CancelledError:
            # A cancelled task leaves its thread running: stop the query, nobody awaits its result.
            self._connections.interrupt(call)
            raise
        finally:
            self.busy -= 1

    async def get_statuses(self, ids: Sequence[str]) -> list[DocumentStatus]:
        """Return the statuses of documents in the requested order. Deleted ones are omitted."""
        return await self.run(records.get_statuses, ids, dict(self.conversion_progress))

    async def get_status(self, id: str) -> DocumentStatus | None:
        """Return the status of a document, or None."""
        return next(iter(await self.get_statuses([id])), None)

    async def wait(self, ids: Sequence[str], seconds: float) -> list[DocumentStatus]:
        """Wait until any of the documents changes its status, or the time is up, and return their statuses."""
        first = statuses = await self.get_statuses(ids)
        with anyio.move_on_after(seconds):
            while statuses == first and any(found.status in IN_PROGRESS for found in statuses):
                await anyio.sleep(POLL_SECONDS)
                statuses = await self.get_statuses(ids)
        return statuses

    async def list_documents(self, listing: Listing) -> tuple[list[DocumentStatus], int]:
        """Return a page of documents, and the total number of matches."""
        return await self.run(records.list_documents, listing, dict(self.conversion_progress))

    async def refresh(self) -> None:
        """Load changes made by this or another process."""

    def retire(self) -> None:
        """Close the file. Whoever still holds the database can use it, at the cost of opening the file each time."""
        self._connections.retire()

    def close(self) -> None:
        """Interrupt running queries and close the file."""
        self._connections.close()


def _execute_script(database: sqlite3.Connection, script: Traversable) -> None:
    """Execute statements. Unlike `executescript`, this doesn't commit the open transaction."""
    statement = ""
    for line in script.read_text("utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            database.execute(statement)
            statement = ""


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    return database.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)).fetchone() is not None


def _read_version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


D = TypeVar("D", bound=TenantDatabase)


class TenantPool(Generic[D]):
    """Databases of all tenants, each in its own folder and opened on first use."""

    def __init__(
        self, folder: Path, create: Callable[[Path, TenantId, CapacityLimiter], D], threads: int, max_open: int | None
    ) -> None:
        """Create a pool. With `max_open` databases, the least recently used one is retired before another is opened."""
        self._folder = folder
        self._create = create
        self._limiter = CapacityLimiter(threads)
        self._max_open = max_open
        self._open: OrderedDict[TenantId, D] = OrderedDict()
        self._open_lock = anyio.Lock()
        self._retired_collections: dict[TenantId, tuple[CollectionInfo, ...]] = {}
        self.problems: dict[Path, str] = {}
        """Why databases can't be opened, by their folder."""
        self.listeners: list[Callable[[TenantId], None]] = []
        """Called with a tenant whenever its documents or collections have changed."""

    async def __aenter__(self) -> Self:
        with translate_errors(f"cannot use {self._folder}"):
            await to_thread.run_sync(make_private_folder, self._folder)
        return self

    async def __aexit__(self, *_: object) -> None:
        with CancelScope(shield=True):
            while self._open:
                await to_thread.run_sync(self._open.popitem()[1].close)

    def __iter__(self) -> Iterator[D]:
        return iter(list(self._open.values()))

    def notify(self, tenant: TenantId) -> None:
        """Call the listeners."""
        for listener in self.listeners:
            listener(tenant)

    def get_collections(self, tenant: TenantId) -> tuple[CollectionInfo, ...]:
        """Return a tenant's collections from memory, also those of a retired database."""
        database = self._open.get(tenant)
        return database.collections if database is not None else self._retired_collections.get(tenant, ())

    def get_open(self, tenant: TenantId) -> D | None:
        """Return a tenant's database if it is already open."""
        return self._open.get(tenant)

    async def get(self, tenant: TenantId) -> D | None:
        """Return a tenant's database, or None if it has none. Another process may have created it."""
        database = self._open.get(tenant)
        if database is not None:
            self._open.move_to_end(tenant)
            return database
        path = self.path(tenant)
        return await self.get_or_create(tenant) if await to_thread.run_sync(path.exists) else None

    async def get_or_create(self, tenant: TenantId) -> D:
        """Return a tenant's database, creating it if missing."""
        async with self._open_lock:
            database = self._open.get(tenant)
            if database is None:
                await self._retire_unused()
                path = self.path(tenant)
                try:
                    with translate_errors(f"cannot use {path}"):
                        database = await to_thread.run_sync(self._create, path, tenant, self._limiter)
                    await to_thread.run_sync(database.prepare)
                    await database.refresh()
                except EngineError as error:
                    self._report_problem(path, error.detail)
                    raise
                self.problems.pop(path, None)
                self._open[tenant] = database
                self._retired_collections.pop(tenant, None)
        return database

    def _report_problem(self, folder: Path, detail: str) -> None:
        if self.problems.get(folder) != detail:
            self.problems[folder] = detail
            logger.error("engine.unusable", extra={"fields": {"folder": str(folder), "detail": detail}})

    def check_folder(self) -> None:
        """Check that files can be opened, and report a folder that can't be written. Raises EngineError."""
        with translate_errors(f"cannot use {self._folder}"):
            os.close(os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC))
        if os.access(self._folder, os.W_OK):
            self.problems.pop(self._folder, None)
        else:
            self._report_problem(self._folder, f"{self._folder} can't be written: no documents can be added")

    async def drop(self, database: D) -> None:
        """Retire a database whose file was replaced, so that it's opened again."""
        if self._open.get(database.tenant) is database:
            del self._open[database.tenant]
        await to_thread.run_sync(database.retire)

    async def _retire_unused(self) -> None:
        """Make room for another open database. If all are in use, wait."""
        while self._max_open is not None and len(self._open) >= self._max_open:
            unused = next((t for t, each in self._open.items() if each.busy == 0 and t != SHARED), None)
            if unused is None:
                await anyio.sleep(POLL_SECONDS)
                continue
            database = self._open.pop(unused)
            self._retired_collections[unused] = database.collections
            await to_thread.run_sync(database.retire)

    async def open_new(self) -> None:
        """Open databases that other processes have created. If no more may be open, only those with work."""
        known = {database.folder for database in self}
        for tenant, has_work in await to_thread.run_sync(self._list_tenants_except, known):
            if has_work or self._max_open is None or len(self._open) < self._max_open:
                await self._open_found(tenant)

    async def _open_found(self, tenant: TenantId) -> None:
        await self.get_or_create(tenant)

    def _list_tenants_except(self, known: Set[Path]) -> list[tuple[TenantId, bool]]:
        """Return the tenants that have a database in a folder not among `known`, and whether documents are pending."""
        found = []
        with translate_errors(f"cannot read {self._folder}"):
            folders = sorted(set(self._folder.iterdir()) - known)
        for gone in self.problems.keys() - {*folders, self._folder}:
            del self.problems[gone]
        for folder in folders:
            path = folder / DATABASE
            if loss := describe_loss(folder):
                self._report_problem(folder, loss)
            elif path.exists():
                with translate_errors(f"cannot read {path}"), closing(sqlite3.connect(path, timeout=10)) as database:
                    try:
                        row = database.execute(_TENANT_AND_WORK).fetchone()
                    except sqlite3.OperationalError:
                        continue  # being created, or of another version: reported when the tenant uses it
                    except sqlite3.DatabaseError as error:
                        self._report_problem(folder, f"{path} is damaged: {error}. Restore it from a backup.")
                        continue
                    found.append((TenantId(row[0]), bool(row[1])))
        return found

    async def list_tenants(self) -> Sequence[TenantInfo]:
        """Return the sizes of all tenants in the order of their ids, including those whose database isn't open.

        Each database is opened read-only for the query. Broken ones are skipped; their tenants get an error when they
        use them.
        """

        def collect() -> list[TenantInfo]:
            found = []
            for path in sorted(self._folder.glob(f"*/{DATABASE}"))[:MAX_LISTED_TENANTS]:
                with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as database:
                    try:
                        found += [TenantInfo(*row) for row in database.execute(_COUNTS)]
                    except sqlite3.DatabaseError as error:
                        logger.warning("engine.not_counted", extra={"fields": {"path": str(path), "why": str(error)}})
            return sorted(found, key=lambda info: info.id)

        with translate_errors(f"cannot read {self._folder}"):
            return await to_thread.run_sync(collect)

    def path(self, tenant: TenantId) -> Path:
        """Return the folder of a tenant."""
        return self._folder / tenant_folder_name(tenant)
