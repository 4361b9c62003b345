"""Refresh of one list of a server: coalesces change notifications, and retries with backoff.

The last known list is kept until there is a newer one: a server that fails or is slow loses nothing.
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
"""Change notifications within this time count as one."""

QUIET_SECONDS = 2.0
FREE_CHANGES = 5
MAX_PENALTY_SECONDS = 30.0
"""A list that changes again within the quiet period is refreshed at once for the first free changes, then with a delay
that doubles each time. Endless notifications must not keep us and all clients busy."""

FIRST_RETRY_SECONDS = 5.0
LAST_RETRY_SECONDS = 300.0
"""Retry delays for a server that is connected but failed to return its list. They double each time."""


MAX_ERROR_CHARACTERS = 500
"""Characters kept of an error, which may quote the server."""


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
    """A list of a server, fetched on request. `on_result` is called with every outcome."""

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
        """Why the list isn't current."""
        self.was_asked = self.is_live = False
        """Whether the server was asked at all, and whether it returned this list."""
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
        """Request a refresh, at once or after so many seconds."""
        if not self._refresh_requested.is_set():
            self._delay = delay
            self._refresh_requested.set()

    def on_list_changed(self) -> None:
        """Handle a change notification."""
        if self._refresh_requested.is_set():
            return
        penalty = COALESCE_SECONDS * 2.0 ** max(0, self._changes - FREE_CHANGES)
        is_quiet = self._now() >= self._asked_at + QUIET_SECONDS + penalty
        self._changes = 1 if is_quiet else min(self._changes + 1, 30)
        self.request_refresh(COALESCE_SECONDS if is_quiet else min(penalty, MAX_PENALTY_SECONDS))

    def is_due(self, ttl_seconds: float) -> bool:
        """Whether the list has expired and the server is available. Idle servers aren't woken."""
        is_there = self._connection.settings.session == "short" or self._connection.status.state == "Running"
        return is_there and self._now() >= self._asked_at + ttl_seconds

    async def refresh(self) -> None:
        """Request a refresh and wait for it."""
        self.request_refresh()
        await asyncio.shield(self._next_result)

    async def run(self) -> None:
        """Fetch the list whenever requested, until cancelled."""
        while True:
            await self._wait_for_request()
            await asyncio.sleep(self._delay)
            self._refresh_requested.clear()
            result, self._next_result = self._next_result, asyncio.get_running_loop().create_future()
            try:
                await self._fetch()
            except Exception:
                logger.exception("downstream.list_broken", extra={"fields": {"server": self._connection.name}})
                self.error, self.is_live, self._failures = "unexpected error; see the log", False, 1
            finally:
                result.set_result(None)

    async def _wait_for_request(self) -> None:
        """Wait for a refresh request, or until a failed fetch is due for a retry."""
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
        profile = self._connection.server_profile
        if profile is None and self.name != "tools":
            # With ephemeral sessions the capabilities are unknown before the first one.
            return
        list_method = _LIST_METHODS[self.name]
        if profile is not None and not profile.has(list_method.capability):
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
            # Many servers with resources have no templates, and this is the only sign.
            await self._record_entries(())
            return
        self.error, self.is_live = error.detail[:MAX_ERROR_CHARACTERS], False
        # A server that rejects the request will do so again: no retries before the list expires.
        self._failures = min(self._failures + 1, 30) if isinstance(error, DependencyError) else 0
        self._mark_asked()
        fields = {"server": self._connection.name, "list": self.name, "why": error.detail[:200]}
        logger.warning("downstream.list_failed", extra={"fields": fields})
        await self._on_result(self, False)

    def _mark_asked(self) -> None:
        self.was_asked = True
        self._asked_at = self._now()
