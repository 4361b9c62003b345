"""One list of one server: what it was when the server was last asked for it, and when it is asked for again.

What is known stays until something better is known: a server that fails, or takes too long, takes nothing away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.list_cache import ListName
from refdesk.downstream.transports.base import Message
from refdesk.errors import METHOD_NOT_FOUND, DependencyError, RefdeskError, ServerRefused

logger = logging.getLogger(__name__)

COALESCE_SECONDS = 0.05
"""What a server says of a list within this time is one change."""

CALM_SECONDS = 2.0
FREE_CHANGES = 5
LONGEST_CALM_SECONDS = 30.0
"""A list that is said to have changed again within this time of the last look is looked at so often at once, and then
twice as late each time: who announces changes without end keeps neither us nor all clients busy with them."""

FIRST_RETRY_SECONDS = 5.0
LAST_RETRY_SECONDS = 300.0
"""How long a server that is there, but failed to give its list, is let alone: twice as long each time."""


SHOWN_CHARACTERS = 500
"""Of why a list could not be had, in which the server has a say."""


class _Words(NamedTuple):
    method: str
    member: str
    capability: str


_WORDS: dict[ListName, _Words] = {
    "tools": _Words("tools/list", "tools", "tools"),
    "prompts": _Words("prompts/list", "prompts", "prompts"),
    "resources": _Words("resources/list", "resources", "resources"),
    "templates": _Words("resources/templates/list", "resourceTemplates", "resources"),
}


class ServerList:
    """A list of a server, asked for when it is wanted; `taken` is called with every answer."""

    def __init__(
        self,
        name: ListName,
        connection: Connection,
        taken: Callable[[ServerList, bool], Awaitable[None]],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name: ListName = name
        self.entries: tuple[Message, ...] = ()
        self.error: str | None = None
        """Why the list is not what the server would say now."""
        self.was_asked = self.is_live = False
        """Whether the server was asked at all, and whether it gave this list when it was."""
        self._connection = connection
        self._taken = taken
        self._now = now
        self._asked_at = 0.0
        self._failures = 0
        self._changes = 0
        self._wanted = asyncio.Event()
        self._after = 0.0
        self._next: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def want(self, after: float = 0.0) -> None:
        """Have the list asked for, at once or after so many seconds."""
        if not self._wanted.is_set():
            self._after = after
            self._wanted.set()

    def changed(self) -> None:
        """The server says that the list is another now."""
        if self._wanted.is_set():
            return
        late = COALESCE_SECONDS * 2.0 ** max(0, self._changes - FREE_CHANGES)
        is_calm = self._now() >= self._asked_at + CALM_SECONDS + late
        self._changes = 1 if is_calm else min(self._changes + 1, 30)
        self.want(COALESCE_SECONDS if is_calm else min(late, LONGEST_CALM_SECONDS))

    def is_due(self, ttl_seconds: float) -> bool:
        """Whether what is known of it is too old, and the server is there to be asked; one asleep is not woken."""
        is_there = self._connection.settings.session == "short" or self._connection.status.state == "Running"
        return is_there and self._now() >= self._asked_at + ttl_seconds

    async def be_asked(self) -> None:
        """Have the list asked for, and wait until that is done."""
        self.want()
        await asyncio.shield(self._next)

    async def run(self) -> None:
        """Ask whenever the list is wanted, until this is cancelled."""
        while True:
            await self._until_wanted()
            await asyncio.sleep(self._after)
            self._wanted.clear()
            asked, self._next = self._next, asyncio.get_running_loop().create_future()
            try:
                await self._ask()
            except Exception:
                logger.exception("downstream.list_broken", extra={"fields": {"server": self._connection.name}})
                self.error, self.is_live, self._failures = "an error that nobody foresaw; the log says more", False, 1
            finally:
                asked.set_result(None)

    async def _until_wanted(self) -> None:
        """A server that failed is asked again by and by, as long as it is there."""
        while True:
            seconds = min(FIRST_RETRY_SECONDS * 2.0 ** (self._failures - 1), LAST_RETRY_SECONDS)
            try:
                async with asyncio.timeout(seconds if self._failures else None):
                    await self._wanted.wait()
                    return
            except TimeoutError:
                if self.is_due(0):
                    return

    async def _ask(self) -> None:
        greeting = self._connection.greeting
        if greeting is None and self.name != "tools":
            # Nothing is known of what a server with short sessions can do before the first of them.
            return
        words = _WORDS[self.name]
        if greeting is not None and not greeting.has(words.capability):
            await self._take(())
            return
        try:
            entries = await self._connection.list_all(words.method, words.member)
        except RefdeskError as error:
            await self._miss(error)
        else:
            await self._take(tuple(entries))

    async def _take(self, entries: tuple[Message, ...]) -> None:
        is_new = entries != self.entries
        self.entries, self.error, self.is_live, self._failures = entries, None, True, 0
        self._settle()
        await self._taken(self, is_new)

    async def _miss(self, error: RefdeskError) -> None:
        if isinstance(error, ServerRefused) and error.code == METHOD_NOT_FOUND:
            # Many that have resources have no templates, and say so only in this way.
            await self._take(())
            return
        self.error, self.is_live = error.detail[:SHOWN_CHARACTERS], False
        # A server that is there and says no will say so again; it has the time that any list has.
        self._failures = min(self._failures + 1, 30) if isinstance(error, DependencyError) else 0
        self._settle()
        fields = {"server": self._connection.name, "list": self.name, "why": error.detail[:200]}
        logger.warning("downstream.list_failed", extra={"fields": fields})
        await self._taken(self, False)

    def _settle(self) -> None:
        self.was_asked = True
        self._asked_at = self._now()
