"""Local SQLite database of a tenant's R2R documents: queue and catalogue.

It shares its tables with the embedded engine, so that queueing, listing and filtering are the same, and adds R2R's ids.
R2R is the source of truth for ingested documents: the local copy can be rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

from anyio import CapacityLimiter

from refdesk.calls import TenantId
from refdesk.engines.base import CollectionInfo
from refdesk.engines.r2r import catalogue
from refdesk.engines.storage.databases import TenantDatabase, TenantPool, translate_errors

SCHEMA_VERSION = 3001
"""Version of the database schema: that of the shared tables times a thousand, plus that of the R2R tables."""

CHANGED_FILE = "changed"
"""File that is touched whenever search results may differ, as a signal to other processes."""

THREADS = 8
"""Threads for database access. SQLite allows one writer at a time anyway."""


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

    async def refresh(self) -> None:
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


class LocalDbPool(TenantPool[LocalDb]):
    """Databases of all tenants."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LocalDb, threads=THREADS)
