"""Mirror of R2R's collections and documents in the catalogue.

Changes made here are stored at once. Changes by others are synced every `SYNC_SECONDS`, for collections in use. Until
then, and while R2R is down, the catalogue is used as it is.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from time import monotonic

import anyio

from refdesk.calls import TenantId
from refdesk.engines.base import CollectionInfo
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.catalogue import LocalDb, LocalDbPool
from refdesk.engines.r2r.client import R2RClient
from refdesk.engines.r2r.http import NOT_FOUND
from refdesk.engines.r2r.schemas import RemoteCollection, RemoteDocument, decode_name, encode_description, encode_name
from refdesk.engines.storage import records
from refdesk.errors import DependencyError, EngineError, R2RRefused, RefdeskError
from refdesk.resilience.single_flight import SingleFlight
from refdesk.telemetry.log import Log

SYNC_SECONDS = 30.0
"""Sync interval, which is the maximum delay until changes by others are visible."""

PLANNED_SECONDS = 2.0
"""Sync interval while documents wait for a collection that R2R, which was down, doesn't have yet."""

WATCH_SECONDS = 600.0
"""Time after its last use during which a collection's documents are synced."""

MAX_LISTED = 100_000
"""Maximum number of documents listed per collection. Nobody reads longer lists, and search doesn't need them."""

MAX_CONCURRENT_COUNTS = 4
"""Concurrent requests to count documents. R2R handles nothing else during one."""


