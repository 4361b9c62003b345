"""Search history, written in batches so that no search waits for the disk."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol, TypeVar

import anyio
from anyio import CancelScope

from refdesk.calls import TenantId, UserId
from refdesk.engines.base import PastSearch
from refdesk.engines.storage import records
from refdesk.errors import DependencyError

WRITE_SECONDS = 1.0
"""Interval between two writes."""

MAX_PENDING = 1000
"""Maximum number of unwritten searches per tenant; more than this in a second are dropped."""


T = TypeVar("T")


class HistoryStore(Protocol):
    """Database of one tenant."""

    async def run(self, work: Callable[[records.Database], T]) -> T:
        """Run a function with the database in a thread."""
        ...


class HistoryStores(Protocol):
    """Databases of all tenants."""

    async def get(self, tenant: TenantId) -> HistoryStore | None:
        """Return a tenant's database, or None if it has none."""
        ...

    async def get_or_create(self, tenant: TenantId) -> HistoryStore:
        """Return a tenant's database, creating it if missing."""
        ...


class SearchHistory:
    """Buffered search history of all tenants."""

    def __init__(self, stores: HistoryStores) -> None:
        self._stores = stores
        self._pending: dict[TenantId, list[tuple[str, PastSearch]]] = defaultdict(list)
        self._locks: dict[TenantId, asyncio.Lock] = defaultdict(asyncio.Lock)

    def add(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        """Queue a search to be written."""
        pending = self._pending[tenant]
        if len(pending) < MAX_PENDING:
            pending.append((user, search))

    async def list_recent(self, tenant: TenantId, user: UserId, limit: int) -> Sequence[PastSearch]:
        """Return a user's last searches, newest first."""
        await self._flush_tenant(tenant)
        store = await self._stores.get(tenant)
        return await store.run(lambda database: records.list_history(database, user, limit)) if store else []

    @asynccontextmanager
    async def write_in_background(self) -> AsyncIterator[None]:
        """Write queued searches while the block runs, and the rest when it ends."""
        stopping = anyio.Event()
        task = asyncio.create_task(self._write_periodically(stopping))
        try:
            yield
        finally:
            # Stopped by an event: cancelling could lose a write in progress.
            stopping.set()
            with CancelScope(shield=True):
                await task

    async def _write_periodically(self, stopping: anyio.Event) -> None:
        is_last = False
        while not is_last:
            with anyio.move_on_after(WRITE_SECONDS):
                await stopping.wait()
            is_last = stopping.is_set()
            # A full disk is reported by ingestion. Searches stay queued until there is space.
            with suppress(DependencyError):
                await self.flush()

    async def flush(self) -> None:
        """Write all queued searches. A failure of one tenant doesn't stop the others."""
        failures = []
        for tenant in list(self._pending):
            try:
                await self._flush_tenant(tenant)
            except DependencyError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _flush_tenant(self, tenant: TenantId) -> None:
        # The lock makes a reader wait for a write in progress, whose searches are no longer pending.
        async with self._locks[tenant]:
            searches = self._pending.pop(tenant, [])
            if not searches:
                return
            try:
                store = await self._stores.get_or_create(tenant)
                await store.run(lambda database: records.add_history(database, searches))
            except DependencyError:
                self._pending[tenant] = [*searches, *self._pending[tenant]][:MAX_PENDING]
                raise
