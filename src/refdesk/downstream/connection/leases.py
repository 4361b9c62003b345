"""Sessions for a server that asks its clients something and does not say which of them: each client has one to itself
while it waits for an answer, so that nobody is asked what another one's call is about.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from refdesk.downstream.connection.session_task import Door, Link, close_all
from refdesk.downstream.session import Session
from refdesk.errors import RefdeskError

T = TypeVar("T")

MOST_SESSIONS = 4
"""Sessions with one server, the one that is always kept among them; clients beyond that wait for their turn."""

SPARE_SECONDS = 60.0
"""How long a session is kept that nobody needs at the moment; opening one may mean to start a process."""


@dataclass(slots=True)
class _Lease:
    """Whose session it is, as long as anything is under way in it; the next time he has it again if it is free."""

    key: object
    calls: int = 0


class Leases:
    """Who has which session; an owner of all of them but the first."""

    def __init__(self, door: Door, now: Callable[[], float], spare_seconds: float) -> None:
        self._door = door
        self._now = now
        self._spare_seconds = spare_seconds
        self._leases: dict[Link, _Lease] = {}
        self._spare: set[Link] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def use(
        self, first: Callable[[], Awaitable[Link]], key: object, work: Callable[[Session], Awaitable[T]]
    ) -> T:
        """Do something for a client in a session that is nobody else's meanwhile; `first` is the one that is kept."""
        link = await self._take(first, key)
        try:
            return await link.use(work, self._now())
        finally:
            self._give_back(link)

    async def close(self) -> None:
        """End all sessions but the first, and wait for that."""
        await close_all(list(self._spare))

    async def _take(self, first: Callable[[], Awaitable[Link]], key: object) -> Link:
        while True:
            main = await first()
            self._leases = {link: lease for link, lease in self._leases.items() if not link.is_over}
            link = self._fitting(main, key)
            if link is None and len(self._spare) < MOST_SESSIONS - 1 and not self._is_being_opened(key):
                link = await self._open(key)
            if link is not None:
                lease = self._leases.setdefault(link, _Lease(key))
                lease.key, lease.calls = key, lease.calls + 1
                return link
            await self._turn()

    def _is_being_opened(self, key: object) -> bool:
        return any(lease.key == key and link.session is None for link, lease in self._leases.items())

    def _fitting(self, first: Link, key: object) -> Link | None:
        """A session that is his, or that was, or that nobody uses, in this order."""
        links = [first, *(link for link in self._spare if link.session is not None and not link.is_over)]
        his = [link for link in links if link in self._leases and self._leases[link].key == key]
        free = [link for link in links if link not in self._leases or not self._leases[link].calls]
        return next(iter([*his, *free]), None)

    async def _open(self, key: object) -> Link:
        link = self._door.new_link(self)
        self._spare.add(link)
        self._leases[link] = _Lease(key, 1)  # nobody else's, from the moment that it is there
        try:
            await self._door.open(link)
        except BaseException:
            self._drop(link)
            raise
        finally:
            self._call_all()
        self._leases.setdefault(link, _Lease(key)).calls = 0
        return link

    def _give_back(self, link: Link) -> None:
        lease = self._leases.get(link)
        if lease is not None:
            lease.calls -= 1
            if not lease.calls and link in self._spare:
                asyncio.get_running_loop().call_later(self._spare_seconds, self._end_unused, link, self._now())
        if lease is None or not lease.calls:
            self._call_next()

    def _end_unused(self, link: Link, since: float) -> None:
        """Close a session that nobody has used since then."""
        lease = self._leases.get(link)
        if lease is not None and not lease.calls and link.used_at <= since:
            self._drop(link)
            link.end()

    def _drop(self, link: Link) -> None:
        self._leases.pop(link, None)
        self._call_next()

    async def _turn(self) -> None:
        """Wait until a session may have become free."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._call_next()  # he was called off after his turn had come
            raise

    def _call_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _call_all(self) -> None:
        for _ in range(len(self._waiting)):
            self._call_next()

    # What a link calls.

    def opened(self, link: Link) -> None:
        """One more is open."""
        self._door.opened(link)

    def heard(self, link: Link, method: str, params: Mapping[str, Any]) -> None:
        """What changes is heard in the first session already; what is logged is not."""
        if method == "notifications/message":
            self._door.heard(link, method, params)

    def lost(self, link: Link, error: RefdeskError) -> None:
        """Whoever uses it is told by the answer that does not come."""
        self._drop(link)

    def closed(self, link: Link) -> None:
        """Nothing is left of it: there is room for another."""
        self._spare.discard(link)
        self._door.closed(link)
        self._call_next()
