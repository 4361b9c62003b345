"""A session that is kept: opened at once, opened again when it is lost, closed while nobody uses it.

One task, `run`, decides when there is one. Each session is opened and closed by a task of its own, so that one that
takes long to die does not keep the next one waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from refdesk.downstream.connection.backoff import Rest, Restarts
from refdesk.downstream.connection.leases import Leases
from refdesk.downstream.connection.session_task import AlsoLost, Door, Link, close_all
from refdesk.downstream.connection.status import RUNNING, STARTING, STOPPED, Status
from refdesk.downstream.connection.subscriptions import Standing
from refdesk.downstream.session import Session
from refdesk.downstream.transports.base import NotLetIn, NotTaken
from refdesk.errors import RefdeskError, ServerAway
from refdesk.resilience.dependency import Pause

logger = logging.getLogger(__name__)

T = TypeVar("T")

OVER = float("inf")
"""When a server can be called again that is no longer kept."""


class KeptSession:
    """The one session of a server that all callers use."""

    def __init__(
        self,
        door: Door,
        standing: Standing,
        *,
        now: Callable[[], float],
        pause: Pause,
        chance: Callable[[], float],
        spare_seconds: float,
    ) -> None:
        self.link: Link | None = None
        self.restarts = -1
        """How often it was opened again."""
        self._door = door
        self._now = now
        self._pause = pause
        self._chance = chance
        self._restarts = Restarts(door.settings.connect_tries)
        self._links: set[Link] = set()
        self._leases = Leases(door, now, spare_seconds)
        self._asks_anyone = False
        """Whether the server asks clients something and does not say which; what it once did it may do again."""
        self._waiting: set[asyncio.Future[Link]] = set()
        self._error: RefdeskError | None = None
        self._due_at: float | None = 0.0
        """When a session is opened next by itself; never while it is None."""
        self._callable_at = 0.0
        """From when on a call has it opened."""
        self._is_wanted = False
        self._wake = asyncio.Event()
        self._standing = standing

    async def run(self) -> None:
        """Keep a session until this is cancelled; then nothing is left of it."""
        try:
            while True:
                await self._until_due()
                await self._hold(await self._open())
        finally:
            await self._close()

    async def operate(self, work: Callable[[Session], Awaitable[T]], key: object = None) -> T:
        """Do something in the session that is there, or in the one that is being opened; `key` is of the client."""
        link = self.link or await self._next()
        self._asks_anyone = self._asks_anyone or link.peer.asks_anyone
        if self._asks_anyone and key is not None:
            return await self._leases.use(self._present, key, work)
        try:
            return await link.use(work, self._now())
        except (NotTaken, NotLetIn) as error:
            if not self._give_up(link, error):
                raise
        except ServerAway as error:
            if error.retry_after is None:  # whoever says when to come back is there
                self.doubt()
            raise
        again = self.link or await self._next()
        return await again.use(work, self._now())

    async def _present(self) -> Link:
        return self.link or await self._next()

    def doubt(self) -> None:
        """Somebody was let down."""
        if self.link is not None:
            self.link.doubt(self._door.connect_seconds)

    def refuse_while_away(self) -> None:
        """Raise why there is no session, when waiting for one would be in vain for now."""
        wait = self._callable_at - self._now()
        if self.link is None and self._error is not None and wait > 0:
            raise ServerAway(self._error.detail, retry_after=wait if wait < OVER else None)

    async def restart(self) -> None:
        """Close the session and open another one, whatever it stood like; wait for how that turns out."""
        if self._callable_at == OVER:
            self.refuse_while_away()
        old, self.link = self.link, None
        self._door.stands(STARTING)
        if old is not None:
            old.end()
            await old.is_closed()
        await self._leases.close()
        self._restarts.was_of_use()
        self._due_at = self._callable_at = self._now()
        try:
            await self._next()
        except (RefdeskError, AlsoLost) as error:
            logger.info("downstream.restart_failed", extra={"fields": {"server": self._door.name, "why": str(error)}})

    # What the link calls.

    def heard(self, link: Link, method: str, params: Mapping[str, Any]) -> None:
        """Passed on, whichever session it came in."""
        self._door.heard(link, method, params)

    def opened(self, link: Link) -> None:
        """There is a session: whoever waits for it has it."""
        self.link = link
        self._is_wanted = False
        self.restarts += 1
        self._door.opened(link)
        link.used_at = self._now()
        if self._error is not None:
            self._door.is_back()
        self._error = None
        self._door.stands(RUNNING)
        link.uphold(self._standing, self._pause)
        for waiter in self._take_waiters():
            waiter.set_result(link)

    def lost(self, link: Link, error: RefdeskError) -> None:
        """The session is over: what follows is decided here and now, so that whoever calls next knows it."""
        if self.link is not link:
            return
        self.link = None
        if link.is_of_use:
            rest = self._restarts.after_use(self._now())
        else:
            rest = self._restarts.after_loss(self._now(), self._chance())
        if self._restarts.failures > 1:
            self._be_away(error, rest)
        else:
            self._rest(rest)
            self._door.stands(STARTING)
        self._wake.set()

    def closed(self, link: Link) -> None:
        """Nothing is left of it."""
        self._links.discard(link)
        self._door.closed(link)

    # The life of it.

    def _give_up(self, link: Link, error: RefdeskError) -> bool:
        """Have another session than this one; not for the sake of one caller while others wait for its answers."""
        if self.link is link:
            if link.users and isinstance(error, NotLetIn):
                return False
            self.lost(link, error)
            link.end()
        return True

    async def _until_due(self) -> None:
        while not self._is_due():
            self._wake.clear()
            await self._wait(None if self._due_at is None else self._due_at - self._now())

    def _is_due(self) -> bool:
        now = self._now()
        if self._is_wanted and now >= self._callable_at:
            return True
        return self._due_at is not None and now >= self._due_at

    async def _open(self) -> Link:
        self._is_wanted = False
        self._door.stands(STARTING)
        self._restarts.began(self._now())
        link = self._door.new_link(self)
        self._links.add(link)
        try:
            await self._door.open(link)
        except RefdeskError as error:
            self._be_away(error, self._restarts.after_failure(self._now(), self._chance()))
        return link

    async def _hold(self, link: Link) -> None:
        """Until it is lost or restarted, or nobody has used it for long."""
        while self.link is link:
            self._wake.clear()
            left = self._idle_left(link)
            if left is None or left > 0:
                await self._wait(left)
            elif link.users or self._standing.has_subscriptions:
                link.used_at = self._now()
            else:
                self.link, self._due_at, self._callable_at = None, None, 0.0
                self._door.stands(STOPPED)
                link.end()

    def _idle_left(self, link: Link) -> float | None:
        """How long it may yet be unused; None means for ever."""
        bound = self._door.settings.idle_seconds
        return link.used_at + bound - self._now() if bound else None

    def _rest(self, rest: Rest) -> None:
        now = self._now()
        self._due_at, self._callable_at = now + rest.seconds, now + rest.least

    def _be_away(self, error: RefdeskError, rest: Rest) -> None:
        """There is no session, nor will there be one soon: nobody waits for it."""
        self._rest(rest)
        self._is_wanted = False
        self._error = error
        self._door.stands(Status("Error", error.detail))
        for number, waiter in enumerate(self._take_waiters()):
            reason = type(error)(error.detail)
            waiter.set_exception(AlsoLost(reason) if number else reason)

    async def _close(self) -> None:
        """End all sessions and wait for that; told to hurry, it does."""
        self.link = None
        self._error, self._callable_at = ServerAway(f"The server {self._door.name!r} is no longer used"), OVER
        self._door.stands(STOPPED)
        for waiter in self._take_waiters():
            waiter.set_exception(ServerAway(self._error.detail))
        try:
            await self._leases.close()
        finally:
            await close_all(list(self._links))

    # Waiting.

    async def _next(self) -> Link:
        """The session that is being opened, or that is opened because of this."""
        waiter: asyncio.Future[Link] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        self._is_wanted = True
        self._wake.set()
        try:
            return await waiter
        finally:
            self._waiting.discard(waiter)

    def _take_waiters(self) -> list[asyncio.Future[Link]]:
        waiters = [waiter for waiter in self._waiting if not waiter.done()]
        self._waiting.clear()
        return waiters

    async def _wait(self, seconds: float | None) -> None:
        """Until there is something to decide, or for so long."""
        if seconds is None:
            await self._wake.wait()
            return
        waits = {asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(self._pause(max(0.0, seconds)))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
