"""Keeps the catalogue like R2R: its collections, and the documents in those that somebody has asked about.

What is changed from here is noted at once. What others change at R2R is seen at the next look, which comes every
`LOOK_SECONDS`; till then the catalogue answers as it is, also while R2R is down.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

import anyio

from refdesk.calls import TenantId
from refdesk.engines.base import CollectionInfo
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.client import R2RClient
from refdesk.engines.r2r.failures import NOT_THERE, Tolerating
from refdesk.engines.r2r.local_db import Record, Records
from refdesk.engines.r2r.naming import marked_description, marked_name, read_name
from refdesk.engines.r2r.schemas import RemoteCollection, RemoteDocument
from refdesk.errors import EngineError, RefdeskError
from refdesk.resilience.single_flight import Flights
from refdesk.telemetry import Log

LOOK_SECONDS = 30.0
"""Between two looks at R2R: as late as what others have changed there may be seen."""

WANTED_SECONDS = 600.0
"""As long after the last question about a collection, its documents are still looked at."""

MAX_LISTED = 100_000
"""Documents of one collection that are listed; of more, nobody reads a list, and a search needs none."""

COUNTED_AT_ONCE = 4
"""Collections whose documents are being counted; R2R counts one while it does nothing else."""

Told = Callable[[TenantId], None]


class Mirror:
    """What is known of R2R's collections and documents, for all tenants."""

    def __init__(
        self, client: R2RClient, records: Records, log: Log, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._records = records
        self._log = log
        self._now = now
        self._flights: Flights[str, None] = Flights()
        self._changing = asyncio.Lock()
        self._looked_at: float | None = None
        self._listed: dict[str, float] = {}
        """When each collection's documents were last listed, by its id at R2R."""
        self._counted: dict[str, float] = {}
        self._wanted: dict[str, float] = {}
        self._told: Told = lambda _: None

    def listen(self, told: Told) -> None:
        """Have `told` called with a tenant whose collections or documents are found to be different."""
        self._told = told

    async def run(self) -> None:
        """Look every now and then, for ever."""
        while True:
            await self.look_once()
            await anyio.sleep(LOOK_SECONDS)

    async def look_once(self) -> None:
        """See what is new at R2R; a server that is down is looked at again later."""
        try:
            for record in self._records:
                await self._catch_up(record)
            await self.look()
            for uuid in self._wanted_now():
                await self._list_again(uuid)
        except RefdeskError as error:
            self._log.events.warning("r2r.not_seen", detail=error.detail)
        except Exception as error:  # noqa: BLE001  the loop that supervises is the place for it
            self._log.events.error("r2r.not_seen", detail=f"an unforeseen failure: {error!r}")

    async def record(self, tenant: TenantId) -> Record | None:
        """A tenant's record once R2R has been looked at; None for a tenant that has nothing."""
        record = await self._records.find(tenant)
        if self._looked_at is None and (record is None or not record.sets):
            await self.look()
            record = await self._records.find(tenant)
        if record is not None:
            await self._catch_up(record)
        return record

    async def _catch_up(self, record: Record) -> None:
        """See what another process here has noted."""
        if record.is_behind:
            await record.reread()
            self._told(record.tenant)

    async def look(self) -> None:
        """See which collections there are at R2R now."""
        await self._flights.run("collections", self._look)

    async def _look(self) -> None:
        async with self._changing:
            seen: dict[TenantId, list[RemoteCollection]] = defaultdict(list)
            for each in await self._client.collections():
                seen[read_name(each.name)[0]].append(each)
            there = {each.id for entries in seen.values() for each in entries}
            self._counted = {uuid: at for uuid, at in self._counted.items() if uuid in there}
            for tenant in {*seen, *(record.tenant for record in self._records)}:
                await self._see(await self._records.make(tenant), seen[tenant])
        self._looked_at = self._now()

    async def _see(self, record: Record, seen: Sequence[RemoteCollection]) -> None:
        there = {each.id for each in seen}
        changed = await record.run(lambda database: catalogue.see_collections(database, seen))
        _, uuids = await record.run(catalogue.collections)
        for uuid in set(uuids.values()) - there:
            # Made by another process since the list was asked for, perhaps.
            if not await self._client.has_collection(uuid):
                await record.run(partial(catalogue.forget_collection, uuid=uuid))
                changed = True
        await self.reread(record, changed=changed)

    async def reread(self, record: Record, *, changed: bool = True) -> None:
        """Have in memory what the record says now, and tell of it when it is something else."""
        await record.reread()
        if changed:
            record.touch()
            self._told(record.tenant)

    async def count(self, record: Record) -> None:
        """Count the documents of the collections that were not listed yet."""
        turns = anyio.Semaphore(COUNTED_AT_ONCE)

        async def count(uuid: str) -> None:
            async with turns:
                total = await self._client.count_documents(uuid)
            if total is None:
                return
            await record.run(lambda database: catalogue.note_total(database, uuid, total))
            self._counted[uuid] = self._now()

        fresh = self._now() - LOOK_SECONDS
        unlisted = [
            uuid
            for uuid in record.uuids.values()
            if uuid not in self._listed and self._counted.get(uuid, fresh) <= fresh
        ]
        # No task group, which would wrap up what R2R says; one that fails lets the others end.
        for outcome in await asyncio.gather(*map(count, unlisted), return_exceptions=True):
            if outcome is not None:
                raise outcome
        await self.reread(record, changed=False)

    async def list_documents(self, record: Record, slugs: Sequence[str]) -> None:
        """Have the catalogue hold the documents of these collections, if it does not yet."""
        for slug in slugs:
            uuid = record.uuids.get(slug)
            if uuid is None:
                continue
            self._wanted[uuid] = self._now()
            if uuid not in self._listed:
                await self._flights.run(uuid, partial(self._list, record, uuid))

    def keep_watching(self, uuids: Iterable[str]) -> None:
        """Answers are made from these collections: what others change in them is to be seen at the next look."""
        now = self._now()
        self._wanted.update((uuid, now) for uuid in uuids)

    async def _list_again(self, uuid: str) -> None:
        for record in self._records:
            if uuid in record.uuids.values():
                await self._flights.run(uuid, partial(self._list, record, uuid))

    async def _list(self, record: Record, uuid: str) -> None:
        since = datetime.now(UTC).isoformat(timespec="milliseconds")
        seen = await self._seen_in(uuid)
        if seen is None:
            return  # the collection is gone, which the next look sees
        changed = await record.run(lambda database: catalogue.see_documents(database, uuid, seen, since))
        self._listed[uuid] = self._now()
        await self.reread(record, changed=changed)

    async def _seen_in(self, uuid: str) -> list[RemoteDocument] | None:
        seen: list[RemoteDocument] = []
        with Tolerating(NOT_THERE):
            async for each in self._client.documents_of(uuid):
                seen.append(each)
                if len(seen) >= MAX_LISTED:
                    break
            return seen
        return None

    def _wanted_now(self) -> list[str]:
        now = self._now()
        self._wanted = {uuid: at for uuid, at in self._wanted.items() if now - at < WANTED_SECONDS}
        # What nobody asks about is not looked at, and listed anew when somebody does.
        self._listed = {uuid: at for uuid, at in self._listed.items() if uuid in self._wanted}
        return list(self._wanted)

    async def make_collection(self, tenant: TenantId, name: str, description: str, version: str) -> CollectionInfo:
        """The collection of this name or id, made at R2R when it is not there; what is given anew is kept."""
        record = await self.record(tenant)
        found = _named(record, name) if record else None
        if record is None or found is None:
            await self._create(tenant, name, description, version)
            record = await self._records.make(tenant)
            found = _named(record, name)
        elif (description or found.description, version or found.version) != (found.description, found.version):
            marked = marked_description(description or found.description, version or found.version)
            await self._client.describe_collection(record.uuids[found.id], marked)
            await self.look()
            found = _named(record, name)
        if found is None:
            raise EngineError(f"R2R has a collection {name!r} that the service account does not see.")
        return found

    async def _create(self, tenant: TenantId, name: str, description: str, version: str) -> None:
        """Make a collection; when others make it at the same time, theirs is as good."""
        async with self._changing:
            record = self._records.at_hand(tenant)
            if record is not None and _named(record, name):
                return
            made = await self._client.create_collection(
                marked_name(tenant, name), marked_description(description, version)
            )
            if made is not None:
                record = await self._records.make(tenant)
                await record.run(lambda database: catalogue.see_collections(database, [made]))
                self._listed[made.id] = self._now()
                await self.reread(record)
                return
        await self.look()

    async def drop_collection(self, record: Record, slug: str) -> None:
        """Give up a collection with its documents, here and at R2R."""
        async with self._changing:
            uuid = record.uuids[slug]
            await self._list(record, uuid)
            await record.run(lambda database: catalogue.drop_collection(database, slug))
            await self._client.delete_collection(uuid)
            await self.reread(record)


def _named(record: Record, name: str) -> CollectionInfo | None:
    by_id = next((id for id, uuid in record.uuids.items() if uuid == name), name)
    return next((entry for entry in record.sets if entry.name == name or entry.id == by_id), None)
