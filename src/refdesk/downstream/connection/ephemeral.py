"""Short sessions: connect, do one thing, disconnect. Dear, and only for servers that must not be kept open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from refdesk.downstream.connection.session_task import Door, Link, close_all
from refdesk.downstream.connection.status import RUNNING, STARTING, STOPPED, Status
from refdesk.downstream.session import Session
from refdesk.errors import RefdeskError, ServerAway

T = TypeVar("T")

SHORT_SESSIONS = 8
"""Short sessions of one server at a time, those that are still being closed among them: each may be a process."""


class ShortSessions:
    """A session of its own for each operation; it is closed behind the back of whoever has the answer already."""

    restarts = 0
    """None is ever opened again."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._links: set[Link] = set()
        self._places = asyncio.Semaphore(SHORT_SESSIONS)
        self._is_over = False
        self._has_failed = False

    async def run(self) -> None:
        """Until this is cancelled; then no session is left."""
        try:
            await asyncio.Event().wait()
        finally:
            self._is_over = True
            await close_all(list(self._links))
            self._door.stands(STOPPED)

    async def operate(self, work: Callable[[Session], Awaitable[T]], key: object = None) -> T:
        """Do something in a session of its own, whichever client it is for."""
        await self._places.acquire()
        if self._is_over:
            self._places.release()
            self.refuse_while_away()
        link = self._door.new_link(self)
        self._links.add(link)
        try:
            await self._open(link)
            return await link.use(work, time.monotonic())
        finally:
            link.end()

    def refuse_while_away(self) -> None:
        """Raise when there will be no session any more."""
        if self._is_over:
            raise ServerAway(f"The server {self._door.name!r} is no longer used")

    def doubt(self) -> None:
        """Somebody was let down, by a session that is gone already."""

    async def restart(self) -> None:
        """Nothing is kept that could be begun anew."""

    async def _open(self, link: Link) -> None:
        self._door.stands(STARTING)
        try:
            await self._door.open(link)
        except RefdeskError as error:
            self._has_failed = True
            self._door.stands(Status("Error", error.detail))
            raise

    # What a link calls.

    def opened(self, link: Link) -> None:
        """One more is open."""
        self._door.opened(link)
        if self._has_failed:
            self._door.is_back()
        self._has_failed = False
        self._door.stands(RUNNING)

    def heard(self, link: Link, method: str, params: Mapping[str, Any]) -> None:
        """Passed on, whichever session it came in."""
        self._door.heard(link, method, params)

    def lost(self, link: Link, error: RefdeskError) -> None:
        """Whoever uses it is told by the answer that does not come."""

    def closed(self, link: Link) -> None:
        """Nothing is left of it: there is room for another."""
        self._links.discard(link)
        self._places.release()
        self._door.closed(link)
        if not self._links and not self._has_failed:
            self._door.stands(STOPPED)
