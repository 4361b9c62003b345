"""What those who look at the console are told while they look: only that something changed, and how it is now.

Nothing is kept for a browser that reads slowly but which kinds of news there are, so that it misses what was in
between and never how things are in the end. While nobody looks, nobody asks the engine anything.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from refdesk.calls import CONSOLE, Caller, TenantId
from refdesk.console.activity import Activity
from refdesk.console.documents import shared_ids, status_wire
from refdesk.console.rights import Rights
from refdesk.console.servers import Servers
from refdesk.engines.base import SHARED, UNDER_WAY, DocumentStatus, Engine, Listing
from refdesk.errors import DependencyError, Overloaded, RateLimited

MOST_OF_ONE = 16
"""Streams of one caller: as many tabs. On a desk without keys all are one caller."""

MOST_OF_ALL = 128

SHORTEST_PAUSE_SECONDS = 0.25
"""Between two times that one stream is told something."""

PROGRESS_SECONDS = 0.5
"""Between two looks at documents that are on their way in; how far they are is told by nobody."""

QUIET_SECONDS = 1.0
"""The longest that a stream waits before its key is looked at again, and the servers: their states are in memory."""

RECENT = 50
UNDER_WAY_SHOWN = 200
"""Documents that one look takes in: those last changed, and those on their way in."""

REMEMBERED = 1000
"""Documents whose last state is kept in mind for a stream; of one that is forgotten, more is told than is new."""

Event = tuple[str, Mapping[str, Any]]


class Feed:
    """Everybody who looks."""

    def __init__(self, engine: Engine, servers: Servers, activity: Activity, rights: Rights) -> None:
        self._engine = engine
        self._servers = servers
        self._activity = activity
        self._rights = rights
        self._watches: set[Watch] = set()
        self._of_one: Counter[tuple[str, str]] = Counter()
        engine.listen(self._documents_changed)
        activity.listen(lambda: self._tell("metrics"))
        activity.watchers = lambda: len(self._watches)

    @contextmanager
    def watched_by(self, caller: Caller) -> Iterator[Watch]:
        """Tell a caller of changes, as long as the block lasts."""
        who = caller.tenant, caller.user
        if len(self._watches) >= MOST_OF_ALL:
            raise Overloaded("Too many look at the console at once; try again in a moment", retry_after=5.0)
        if self._of_one[who] >= MOST_OF_ONE:
            raise RateLimited(f"At most {MOST_OF_ONE} pages of one caller are told of changes", retry_after=5.0)
        watch = Watch(caller, self._engine, self._servers, self._activity, self._rights)
        self._watches.add(watch)
        self._of_one[who] += 1
        try:
            yield watch
        finally:
            self._watches.discard(watch)
            self._of_one[who] -= 1
            self._of_one += Counter()  # which drops those that have none left

    def drain(self) -> None:
        """End all of them."""
        for watch in self._watches:
            watch.end()

    def _documents_changed(self, tenant: TenantId) -> None:
        for watch in self._watches:
            if tenant in (watch.caller.tenant, SHARED):
                watch.tell("documents")

    def _tell(self, kind: str) -> None:
        for watch in self._watches:
            watch.tell(kind)


class Watch:
    """One who looks: what is new for them, by its kind."""

    def __init__(
        self,
        caller: Caller,
        engine: Engine,
        servers: Servers,
        activity: Activity,
        rights: Rights,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.caller = caller
        self._servers = servers
        self._activity = activity
        self._now = now
        self._sees_documents = rights.may(caller, f"{CONSOLE}documents")
        self._sees_servers = rights.may(caller, f"{CONSOLE}servers")
        self._arrivals = Arrivals(engine, caller.tenant)
        self._known_servers: Any = None
        self._news = {"documents", "metrics"}
        self._has_news = asyncio.Event()
        self._has_news.set()
        self._is_over = False
        self._told_at = 0.0

    def tell(self, *kinds: str) -> None:
        """There is something new of these kinds."""
        self._news.update(kinds)
        self._has_news.set()

    def end(self) -> None:
        """Tell nothing more."""
        self._is_over = True
        self._has_news.set()

    async def next(self) -> Sequence[Event] | None:
        """What has changed since the last time; nothing when it was quiet for a while, None at the end."""
        await self._pause()
        if self._is_over:
            return None
        kinds, self._news = self._news, set()
        self._has_news.clear()
        events = [*await self._of_documents(kinds), *self._of_servers(), *self._of_metrics(kinds)]
        self._told_at = self._now()
        return events

    async def _pause(self) -> None:
        """Until there is news, and not too soon after the last."""
        seconds = PROGRESS_SECONDS if self._sees_documents and self._arrivals.are_under_way else QUIET_SECONDS
        try:
            async with asyncio.timeout(seconds):
                await self._has_news.wait()
        except TimeoutError:
            pass  # which is as good as news: progress and states are looked at
        wait = self._told_at + SHORTEST_PAUSE_SECONDS - self._now()
        if wait > 0 and not self._is_over:
            await asyncio.sleep(wait)

    async def _of_documents(self, kinds: set[str]) -> list[Event]:
        if not self._sees_documents:
            return []
        try:
            changed = await (self._arrivals.look() if "documents" in kinds else self._arrivals.look_at_progress())
        except DependencyError:
            return []  # the page asks again, and is told why there is no answer
        events: list[Event] = [("documents", changed)] if changed else []
        return [*events, ("collections", {})] if self._arrivals.collections_changed() else events

    def _of_servers(self) -> list[Event]:
        if not self._sees_servers:
            return []
        now = self._servers.short(self.caller)
        if now == self._known_servers:
            return []
        self._known_servers = now
        return [("servers", {"servers": now})]

    def _of_metrics(self, kinds: set[str]) -> list[Event]:
        sample = self._activity.last(self.caller) if "metrics" in kinds else None
        return [("metrics", {"sample": sample})] if sample else []


class Arrivals:
    """Documents of one tenant as they come in: which of them are not as they were at the last look."""

    def __init__(self, engine: Engine, tenant: TenantId) -> None:
        self._engine = engine
        self._tenant = tenant
        self._known: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._under_way: tuple[str, ...] = ()
        self._counts = (-1, -1)
        self._sets = self._collections()

    @property
    def are_under_way(self) -> bool:
        """Whether any of them were, the last time."""
        return bool(self._under_way)

    async def look(self) -> dict[str, Any] | None:
        """What has changed in all, or None."""
        coming, queue = await self._listed(Listing(statuses=UNDER_WAY, limit=UNDER_WAY_SHOWN, newest_first=True))
        recent, total = await self._listed(Listing(limit=RECENT, newest_first=True))
        is_first = self._counts == (-1, -1)
        seen = {status.id: status for status in (*recent, *coming)}
        left = [id for id in self._under_way if id not in seen]
        finished = await self._engine.wait(self._tenant, left, seconds=0) if left else []
        self._under_way = tuple(status.id for status in coming)
        changed = self._changed([*seen.values(), *finished])
        if is_first:
            changed = [entry for entry in changed if entry["status"] in UNDER_WAY]
        counts, self._counts = self._counts, (queue, total)
        if not changed and counts == self._counts:
            return None
        return {"documents": changed, "queue": queue, "total": total}

    async def look_at_progress(self) -> dict[str, Any] | None:
        """What has changed of those that were under way; a document that has come in is reason to look at all."""
        if not self._under_way:
            return None
        statuses = await self._engine.wait(self._tenant, self._under_way, seconds=0)
        if len(statuses) < len(self._under_way) or any(status.status not in UNDER_WAY for status in statuses):
            return await self.look()
        changed = self._changed(statuses)
        queue, total = self._counts
        return {"documents": changed, "queue": queue, "total": total} if changed else None

    def collections_changed(self) -> bool:
        """Whether the collections are others than the last time, or hold more or less; from memory."""
        before, self._sets = self._sets, self._collections()
        return before != self._sets

    def _collections(self) -> list[tuple[str, ...]]:
        infos = self._engine.sets(self._tenant)
        return [(info.id, info.name, info.description, info.version, str(info.documents)) for info in infos]

    async def _listed(self, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        return await self._engine.documents(self._tenant, listing)

    def _changed(self, statuses: Sequence[DocumentStatus]) -> list[dict[str, Any]]:
        shared = shared_ids(self._engine, self._tenant)
        changed = []
        for status in statuses:
            entry = status_wire(status, shared)
            if self._known.get(status.id) != entry:
                changed.append(entry)
            self._known[status.id] = entry
            self._known.move_to_end(status.id)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return changed
