"""Search history of each user, in a database beside a tenant's documents. No search waits for the disk."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import TypeVar

import anyio
from anyio import CancelScope, to_thread

from refdesk.calls import TenantId, UserId
from refdesk.engines.storage.databases import DATABASE, tenant_folder_name, translate_errors
from refdesk.engines.storage.records import transaction
from refdesk.errors import DependencyError
from refdesk.support.fs import make_private_folder

FILE_NAME = "history.db"

MAX_USER_HISTORY = 100
"""Searches stored per user: more than is ever displayed, so that a busy minute doesn't push out the previous one."""

MAX_TENANT_HISTORY = 100_000
"""Searches stored for all users of a tenant together, because user names are chosen by clients."""

WRITE_SECONDS = 1.0
"""Interval between two writes."""

MAX_PENDING = 1000
"""Maximum number of unwritten searches per tenant; more than this in a second are dropped."""

BUSY_SECONDS = 10.0
"""Time to wait for another process that is writing."""

_INSERT = "INSERT INTO history (user, query, collection, results, at) VALUES (?, ?, ?, ?, ?)"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PastSearch:
    """Search in a user's history."""

    query: str
    collection: str
    results: int
    at: datetime


@asynccontextmanager
async def open_search_history(folder: Path) -> AsyncIterator[SearchHistory]:
    """Open the history in the tenants' folders. Searches are written once a second, the last ones when it closes."""
    history, stopping = SearchHistory(folder), anyio.Event()

    async def write_periodically() -> None:
        is_last = False
        while not is_last:
            with anyio.move_on_after(WRITE_SECONDS):
                await stopping.wait()
            is_last = stopping.is_set()
            await history.flush()

    task = asyncio.create_task(write_periodically())
    try:
        yield history
    finally:
        # Stopped by an event: cancelling could lose a write in progress.
        stopping.set()
        with CancelScope(shield=True):
            await task


class SearchHistory:
    """Buffered search history of all tenants."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending: dict[TenantId, list[tuple[str, PastSearch]]] = defaultdict(list)
        self._locks: dict[TenantId, asyncio.Lock] = defaultdict(asyncio.Lock)

    def add(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        """Queue a search to be written."""
        pending = self._pending[tenant]
        if len(pending) < MAX_PENDING:
            pending.append((user, search))

    async def list_recent(self, tenant: TenantId, user: UserId, limit: int = 10) -> Sequence[PastSearch]:
        """Return a user's last searches, newest first."""
        await self._flush_tenant(tenant)
        if not self._find_path(tenant).parent.exists():
            return []
        select = "SELECT query, collection, results, at FROM history WHERE user = ? ORDER BY key DESC LIMIT ?"
        rows = await self._run(tenant, lambda database: database.execute(select, (user, limit)).fetchall())
        return [
            PastSearch(query, collection, results, datetime.fromisoformat(at))
            for query, collection, results, at in rows
        ]

    async def flush(self) -> None:
        """Write all queued searches. Those that can't be written stay queued: ingestion reports a full disk."""
        for tenant in list(self._pending):
            with suppress(DependencyError):
                await self._flush_tenant(tenant)

    async def _flush_tenant(self, tenant: TenantId) -> None:
        # The lock makes a reader wait for a write in progress, whose searches are no longer pending.
        async with self._locks[tenant]:
            searches = self._pending.pop(tenant, [])
            if not searches:
                return
            try:
                await self._run(tenant, lambda database: _insert(database, searches))
            except DependencyError:
                self._pending[tenant] = [*searches, *self._pending[tenant]][:MAX_PENDING]
                raise

    async def _run(self, tenant: TenantId, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run a function with the tenant's database in a thread. It is opened each time: once a second at most."""
        path = self._find_path(tenant)

        def run() -> T:
            with translate_errors("the search history failed"):
                make_private_folder(path.parent)
                with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as database:
                    if database.execute("PRAGMA user_version").fetchone()[0] == 0:
                        _create_tables(database, path.with_name(DATABASE))
                    return work(database)

        return await to_thread.run_sync(run)

    def _find_path(self, tenant: TenantId) -> Path:
        return self._folder / tenant_folder_name(tenant) / FILE_NAME


def _create_tables(database: sqlite3.Connection, documents: Path) -> None:
    """Create the tables, with the searches that earlier versions stored in the database of the documents."""
    earlier: list[tuple[object, ...]] = []
    if documents.exists():
        with closing(sqlite3.connect(f"{documents.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as old:
            if old.execute("SELECT 1 FROM sqlite_master WHERE name = 'history'").fetchone():
                earlier = old.execute(
                    "SELECT user, query, collection, results, at FROM history ORDER BY key"
                ).fetchall()
    with transaction(database):
        if database.execute("PRAGMA user_version").fetchone()[0] == 0:  # another process may have been faster
            schema = resources.files(__package__).joinpath("search_history.sql").read_text("utf-8")
            for statement in schema.split(";"):
                database.execute(statement)
            database.executemany(_INSERT, earlier)


def _insert(database: sqlite3.Connection, searches: Sequence[tuple[str, PastSearch]]) -> None:
    """Store searches, and delete the oldest ones beyond the limits."""
    with transaction(database):
        database.executemany(
            _INSERT, [(user, past.query, past.collection, past.results, past.at.isoformat()) for user, past in searches]
        )
        for user in {user for user, _ in searches}:
            database.execute(
                "DELETE FROM history WHERE user = ? AND key <= (SELECT key FROM history WHERE user = ? "
                "ORDER BY key DESC LIMIT 1 OFFSET ?)",
                (user, user, MAX_USER_HISTORY),
            )
        database.execute("DELETE FROM history WHERE key <= (SELECT max(key) FROM history) - ?", (MAX_TENANT_HISTORY,))
