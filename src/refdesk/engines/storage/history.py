"""Searches on their way into the history: written some at a time, so that no search waits for the disk."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Protocol, TypeVar

import anyio
from anyio import CancelScope

from refdesk.calls import TenantId, UserId
from refdesk.engines.base import PastSearch
from refdesk.engines.storage import records
from refdesk.errors import DependencyError

WRITE_SECONDS = 1.0
"""Between two writings."""

MAX_WAITING = 1000
"""Of one tenant's searches; more in a second are no history that anybody reads."""


T = TypeVar("T")


class Kept(Protocol):
    """A tenant's file."""

    async def run(self, work: Callable[[records.Database], T]) -> T:
        """Work with it, in a thread."""
        ...


class KeptOfAll(Protocol):
    """The files of all tenants."""

    async def find(self, tenant: TenantId) -> Kept | None:
        """A tenant's file, or None where there is none."""
        ...

    async def make(self, tenant: TenantId) -> Kept:
        """A tenant's file, made when it is not there."""
        ...


class History:
    """What users have searched for."""

    def __init__(self, stores: KeptOfAll) -> None:
        self._stores = stores
        self._waiting: dict[TenantId, list[tuple[str, PastSearch]]] = defaultdict(list)

    def add(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        """Keep a search, soon."""
        waiting = self._waiting[tenant]
        if len(waiting) < MAX_WAITING:
            waiting.append((user, search))

    async def of(self, tenant: TenantId, user: UserId, limit: int) -> Sequence[PastSearch]:
        """A user's last searches, newest first."""
        await self._write(tenant)
        store = await self._stores.find(tenant)
        return await store.run(lambda database: records.history(database, user, limit)) if store else []

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Write what comes while the block goes on, and what is left when it ends."""
        ended = anyio.Event()
        task = asyncio.create_task(self._keep_writing(ended))
        try:
            yield
        finally:
            # Asked to end, not cancelled: that could lose what is just being written.
            ended.set()
            with CancelScope(shield=True):
                await task

    async def _keep_writing(self, ended: anyio.Event) -> None:
        is_last = False
        while not is_last:
            with anyio.move_on_after(WRITE_SECONDS):
                await ended.wait()
            is_last = ended.is_set()
            # A full disk is told of by those whose documents it keeps out; searches wait until there is room.
            with suppress(DependencyError):
                await self.write()

    async def write(self) -> None:
        """Write what waits; a tenant whose searches cannot be written keeps no other's from being so."""
        failures = []
        for tenant in list(self._waiting):
            try:
                await self._write(tenant)
            except DependencyError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    async def _write(self, tenant: TenantId) -> None:
        searches = self._waiting.pop(tenant, [])
        if not searches:
            return
        try:
            store = await self._stores.make(tenant)
            await store.run(partial(_remember, searches))
        except DependencyError:
            self._waiting[tenant] = [*searches, *self._waiting[tenant]][:MAX_WAITING]
            raise


def _remember(searches: Sequence[tuple[str, PastSearch]], database: records.Database) -> None:
    records.remember(database, searches)
