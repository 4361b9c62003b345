"""One server of the fleet: its connection, its four lists, and what of them can be offered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from anyio import CancelScope

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.catalogue import Source
from refdesk.downstream.fleet.exposure import Rules, Sifted, sift
from refdesk.downstream.fleet.list_cache import LIST_NAMES, Listings, ListName, Lists
from refdesk.downstream.fleet.list_refresh import ServerList
from refdesk.downstream.fleet.pins import Held, Pins
from refdesk.errors import RefdeskError

logger = logging.getLogger(__name__)

_CHANGES: Mapping[str, tuple[ListName, ...]] = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "templates"),
}


class Member:
    """A server and what is known of it; `changed` is told when that is something else."""

    def __init__(
        self, connection: Connection, rules: Rules, pins: Pins, listings: Listings, changed: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.rules = rules
        self.lists: dict[ListName, ServerList] = {name: ServerList(name, connection, self._take) for name in LIST_NAMES}
        self.held: Mapping[str, Held] = {}
        self._sifted: dict[ListName, Sifted] = {name: Sifted() for name in LIST_NAMES}
        self._is_live: dict[ListName, bool] = dict.fromkeys(LIST_NAMES, False)
        self._kept = Lists()
        self._unpinned: str | None = None
        self._pins = pins
        self._listings = listings
        self._changed = changed
        self._alone = asyncio.Lock()
        self._was_running = self._was_away = False

    async def recall(self) -> None:
        """Begin with what was last known of the server."""
        known = await asyncio.to_thread(self._listings.read, self.connection.name, self.connection.settings)
        self._kept = known or Lists()
        for name, kept in self.lists.items():
            kept.entries = self._kept[name]
            await self._look_through(kept)

    async def run(self) -> None:
        """Keep the connection and its lists, until this is cancelled."""
        if self.connection.settings.session == "short":
            self.lists["tools"].want()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.connection.run())
                for kept in self.lists.values():
                    group.create_task(kept.run())
        finally:
            with CancelScope(shield=True):
                await self._keep()

    def noticed(self, method: str) -> bool:
        """Take note of a notification, if it is about the lists."""
        for name in _CHANGES.get(method, ()):
            self.lists[name].changed()
        return method in _CHANGES

    def status_changed(self) -> None:
        """Ask a server that is there, or there again, for its lists; have those of one that is away marked."""
        state = self.connection.status.state
        if state == "Running" and not self._was_running and self.connection.settings.session == "pooled":
            for kept in self.lists.values():
                kept.want()
        was_away, self._was_away = self._was_away, state == "Error"
        self._was_running = state == "Running"
        if was_away != self._was_away:
            self._changed()

    async def adjust(self, settings: McpServerConfig, rules: Rules) -> None:
        """Go by other rules and times, for which the connection need not be made anew."""
        connection = self.connection
        connection.settings, self.rules = settings, rules
        connection.call_seconds = settings.call_timeout_seconds
        connection.capabilities_seconds = settings.capabilities_timeout_seconds
        connection.connect_seconds = settings.connect_timeout_seconds
        await self.review()

    async def review(self) -> None:
        """See which tools wait for approval now."""
        before = self.held, self._unpinned
        await self._look_through(self.lists["tools"])
        if (self.held, self._unpinned) != before:
            self._changed()

    def source(self) -> Source:
        """What the catalogue is made of."""
        is_away = self.connection.status.state == "Error"
        stale = frozenset(name for name, is_live in self._is_live.items() if is_away or not is_live)
        entries = {name: sifted.entries for name, sifted in self._sifted.items()}
        return Source(self.connection, self.rules, entries, self.held, stale)

    def describe(self) -> dict[str, Any]:
        """How it stands with the server and its lists."""
        described: dict[str, Any] = {**self.connection.describe()}
        described |= {name: len(sifted.entries) for name, sifted in self._sifted.items()}
        described["stale"] = sorted(self.source().stale)
        told = {
            "partial": {name: kept.error for name, kept in self.lists.items() if kept.error is not None},
            "dropped": {name: sifted.reasons for name, sifted in self._sifted.items() if sifted.dropped},
            "invisible_characters": sum(sifted.invisible for sifted in self._sifted.values()),
            "held": sorted(self.held),
            "problems": [problem for problem in (self.rules.problem, self._unpinned) if problem is not None],
        }
        return described | {name: value for name, value in told.items() if value}

    async def _take(self, kept: ServerList, is_new: bool) -> None:
        was_live = self._is_live[kept.name]
        if is_new:
            await self._look_through(kept)
        self._is_live[kept.name] = kept.is_live
        if kept.name == "tools":
            for other in self.lists.values():
                if not other.was_asked:
                    other.want()
        if is_new or was_live != kept.is_live or kept.error is not None:
            self._changed()
        await self._keep()

    async def _look_through(self, kept: ServerList) -> None:
        """Find out what of a list can be offered: in a thread, as a list can be long and what is held is on disk."""
        hold = self.connection.settings.hold
        async with self._alone:
            sifted = await asyncio.to_thread(sift, kept.name, kept.entries)
            if kept.name == "tools":
                try:
                    given = [entry.given for entry in sifted.entries]
                    held = await asyncio.to_thread(self._pins.review, self.connection.name, given, hold)
                except RefdeskError as error:
                    # What cannot be held against what was trusted is not offered; what is offered already stays.
                    self._unpinned = error.detail
                    logger.error("downstream.pins_unread", extra={"fields": {"why": error.detail[:300]}})
                    return
                self._tell_of(held)
                self.held, self._unpinned = held, None
            self._sifted[kept.name], self._is_live[kept.name] = sifted, kept.is_live

    def _tell_of(self, held: Mapping[str, Held]) -> None:
        """Once for each tool, as long as it waits as it is."""
        for name, tool in held.items():
            if self.held.get(name) != tool:
                fields = {"server": self.connection.name, "tool": name[:100], "is_new": tool.before is None}
                logger.warning("downstream.tool_changed", extra={"fields": fields})

    async def _keep(self) -> None:
        """Have on disk what is known now."""
        async with self._alone:
            lists = Lists(**{name: kept.entries for name, kept in self.lists.items()})
            if lists != self._kept:
                connection = self.connection
                await asyncio.to_thread(self._listings.write, connection.name, connection.settings, lists)
                self._kept = lists
