"""Searches on their way into the history: written some at a time, so that no search waits for the disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import anyio

from refdesk.calls import TenantId, UserId
from refdesk.engines.embedded import records
from refdesk.engines.embedded.stores import Stores
from refdesk.engines.port import PastSearch

WRITE_SECONDS = 1.0
"""Between two writings."""

MAX_WAITING = 1000
"""Of one tenant's searches; more in a second are no history that anybody reads."""


class History:
    """What users have searched for."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._waiting: dict[TenantId, list[tuple[str, PastSearch]]] = defaultdict(list)

    def add(self, tenant: TenantId, user: UserId, search: PastSearch) -> None:
        """Keep a search, soon."""
        waiting = self._waiting[tenant]
        if len(waiting) < MAX_WAITING:
            waiting.append((user, search))

    async def of(self, tenant: TenantId, user: UserId, limit: int) -> Sequence[PastSearch]:
        """A user's last searches, newest first."""
        await self.write()
        store = await self._stores.find(tenant)
        return await store.run(lambda database: records.history(database, user, limit)) if store else []

    async def keep_writing(self) -> None:
        """Write what has come, again and again."""
        while True:
            await anyio.sleep(WRITE_SECONDS)
            await self.write()

    async def write(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, defaultdict(list)
        for tenant, searches in waiting.items():
            store = await self._stores.make(tenant)
            await store.run(lambda database, searches=searches: records.remember(database, searches))  # type: ignore[misc]
