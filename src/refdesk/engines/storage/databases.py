"""Databases of tenants: folders, connections and schema."""

from __future__ import annotations

import hashlib
import logging
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import closing, contextmanager
from importlib import resources
from pathlib import Path
from time import monotonic, sleep

from refdesk.calls import TenantId
from refdesk.engines.base import TenantInfo
from refdesk.errors import EngineError

DATABASE = "knowledge.db"
"""Name of the database file in a tenant's folder."""

MAX_LISTED_TENANTS = 10_000
"""Maximum number of tenants in the tenant list; reading each takes about a millisecond."""

_COUNTS = """
SELECT tenant, (SELECT count(*) FROM documents), (SELECT count(*) FROM collections),
       (SELECT coalesce(sum(size_bytes), 0) FROM documents)
FROM owner
"""

logger = logging.getLogger(__name__)


def tenant_folder_name(tenant: TenantId) -> str:
    """Return the folder name of a tenant: readable where the tenant's name allows it, and unique."""
    if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,60}", tenant):
        return f"n-{tenant}"
    return f"h-{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"


def list_new_tenants(folder: Path, known: Set[Path]) -> Sequence[TenantId]:
    """Return the tenants that have documents in folders not among `known`."""
    found = []
    for path in sorted(folder.glob(f"*/{DATABASE}")):
        if path.parent in known:
            continue
        with translate_errors(f"cannot read {path}"):
            database = sqlite3.connect(path, timeout=10)
            try:
                row = database.execute("SELECT tenant FROM owner").fetchone()
            except sqlite3.DatabaseError:
                row = None  # being created, broken, or of another version: reported when the tenant uses it
            finally:
                database.close()
        if row is not None:
            found.append(TenantId(row[0]))
    return found


def collect_tenant_info(folder: Path) -> list[TenantInfo]:
    """Return the sizes of all tenants in this folder, in the order of their ids.

    Each database is opened read-only for the query. Broken ones are skipped; their tenants get an error when they use
    them.
    """
    found = []
    for path in sorted(folder.glob(f"*/{DATABASE}"))[:MAX_LISTED_TENANTS]:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=10)) as database:
            try:
                found += [TenantInfo(*row) for row in database.execute(_COUNTS)]
            except sqlite3.DatabaseError as error:
                logger.warning("engine.not_counted", extra={"fields": {"path": str(path), "why": str(error)}})
    return sorted(found, key=lambda info: info.id)


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise storage errors as EngineError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise EngineError(f"{what}: {error}") from error


BUSY_SECONDS = 10.0
"""Time a writer waits for another process that is writing."""

RETRY_SECONDS = 0.02
PRAGMAS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"


class ConnectionPool:
    """Connections to one database, one per concurrent call, closed together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._busy: dict[object, sqlite3.Connection] = {}
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, call: object) -> Iterator[sqlite3.Connection]:
        """Yield a connection reserved for this call."""
        connection = self._acquire(call)
        try:
            yield connection
        finally:
            with self._changed:
                del self._busy[call]
                self._idle.append(connection)
                self._changed.notify_all()

    def interrupt(self, call: object) -> None:
        """Interrupt the running query of a call, if any."""
        with self._changed:
            if call in self._busy:
                self._busy[call].interrupt()

    def close(self) -> None:
        """Interrupt all calls, wait until each has returned its connection, and close all connections."""
        with self._changed:
            self._closed = True
            for connection in self._busy.values():
                connection.interrupt()
            self._changed.wait_for(lambda: not self._busy)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _acquire(self, call: object) -> sqlite3.Connection:
        with self._changed:
            if self._closed:
                raise EngineError("the desk is closed")
            connection = self._idle.pop() if self._idle else self._open()
            self._busy[call] = connection
            return connection

    def _open(self) -> sqlite3.Connection:
        # Used by one thread at a time, though not always the same one.
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
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


def read_schema(engine: str) -> str:
    """Return the tables shared by both engines, followed by those of an engine's package."""
    packages = (__package__, engine)
    return "\n".join(resources.files(package).joinpath("schema.sql").read_text("utf-8") for package in packages)
