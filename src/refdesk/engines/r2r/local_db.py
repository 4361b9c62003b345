"""Local SQLite database of a tenant's R2R documents: queue and catalogue.

It shares its tables with the embedded engine, so that queueing, listing and filtering are the same, and adds R2R's ids.
R2R is the source of truth for ingested documents: the local copy can be rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from anyio import CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import CollectionInfo, TenantInfo
from refdesk.engines.r2r import catalogue
from refdesk.engines.storage.databases import (
    DATABASE,
    TenantDatabase,
    collect_tenant_info,
    list_new_tenants,
    tenant_folder_name,
    translate_errors,
)

SCHEMA_VERSION = 3001
"""Version of the database schema: that of the shared tables times a thousand, plus that of the R2R tables."""

CHANGED_FILE = "changed"
"""File that is touched whenever search results may differ, as a signal to other processes."""

THREADS = 8
"""Threads for database access. SQLite allows one writer at a time anyway."""

T = TypeVar("T")


class LocalDb(TenantDatabase):
    """Database of one tenant."""

    schema_package = __package__
    schema_version = SCHEMA_VERSION
    other_version_hint = "use another --data folder, or remove the file: Refdesk lists R2R's content again"

    def __init__(self, folder: Path, tenant: TenantId, limiter: CapacityLimiter) -> None:
        super().__init__(folder, tenant, limiter)
        self.collections: tuple[CollectionInfo, ...] = ()
        self.uuids: dict[str, str] = {}
        """R2R ids of its collections, by local id."""
        self.tombstones: frozenset[str] = frozenset()
        """R2R ids of documents that are deleted here but still exist in R2R."""
        self._known_revision: Hashable = None
        self._marker = f"{folder}/{CHANGED_FILE}"

    @property
    def is_behind(self) -> bool:
        """Whether another process has changed data that is cached here."""
        return self.revision != self._known_revision

    async def reload(self) -> None:
        """Reload the cached data."""
        self._known_revision = self.revision
        collections, self.uuids = await self.run(catalogue.list_collections)
        self.collections = tuple(collections)
        self.tombstones = await self.run(catalogue.list_tombstones)

    def resolve_slug(self, collection: str) -> str:
        """Return the local id of a collection given by its local id or its id in R2R."""
        return next((slug for slug, uuid in self.uuids.items() if uuid == collection.lower()), collection)

    @property
    def revision(self) -> Hashable:
        """Value that changes whenever a process on this machine has changed what can be found."""
        try:
            return os.stat(self._marker).st_mtime_ns
        except FileNotFoundError:
            return None

    def mark_changed(self) -> None:
        """Signal that search results may differ."""
        with translate_errors(f"cannot write to {self.folder}"):
            was_behind, before = self.is_behind, self.revision
            Path(self._marker).touch()
            if self.revision == before and isinstance(before, int):
                os.utime(self._marker, ns=(before + 1, before + 1))
            if not was_behind:
                self._known_revision = self.revision


class LocalDbPool:
    """Databases of all tenants, each in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._limiter = CapacityLimiter(THREADS)
        self._open: dict[TenantId, LocalDb] = {}

    def __iter__(self) -> Iterator[LocalDb]:
        return iter(list(self._open.values()))

    def get_open(self, tenant: TenantId) -> LocalDb | None:
        """Return a tenant's database if it is open."""
        return self._open.get(tenant)

    async def get(self, tenant: TenantId) -> LocalDb | None:
        """Return a tenant's database if it exists. Another process may have created it."""
        if found := self._open.get(tenant):
            return found
        return (
            await self.get_or_create(tenant)
            if (self._folder / tenant_folder_name(tenant) / DATABASE).exists()
            else None
        )

    async def prepare(self) -> None:
        """Create the folder, and open all databases in it."""
        with translate_errors(f"cannot use {self._folder}"):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        known = {local_db.folder for local_db in self}
        for tenant in await to_thread.run_sync(list_new_tenants, self._folder, known):
            await self.get_or_create(tenant)

    async def get_or_create(self, tenant: TenantId) -> LocalDb:
        """Return a tenant's database, creating it if missing."""
        if found := self._open.get(tenant):
            return found
        local_db = LocalDb(self._folder / tenant_folder_name(tenant), tenant, self._limiter)
        await to_thread.run_sync(local_db.prepare)
        # Another caller may have opened it meanwhile.
        opened = self._open.setdefault(tenant, local_db)
        if opened is not local_db:
            await to_thread.run_sync(local_db.close)
            return opened
        await local_db.reload()
        return local_db

    async def list_tenants(self) -> Sequence[TenantInfo]:
        """Return the sizes of all tenants, as far as they are known here."""
        with translate_errors(f"cannot read {self._folder}"):
            return await to_thread.run_sync(collect_tenant_info, self._folder)

    async def close(self) -> None:
        """Close all databases."""
        for local_db in self:
            await to_thread.run_sync(local_db.close)
