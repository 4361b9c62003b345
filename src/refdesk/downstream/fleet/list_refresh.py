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

QUIET_SECONDS = 2.0
FREE_CHANGES = 5
MAX_PENALTY_SECONDS = 30.0
"""A list that is said to have changed again within this time of the last look is looked at so often at once, and then
twice as late each time: who announces changes without end keeps neither us nor all clients busy with them."""

FIRST_RETRY_SECONDS = 5.0
LAST_RETRY_SECONDS = 300.0
"""How long a server that is there, but failed to give its list, is let alone: twice as long each time."""


MAX_ERROR_CHARACTERS = 500
"""Of why a list could not be had, in which the server has a say."""


class _ListMethod(NamedTuple):
    method: str
    member: str
    capability: str


_LIST_METHODS: dict[ListName, _ListMethod] = {
    "tools": _ListMethod("tools/list", "tools", "tools"),
    "prompts": _ListMethod("prompts/list", "prompts", "prompts"),
    "resources": _ListMethod("resources/list", "resources", "resources"),
    "templates": _ListMethod("resources/templates/list", "resourceTemplates", "resources"),
}


class ServerList:
    """A list of a server, asked for when it is wanted; `taken` is called with every answer."""

    def __init__(
        self,
        name: ListName,
        connection: Connection,
        on_result: Callable[[ServerList, bool], Awaitable[None]],
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
        self._on_result = on_result
        self._now = now
        self._asked_at = 0.0
        self._failures = 0
        self._changes = 0
        self._refresh_requested = asyncio.Event()
        self._delay = 0.0
        self._next_result: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def request_refresh(self, delay: float = 0.0) -> None:
        """Have the list asked for, at once or after so many seconds."""
        if not self._refresh_requested.is_set():
            self._delay = delay
            self._refresh_requested.set()

    def on_list_changed(self) -> None:
        """The server says that the list is another now."""
        if self._refresh_requested.is_set():
            return
        penalty = COALESCE_SECONDS * 2.0 ** max(0, self._changes - FREE_CHANGES)
        is_quiet = self._now() >= self._asked_at + QUIET_SECONDS + penalty
        self._changes = 1 if is_quiet else min(self._changes + 1, 30)
        self.request_refresh(COALESCE_SECONDS if is_quiet else min(penalty, MAX_PENALTY_SECONDS))

    def is_due(self, ttl_seconds: float) -> bool:
        """Whether what is known of it is too old, and the server is there to be asked; one asleep is not woken."""
        is_there = self._connection.settings.session == "short" or self._connection.status.state == "Running"
        return is_there and self._now() >= self._asked_at + ttl_seconds

    async def refresh(self) -> None:
        """Have the list asked for, and wait until that is done."""
        self.request_refresh()
        await asyncio.shield(self._next_result)

    async def run(self) -> None:
        """Ask whenever the list is wanted, until this is cancelled."""
        while True:
            await self._wait_for_request()
            await asyncio.sleep(self._delay)
            self._refresh_requested.clear()
            result, self._next_result = self._next_result, asyncio.get_running_loop().create_future()
            try:
                await self._fetch()
            except Exception:
                logger.exception("downstream.list_broken", extra={"fields": {"server": self._connection.name}})
                self.error, self.is_live, self._failures = "an error that nobody foresaw; the log says more", False, 1
            finally:
                result.set_result(None)

    async def _wait_for_request(self) -> None:
        """A server that failed is asked again by and by, as long as it is there."""
        while True:
            seconds = min(FIRST_RETRY_SECONDS * 2.0 ** (self._failures - 1), LAST_RETRY_SECONDS)
            try:
                async with asyncio.timeout(seconds if self._failures else None):
                    await self._refresh_requested.wait()
                    return
            except TimeoutError:
                if self.is_due(0):
                    return

    async def _fetch(self) -> None:
        greeting = self._connection.greeting
        if greeting is None and self.name != "tools":
            # Nothing is known of what a server with short sessions can do before the first of them.
            return
        list_method = _LIST_METHODS[self.name]
        if greeting is not None and not greeting.has(list_method.capability):
            await self._record_entries(())
            return
        try:
            entries = await self._connection.list_all(list_method.method, list_method.member)
        except RefdeskError as error:
            await self._record_failure(error)
        else:
            await self._record_entries(tuple(entries))

    async def _record_entries(self, entries: tuple[Message, ...]) -> None:
        is_new = entries != self.entries
        self.entries, self.error, self.is_live, self._failures = entries, None, True, 0
        self._mark_asked()
        await self._on_result(self, is_new)

    async def _record_failure(self, error: RefdeskError) -> None:
        if isinstance(error, ServerRefused) and error.code == METHOD_NOT_FOUND:
            # Many that have resources have no templates, and say so only in this way.
            await self._record_entries(())
            return
        self.error, self.is_live = error.detail[:MAX_ERROR_CHARACTERS], False
        # A server that is there and says no will say so again; it has the time that any list has.
        self._failures = min(self._failures + 1, 30) if isinstance(error, DependencyError) else 0
        self._mark_asked()
        fields = {"server": self._connection.name, "list": self.name, "why": error.detail[:200]}
        logger.warning("downstream.list_failed", extra={"fields": fields})
        await self._on_result(self, False)

    def _mark_asked(self) -> None:
        self.was_asked = True
        self._asked_at = self._now()
