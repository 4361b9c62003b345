"""All servers behind this desk: started together, waited for by nobody, and offered as one catalogue.

A server that hangs, crashes or lies costs the others nothing. What one had to offer when it was last seen is offered
on, marked as stale, also after a start; whoever calls it is told what is wrong by its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from anyio import CancelScope

from refdesk.config import DownstreamConfig
from refdesk.config.servers import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.catalogue import FleetCatalogue, assemble
from refdesk.downstream.fleet.exposure import ExposureRules, Offer
from refdesk.downstream.fleet.list_cache import ListCache
from refdesk.downstream.fleet.list_refresh import COALESCE_SECONDS
from refdesk.downstream.fleet.member import Member
from refdesk.downstream.fleet.pins import Held, Pins
from refdesk.downstream.fleet.resource_lookup import Read, ResourceOwners
from refdesk.downstream.transports.base import Message
from refdesk.resilience.dependency import Dependency

__all__ = ["Fleet", "Held", "Offer", "open_fleet"]

logger = logging.getLogger(__name__)

PIN_POLL_SECONDS = 0.5
"""How long an approval may go unseen; to look costs a system call."""

REFRESH_SECONDS = 2.0
"""How long a list waits for servers whose lists are asked for each time."""

CLOSE_SECONDS = 15.0
"""How long ending all servers may take. Each bounds the steps of its own end; this is for what nobody foresaw."""

LIVE_SETTINGS = frozenset(
    {
        "call_timeout_seconds", "capabilities_timeout_seconds", "connect_timeout_seconds", "cache_ttl_seconds", "tools",
        "preset", "hold", "docs", "max_result_tokens", "tenants", "forward_token",
    }
)  # fmt: skip
"""What can be another without the connection being made anew."""


STATES = ("Starting", "Running", "Error", "Stopped")


class FleetMetrics(Protocol):
    """Who counts servers and what they offer."""

    def servers_by_state(self, states: Mapping[str, int]) -> None:
        """How many servers are in which state."""
        ...

    def server_connected(self, server: str) -> None:
        """A session with a server was opened that is kept."""
        ...

    def tools_held(self, count: int) -> None:
        """How many tools wait for approval."""
        ...


class Fleet:
    """The servers, and what they offer together. Made by `open_fleet`."""

    def __init__(
        self,
        settings: DownstreamConfig,
        folder: Path,
        *,
        reserved: Callable[[str], bool] = lambda name: False,
        counts: FleetMetrics | None = None,
        started: Callable[[Connection], None] | None = None,
        connect: Callable[..., Connection] = Connection,
    ) -> None:
        """`reserved` says which names are taken; `started` is told of every connection before it is used."""
        self.pins = Pins(folder)
        self.revision = 0
        """Another one whenever the catalogue may be."""
        self._settings = settings
        self._list_cache = ListCache(folder)
        self._reserved = reserved
        self._counts = counts
        self._started = started
        self._connect = connect
        self.disabled: dict[str, McpServerConfig] = {}
        """The servers that are set and switched off."""
        self._members: dict[str, Member] = {}
        self._servers: dict[str, Connection] = {}
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        """One for each server, those among them that are being ended."""
        self._cached_catalogue = FleetCatalogue()
        self._is_stale = False
        self._listeners: list[Callable[[str], None]] = []
        self._notification_listeners: list[Callable[[str, str, Mapping[str, Any]], None]] = []
        self._announced = self._cached_catalogue
        self._announce_timer: asyncio.TimerHandle | None = None
        self._resource_owners = ResourceOwners()
        self._apply_lock = asyncio.Lock()

    # What is offered.

    @property
    def servers(self) -> Mapping[str, Connection]:
        """The servers in use, in the order of the settings."""
        return self._servers

    @property
    def tools(self) -> Mapping[str, Offer]:
        """By the names that they have here."""
        return self._catalogue.tools

    @property
    def prompts(self) -> Mapping[str, Offer]:
        """By the names that they have here."""
        return self._catalogue.prompts

    @property
    def resources(self) -> Mapping[str, Offer]:
        """By URI."""
        return self._catalogue.resources

    @property
    def templates(self) -> Mapping[str, Offer]:
        """By URI template."""
        return self._catalogue.templates

    @property
    def held(self) -> Mapping[str, Held]:
        """What waits for approval, by `server:tool`."""
        members = self._members.items()
        return {f"{name}:{tool}": held for name, member in members for tool, held in member.held.items()}

    @property
    def dependencies(self) -> list[Dependency]:
        """The breakers around the servers."""
        return [member.connection.dependency for member in self._members.values()]

    def find_tool(self, name: str) -> Offer | None:
        """The tool of that name here, or `server:tool` or `server__tool` in the server's own words."""
        return self._catalogue.find_tool(name)

    @property
    def alike(self) -> Mapping[str, Sequence[Offer]]:
        """Resources and templates that several servers have under one URI, by that; all of each, in their order."""
        return self._catalogue.duplicates

    def owner_of(self, uri: str, is_open: Callable[[Connection], bool] = lambda connection: True) -> Connection | None:
        """The first server that is open whose resource it is: in its list, by a template, or found so by `scan`."""
        owners = chain(self._catalogue.iter_owners(uri), filter(None, (self._resource_owners.get(uri),)))
        return next(filter(is_open, owners), None)

    async def scan(
        self,
        uri: str,
        call: Read,
        *,
        is_open: Callable[[Connection], bool] = lambda connection: True,
    ) -> tuple[Connection, Message] | None:
        """Find the server of a resource that no list names, by having `call` read it from one server after the other.

        `is_open` says which may be asked. The first that answers is remembered; None when none does.
        """
        connections = [connection for connection in self.servers.values() if is_open(connection)]
        return await self._resource_owners.scan(uri, connections, call)

    async def freshen(self, seconds: float = REFRESH_SECONDS) -> None:
        """Have lists that are too old asked for again: in the background, unless they are to be asked for each time.

        `seconds` is the time limit for those; after it, a list stays as it was last known.
        """
        refreshes = []
        for member in self._members.values():
            ttl = self._list_ttl(member.connection.settings)
            for server_list in member.lists.values():
                if not server_list.is_due(ttl):
                    continue
                if ttl > 0:
                    server_list.request_refresh()
                else:
                    refreshes.append(asyncio.ensure_future(server_list.refresh()))
        if refreshes:
            _, late = await asyncio.wait(refreshes, timeout=seconds)
            for refresh in late:
                refresh.cancel()

    def names_taken(self) -> None:
        """Other names are reserved now than before."""
        self._invalidate()

    def describe(self) -> dict[str, Any]:
        """How every server is, for those who look after them."""
        description: dict[str, Any] = {name: member.describe() for name, member in self._members.items()}
        return description | {name: {"state": "Stopped", "message": "switched off"} for name in self.disabled}

    # Who is told.

    def listen(self, listener: Callable[[str], None]) -> None:
        """Have `tools`, `prompts` or `resources` told when that list is another now."""
        self._listeners.append(listener)

    def heard(self, listener: Callable[[str, str, Mapping[str, Any]], None]) -> None:
        """Have the notifications told that belong to no call: the server, the method and the parameters."""
        self._notification_listeners.append(listener)

    def noticed(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """What a server says outside of any call."""
        member = self._members.get(connection.name)
        if member is None or member.connection is not connection or member.handle_notification(method):
            return
        for listener in self._notification_listeners:
            listener(connection.name, method, params)

    # The servers themselves.

    async def apply(self, servers: Mapping[str, McpServerConfig]) -> None:
        """Use these servers: new ones are started, those that are gone stopped, those set otherwise made anew.

        The others go on untouched, and none is waited for but those that are stopped.
        """
        async with self._apply_lock:
            before = self._members
            enabled = {name: settings for name, settings in servers.items() if settings.enabled}
            members = {name: self._reuse_or_create_member(name, settings) for name, settings in enabled.items()}
            new = [member for name, member in members.items() if before.get(name) is not member]
            await asyncio.gather(*(member.load_cached() for member in new))
            await self._apply_live_settings(members, enabled)
            gone = [member for name, member in before.items() if members.get(name) is not member]
            ending = [self._tasks[member.connection] for member in gone if member.connection in self._tasks]
            # In one step: a server is in use or switched off, and at no moment neither or both.
            self.disabled = {name: settings for name, settings in servers.items() if not settings.enabled}
            self._set_members(members)
            for member in gone:
                self._stop(member)
            for member in new:
                self._start(member, before.get(member.connection.name))
            self._announce_now()
            await _wait_for_tasks(ending)

    async def close(self) -> None:
        """End all servers, side by side and for good."""
        with CancelScope(shield=True):
            async with self._apply_lock:
                self._set_members({})
                if self._announce_timer is not None:
                    self._announce_timer.cancel()
                tasks = list(self._tasks.values())
                for task in tasks:
                    task.cancel()
                await _wait_for_tasks(tasks)

    async def watch_pins(self) -> None:
        """Have approvals count that were given elsewhere, until this is cancelled."""
        stamp = self.pins.stamp()
        while True:
            await asyncio.sleep(PIN_POLL_SECONDS)
            if (current := self.pins.stamp()) != stamp:
                # Before it is read: should it change meanwhile, the next look sees another one.
                stamp = current
                try:
                    await self.review()
                except Exception:
                    logger.exception("downstream.pins_unwatched")

    async def review(self) -> None:
        """See which tools wait for approval now."""
        await asyncio.gather(*(member.review() for member in self._members.values()))
        self._announce_now()

    def _set_members(self, members: dict[str, Member]) -> None:
        self._members = members
        self._servers = {name: member.connection for name, member in members.items()}
        self._count_states()
        self._invalidate()

    def _reuse_or_create_member(self, name: str, settings: McpServerConfig) -> Member:
        """The one there is, if it can go on, or else a new one."""
        member = self._members.get(name)
        if member is not None and _can_reuse(member.connection.settings, settings):
            return member
        connection = self._connect(
            name,
            settings,
            protocol_version=settings.protocol_version or self._settings.protocol_version,
            heard=self,
            changed=self._status_changed,
        )
        rules = ExposureRules(settings, self._settings.presets)
        return Member(connection, rules, self.pins, self._list_cache, self._invalidate)

    async def _apply_live_settings(self, members: Mapping[str, Member], servers: Mapping[str, McpServerConfig]) -> None:
        for name, settings in servers.items():
            member = members[name]
            before = member.connection.settings
            if before != settings:
                await member.apply_settings(settings, ExposureRules(settings, self._settings.presets))
            if before.tenants != settings.tenants:
                # The lists are the same, but not for everybody.
                self._announced = FleetCatalogue()

    def _start(self, member: Member, before: Member | None) -> None:
        if self._started is not None:
            self._started(member.connection)
        ending = self._tasks.get(before.connection) if before is not None else None
        task = asyncio.create_task(self._run_member(member, ending), name=f"downstream {member.connection.name}")
        self._tasks[member.connection] = task
        task.add_done_callback(lambda _: self._tasks.pop(member.connection))

    def _stop(self, member: Member) -> None:
        self._resource_owners.forget(member.connection)
        task = self._tasks.get(member.connection)
        if task is not None:
            task.cancel()

    async def _run_member(self, member: Member, ending: asyncio.Task[None] | None) -> None:
        """Begin when the server's former connection has ended: two at a time may not be what a server can bear."""
        if ending is not None:
            await asyncio.wait({ending})
        try:
            await member.run()
        except Exception:
            logger.exception("downstream.failed", extra={"fields": {"server": member.connection.name}})

    def _status_changed(self, connection: Connection) -> None:
        member = self._members.get(connection.name)
        if member is not None and member.connection is connection:
            member.status_changed()
        if self._counts is not None and connection.status.state == "Running":
            self._counts.server_connected(connection.name)
        self._count_states()

    def _count_states(self) -> None:
        if self._counts is not None:
            states = Counter[str](member.connection.status.state for member in self._members.values())
            self._counts.servers_by_state({**dict.fromkeys(STATES, 0), **states})

    # The catalogue.

    @property
    def _catalogue(self) -> FleetCatalogue:
        """Put together when it is looked at: what ten servers say while they start is few catalogues, not forty."""
        if self._is_stale:
            self._is_stale = False
            sources = [member.snapshot() for member in self._members.values()]
            self._cached_catalogue = assemble(sources, self._settings, self._reserved)
        return self._cached_catalogue

    def _invalidate(self) -> None:
        """Something is another now; whether the catalogue is, is found out and told in a moment."""
        self._is_stale = True
        self.revision += 1
        if self._counts is not None:
            self._counts.tools_held(len(self.held))
        if self._announce_timer is None:
            self._announce_timer = asyncio.get_running_loop().call_later(COALESCE_SECONDS, self._announce)

    def _announce_now(self) -> None:
        """Tell at once of what somebody has changed on purpose: they look at what came of it."""
        later = self._announce_timer
        self._announce()
        self._announce_timer = later  # for what the servers say in the next moment

    def _announce(self) -> None:
        before, self._announced, self._announce_timer = self._announced, self._catalogue, None
        for name in self._announced.list_changes(before):
            for listener in self._listeners:
                listener(name)

    def _list_ttl(self, settings: McpServerConfig) -> float:
        own = settings.cache_ttl_seconds
        return (self._settings.tool_cache_ttl_seconds if own is None else own) or 0.0


@asynccontextmanager
async def open_fleet(
    settings: DownstreamConfig,
    folder: Path,
    servers: Mapping[str, McpServerConfig] | None = None,
    *,
    reserved: Callable[[str], bool] = lambda name: False,
    counts: FleetMetrics | None = None,
    started: Callable[[Connection], None] | None = None,
    connect: Callable[..., Connection] = Connection,
) -> AsyncIterator[Fleet]:
    """The fleet of these servers, which start in the background; at the end nothing is left of them.

    Raises ConfigError when what is known of trusted tools cannot be understood.
    """
    fleet = Fleet(settings, folder, reserved=reserved, counts=counts, started=started, connect=connect)
    await asyncio.to_thread(fleet.pins.held)
    watching = asyncio.create_task(fleet.watch_pins())
    try:
        await fleet.apply(servers or {})
        yield fleet
    finally:
        watching.cancel()
        await fleet.close()
        await asyncio.wait({watching})


def _can_reuse(before: McpServerConfig, after: McpServerConfig) -> bool:
    """Whether a connection that was made by these settings is one by those as well."""
    return before.model_copy(update={name: getattr(after, name) for name in LIVE_SETTINGS}) == after


async def _wait_for_tasks(tasks: list[asyncio.Task[None]]) -> None:
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
    for task in late:
        logger.error("downstream.unclosed", extra={"fields": {"task": task.get_name()}})