class Mirror:
    """Sync of R2R's collections and documents for all tenants."""

    def __init__(self, client: R2RClient, local_dbs: LocalDbPool, log: Log) -> None:
        self._client = client
        self._local_dbs = local_dbs
        self._log = log
        self._single_flight: SingleFlight[str, None] = SingleFlight()
        self._collections_lock = asyncio.Lock()
        self._is_synced = False
        self._listed: set[str] = set()
        """R2R ids of collections whose documents are in the catalogue."""
        self._counted: dict[str, float] = {}
        self._watched: dict[str, float] = {}

    async def run(self) -> None:
        """Sync forever at an interval."""
        while True:
            await self.sync()
            has_planned = any(len(local_db.uuids) < len(local_db.collections) for local_db in self._local_dbs)
            await anyio.sleep(PLANNED_SECONDS if has_planned else SYNC_SECONDS)

    async def sync(self) -> None:
        """Sync with R2R. Failures are logged and retried at the next interval."""
        try:
            for local_db in self._local_dbs:
                await self._reload_if_changed(local_db)
            await self.sync_collections()
            now = monotonic()
            self._watched = {uuid: at for uuid, at in self._watched.items() if now - at < WATCH_SECONDS}
            # Unused collections aren't synced, and are listed again on their next use.
            self._listed &= self._watched.keys()
            for uuid in list(self._watched):
                for local_db in self._local_dbs:
                    if uuid in local_db.uuids.values():
                        await self._single_flight.run(uuid, partial(self._list_collection, local_db, uuid))
        except RefdeskError as error:
            self._log.events.warning("r2r.not_seen", detail=error.detail)
        except Exception as error:  # noqa: BLE001  the sync loop must survive any failure
            self._log.events.error("r2r.not_seen", detail=f"unexpected error: {error!r}")

    async def get_local_db(self, tenant: TenantId) -> LocalDb | None:
        """Return a tenant's database after the first sync, or None if it has nothing."""
        local_db = await self._local_dbs.get(tenant)
        if not self._is_synced and (local_db is None or not local_db.collections):
            await self.sync_collections()
            local_db = await self._local_dbs.get(tenant)
        if local_db is not None:
            await self._reload_if_changed(local_db)
        return local_db

    async def _reload_if_changed(self, local_db: LocalDb) -> None:
        """Reload data that another process has changed."""
        if local_db.is_behind:
            await local_db.refresh()
            self._local_dbs.notify(local_db.tenant)

    async def sync_collections(self) -> None:
        """Sync the list of collections."""
        await self._single_flight.run("collections", self._fetch_collections)

    async def _fetch_collections(self) -> None:
        async with self._collections_lock:
            remote: dict[TenantId, list[RemoteCollection]] = defaultdict(list)
            for each in await self._client.collections():
                remote[decode_name(each.name)[0]].append(each)
            remote_ids = {each.id for entries in remote.values() for each in entries}
            self._counted = {uuid: at for uuid, at in self._counted.items() if uuid in remote_ids}
            for tenant in {*remote, *(local_db.tenant for local_db in self._local_dbs)}:
                local_db = await self._local_dbs.get_or_create(tenant)
                await self._update_tenant(local_db, remote[tenant])
                await self._create_planned(local_db)
        self._is_synced = True

    async def _create_planned(self, local_db: LocalDb) -> None:
        """Create the collections in R2R that were made while it was down."""
        for name, description, version in await local_db.run(catalogue.list_planned):
            made = await self._client.create_collection(
                encode_name(local_db.tenant, name), encode_description(description, version)
            )
            if made is not None:
                await local_db.run(catalogue.update_collections, [made])
                await self.reload(local_db)

    async def _update_tenant(self, local_db: LocalDb, remote: Sequence[RemoteCollection]) -> None:
        remote_ids = {each.id for each in remote}
        changed = await local_db.run(catalogue.update_collections, remote)
        _, uuids = await local_db.run(catalogue.list_collections)
        for uuid in set(uuids.values()) - remote_ids:
            # Another process may have created it since the list was requested.
            if not await self._client.has_collection(uuid):
                await local_db.run(catalogue.forget_collection, uuid)
                changed = True
        await self.reload(local_db, changed=changed)

    async def reload(self, local_db: LocalDb, *, changed: bool = True) -> None:
        """Reload the database, and notify the listener if it changed."""
        await local_db.refresh()
        if changed:
            local_db.mark_changed()
            self._local_dbs.notify(local_db.tenant)

    async def count_documents(self, local_db: LocalDb) -> None:
        """Count the documents of collections that haven't been listed yet."""
        slots = anyio.Semaphore(MAX_CONCURRENT_COUNTS)

        async def count(uuid: str) -> None:
            async with slots:
                total = await self._client.count_documents(uuid)
            if total is None:
                return
            await local_db.run(catalogue.set_total, uuid, total)
            self._counted[uuid] = monotonic()

        fresh = monotonic() - SYNC_SECONDS
        unlisted = [
            uuid
            for uuid in local_db.uuids.values()
            if uuid not in self._listed and self._counted.get(uuid, fresh) <= fresh
        ]
        # Not a task group, which would wrap R2R's errors. One failure doesn't cancel the others.
        for outcome in await asyncio.gather(*map(count, unlisted), return_exceptions=True):
            if outcome is not None:
                raise outcome
        await self.reload(local_db, changed=False)

    async def list_documents(self, local_db: LocalDb, slugs: Sequence[str]) -> None:
        """Ensure that the catalogue contains the documents of these collections."""
        for slug in slugs:
            uuid = local_db.uuids.get(slug)
            if uuid is None:
                continue
            self._watched[uuid] = monotonic()
            if uuid not in self._listed:
                await self._single_flight.run(uuid, partial(self._list_collection, local_db, uuid))

    def watch(self, uuids: Iterable[str]) -> None:
        """Sync the documents of these collections, because answers are based on them."""
        now = monotonic()
        self._watched.update((uuid, now) for uuid in uuids)

    async def _list_collection(self, local_db: LocalDb, uuid: str) -> None:
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        remote: list[RemoteDocument] = []
        try:
            async for each in self._client.iterate_documents(uuid):
                remote.append(each)
                if len(remote) >= MAX_LISTED:
                    break
        except R2RRefused as error:
            if error.status == NOT_FOUND:
                return  # the collection is gone; the next sync removes it
            raise
        changed = await local_db.run(catalogue.update_documents, uuid, remote, since)
        self._listed.add(uuid)
        await self.reload(local_db, changed=changed)

    async def get_or_create_collection(
        self, tenant: TenantId, name: str, description: str, version: str
    ) -> CollectionInfo:
        """Return the collection with this name or id, creating or updating it in R2R.

        While R2R is down, a new one is made here, and in R2R as soon as it is back: ingestion doesn't wait for R2R.
        """
        try:
            return await self._get_or_create_remote(tenant, name, description, version)
        except DependencyError as error:
            if not error.retryable:
                raise
        local_db = await self._local_dbs.get_or_create(tenant)
        await local_db.run(records.create_collection, name, description, version)
        await self.reload(local_db)
        found = _find_collection(local_db, name)
        assert found is not None
        return found

    async def _get_or_create_remote(
        self, tenant: TenantId, name: str, description: str, version: str
    ) -> CollectionInfo:
        local_db = await self.get_local_db(tenant)
        found = _find_collection(local_db, name) if local_db else None
        if local_db is None or found is None:
            await self._create_collection(tenant, name, description, version)
            local_db = await self._local_dbs.get_or_create(tenant)
            found = _find_collection(local_db, name)
        elif found.id not in local_db.uuids:
            await self.sync_collections()
        elif (description or found.description, version or found.version) != (found.description, found.version):
            marked = encode_description(description or found.description, version or found.version)
            await self._client.describe_collection(local_db.uuids[found.id], marked)
            await self.sync_collections()
            found = _find_collection(local_db, name)
        if found is None:
            raise EngineError(f"R2R has a collection {name!r} that the service account does not see.")
        return found

    async def _create_collection(self, tenant: TenantId, name: str, description: str, version: str) -> None:
        """Create a collection. One created concurrently by others is used instead."""
        async with self._collections_lock:
            local_db = self._local_dbs.get_open(tenant)
            if local_db is not None and _find_collection(local_db, name):
                return
            made = await self._client.create_collection(
                encode_name(tenant, name), encode_description(description, version)
            )
            if made is not None:
                local_db = await self._local_dbs.get_or_create(tenant)
                await local_db.run(catalogue.update_collections, [made])
                self._listed.add(made.id)
                await self.reload(local_db)
                return
        await self.sync_collections()

    async def drop_collection(self, local_db: LocalDb, slug: str) -> None:
        """Delete a collection with its documents, here and in R2R."""
        async with self._collections_lock:
            uuid = local_db.uuids.get(slug)
            if uuid is not None:
                await self._list_collection(local_db, uuid)
            await local_db.run(catalogue.drop_collection, slug)
            if uuid is not None:
                await self._client.delete_collection(uuid)
            await self.reload(local_db)


def _find_collection(local_db: LocalDb, name: str) -> CollectionInfo | None:
    by_id = next((id for id, uuid in local_db.uuids.items() if uuid == name), name)
    return next((entry for entry in local_db.collections if entry.name == name or entry.id == by_id), None)
