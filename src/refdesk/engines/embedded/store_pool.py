"""Pool of open tenant stores. A tenant's files are created with its first document or search."""

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
from refdesk.engines.storage.tenant_folders import (
    DATABASE,
    collect_tenant_info,
    list_new_tenants,
    tenant_folder_name,
    translate_errors,
)
from refdesk.errors import EngineError

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
