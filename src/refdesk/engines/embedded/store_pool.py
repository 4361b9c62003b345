"""Which tenants' files are open. Those of a tenant are made when its first document or search is kept, not before."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic, monotonic_ns

import anyio
from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import SHARED, TenantInfo
from refdesk.engines.embedded.tenant_store import TenantStore
from refdesk.engines.embedded.threads import SearchThreads
from refdesk.engines.storage.folders import DATABASE, census, folder_of, tenants_in, translated
from refdesk.errors import EngineError

READING_THREADS = 4
"""For all but searches, which have their own; more would only wait for each other."""

FEWEST_SEARCHING, MOST_SEARCHING = 2, 4
"""Threads that search, within these as many as there are cores: with more, each search takes longer and none is done
sooner, since most of it is work."""

MAX_OPEN_STORES = 128
"""Tenants whose files are open at a time; beyond it, those are closed that nobody has asked lately."""

IDLE_SECONDS = 60.0
"""As long as nobody has asked for a store before it may be closed: far longer than anybody holds one in hand."""


class Stores:
    """The stores of all tenants; what is shared lies in a folder of its own."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self._folder = folder
        self._shared = shared
        self._open: OrderedDict[TenantId, TenantStore] = OrderedDict()
        self._opening = anyio.Lock()
        self._limiter = CapacityLimiter(READING_THREADS)
        self._searching = SearchThreads(min(max(_cores(), FEWEST_SEARCHING), MOST_SEARCHING))

    def __iter__(self) -> Iterator[TenantStore]:
        return iter(list(self._open.values()))

    def at_hand(self, tenant: TenantId) -> TenantStore | None:
        """A tenant's store if it is open already; from memory."""
        return self._open.get(tenant)

    def revision(self, tenant: TenantId) -> Hashable:
        """Of a tenant's store; of one that is not open it is not known, and never what it was before."""
        store = self._open.get(tenant)
        if store is not None:
            return store.revision
        return monotonic_ns() if (self._path(tenant) / DATABASE).exists() else None

    async def prepare(self) -> None:
        """See that there is a folder to keep tenants' documents in."""
        with translated(f"cannot use {self._folder}"):
            await to_thread.run_sync(lambda: self._folder.mkdir(parents=True, exist_ok=True, mode=0o700))

    async def open_new(self) -> None:
        """Open what other processes have made since, as long as there is room."""
        known = {store.folder for store in self}
        for tenant in await to_thread.run_sync(tenants_in, self._folder, known):
            if len(self._open) < MAX_OPEN_STORES:
                # One that cannot be opened keeps no other from its documents; its tenant is told when it asks.
                with suppress(EngineError):
                    await self.make(tenant)

    async def find(self, tenant: TenantId) -> TenantStore | None:
        """A tenant's store, or None where it has nothing yet."""
        store = self._open.get(tenant)
        if store is not None:
            self._open.move_to_end(tenant)
            store.used_at = monotonic()
            return store
        path = self._path(tenant) / DATABASE
        return await self.make(tenant) if await to_thread.run_sync(path.exists) else None

    async def make(self, tenant: TenantId) -> TenantStore:
        """A tenant's store, made when it is not there."""
        async with self._opening:
            store = self._open.get(tenant)
            if store is None:
                with translated(f"cannot use {self._path(tenant)}"):
                    made = partial(TenantStore, self._path(tenant), tenant, self._limiter, self._searching)
                    store = await to_thread.run_sync(made)
                await to_thread.run_sync(store.prepare)
                await store.refresh()
                self._open[tenant] = store
                await self._close_some()
        return store

    async def census(self) -> Sequence[TenantInfo]:
        """How much each tenant has, whether its files are open or not."""
        with translated(f"cannot read {self._folder}"):
            return await to_thread.run_sync(census, self._folder)

    async def close(self) -> None:
        """Close all of them."""
        while self._open:
            _, store = self._open.popitem()
            await to_thread.run_sync(store.close)
        self._searching.close()

    async def _close_some(self) -> None:
        since = monotonic() - IDLE_SECONDS
        idle = [t for t, store in self._open.items() if store.busy == 0 and store.used_at < since and t != SHARED]
        for tenant in idle[: max(len(self._open) - MAX_OPEN_STORES, 0)]:
            await to_thread.run_sync(self._open.pop(tenant).close)

    def _path(self, tenant: TenantId) -> Path:
        return self._shared if tenant == SHARED else self._folder / folder_of(tenant)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
