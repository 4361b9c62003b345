"""Fleet of downstream servers: starts them in the background and exposes them as one catalogue.

A server that hangs, crashes or misbehaves doesn't affect the others. The last known lists of a server stay exposed
while it's down, marked as stale, also after a restart of Refdesk. Calls to it fail with the error of its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from anyio import CancelScope

from refdesk.calls import LOG_LEVELS, LogLevel
from refdesk.config.models import DownstreamConfig
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.backoff import SlidingWindow
from refdesk.downstream.connection.connection import Connection, State
from refdesk.downstream.fleet.exposure import ExposureRules
from refdesk.downstream.fleet.member import COALESCE_SECONDS, ListCache, Member, ServerList
from refdesk.downstream.fleet.pins import HeldTool, Pins
from refdesk.downstream.fleet.refresh_requests import RefreshRequests
from refdesk.downstream.fleet.snapshot import FleetCatalogue, assemble
from refdesk.downstream.session import ListName, SessionOptions
from refdesk.resilience.dependency import Dependency
from refdesk.support.fs import read_stamp
from refdesk.support.lru import BoundedDict
from refdesk.support.tasks import TaskSet
from refdesk.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

PIN_POLL_SECONDS = 0.5
"""Interval for polling the pins file, which costs one system call."""

MAX_LINKED_RESOURCES = 1000
"""Unlisted resources whose server is remembered. The oldest is evicted first."""

REFRESH_SECONDS = 2.0
"""How long a list request waits for servers whose lists are never cached."""

MAX_SCANS, SCAN_SECONDS = 10, 10.0
"""Scans of all servers for a name or URI that no list has."""

CLOSE_SECONDS = 15.0
"""Time limit for closing all servers. Each limits its own steps; this is a safety net."""

LIVE_SETTINGS = frozenset(
    {
        "call_timeout_seconds", "capabilities_timeout_seconds", "connect_timeout_seconds", "cache_ttl_seconds", "tools",
        "preset", "hold", "docs", "max_result_tokens", "tenants", "forward_token",
    }
)  # fmt: skip
"""Settings that can change without a new connection."""


class Fleet:
    """The downstream servers and their common catalogue. `run` starts and stops them."""

    def __init__(
        self,
        settings: DownstreamConfig,
        folder: Path,
        *,
        reserved: Callable[[str], bool] = lambda name: False,
        counts: Metrics | None = None,
        connect: Callable[..., Connection] = Connection,
    ) -> None:
        """`reserved` returns whether a name is taken. `connect` creates the connection of a server."""
        self.pins = Pins(folder)
        self.revision = 0
        """Increases whenever the catalogue may have changed."""
        self._settings = settings
        self._list_cache = ListCache(folder)
        self._reserved = reserved
        self._counts = counts
        self._connect = connect
        self.disabled: dict[str, McpServerConfig] = {}
        """Configured servers that are disabled."""
        self.servers: Mapping[str, Connection] = {}
        """Connections of the enabled servers, in the order of the settings."""
        self._members: dict[str, Member] = {}
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        """One task per server, including servers that are being stopped."""
        self._cached_catalogue: FleetCatalogue | None = None
        self._listeners: list[Callable[[str], None]] = []
        self._notification_listeners: list[Callable[[str, str, Mapping[str, Any]], None]] = []
        self._announced = FleetCatalogue()
        self._telling: asyncio.TimerHandle | None = None
        self._linked_resources: BoundedDict[str, Connection] = BoundedDict(MAX_LINKED_RESOURCES)
        """Servers of resources that the results of tools link to. They may be gone."""
        self._level: LogLevel | None = None
        self.find_roots: Callable[[Connection], Sequence[Mapping[str, Any]]] = lambda connection: ()
        """Returns the roots of the clients that may use a server."""
        self._moved = asyncio.Event()
        """Set on any change of a server's state or lists, for `wait_until_settled`."""
        self._apply_lock = asyncio.Lock()
        self._scans = SlidingWindow(MAX_SCANS, SCAN_SECONDS)
        self._refresh_requests = RefreshRequests(folder)
        self._refreshes = TaskSet()

    # Catalogue

    @property
    def catalogue(self) -> FleetCatalogue:
        """What the servers expose, rebuilt lazily: ten starting servers cause a few rebuilds, not forty."""
        if self._cached_catalogue is None:
            self._cached_catalogue = assemble(list(self._members.values()), self._settings, self._reserved)
        return self._cached_catalogue

    @property
    def separator(self) -> str:
        """What stands between a server's id and a tool's name."""
        return self._settings.separator

    @property
    def held_tools(self) -> Mapping[str, HeldTool]:
        """Tools that wait for approval, by `server:tool`."""
        members = self._members.items()
        return {f"{name}:{tool}": held for name, member in members for tool, held in member.held.items()}

    @property
    def dependencies(self) -> list[Dependency]:
        """Circuit breakers of the servers."""
        return [member.connection.dependency for member in self._members.values()]

    def find_resource_owner(
        self, uri: str, is_open: Callable[[Connection], bool] = lambda connection: True
    ) -> Connection | None:
        """Return the first open server that offers the resource, by its list, a template or a link in a tool's result.

        No other server is sent the URI: it may hold a token.
        """
        linked = self._linked_resources.get(uri)
        others = [] if linked is None or self.servers.get(linked.name) is not linked else [linked]
        return next(filter(is_open, chain(self.catalogue.iter_owners(uri), others)), None)

    def add_link(self, uri: str, connection: Connection) -> None:
        """Remember the server that linked to a resource first."""
        if uri not in self._linked_resources:
            self._linked_resources[uri] = connection

    async def refresh_stale_lists(self, seconds: float = REFRESH_SECONDS) -> None:
        """Refresh expired lists: in the background, or right away for servers without a list cache.

        `seconds` limits the wait for the latter. After that, their last known lists are used.
        """
        due = []
        for member in self._members.values():
            own_ttl = member.connection.settings.cache_ttl_seconds
            ttl = (self._settings.tool_cache_ttl_seconds if own_ttl is None else own_ttl) or 0.0
            for server_list in member.lists.values():
                if not server_list.is_due(ttl):
                    continue
                if ttl > 0:
                    server_list.request_refresh()
                else:
                    due.append(server_list)
        await _refresh(due, seconds)

    async def scan(self, *names: ListName) -> bool:
        """Refresh these lists of all connected servers, because something is in none of them. Return whether it did.

        Names that don't exist would keep the servers busy, so the number of scans in a time is limited.
        """
        now = asyncio.get_running_loop().time()
        if self._scans.wait(now) > 0:
            return False
        self._scans.append(now)
        lists = [member.lists[name] for member in self._members.values() for name in names]
        await _refresh([server_list for server_list in lists if server_list.is_due(0)], REFRESH_SECONDS)
        return True

    async def refresh_server(self, name: str) -> None:
        """Refresh all lists of a server, and wait for them. Ignored if the server isn't enabled."""
        if (member := self._members.get(name)) is not None:
            await _refresh(list(member.lists.values()), member.connection.settings.capabilities_timeout_seconds)
            self._announce_now()

    def _list_roots(self, name: str) -> Sequence[Mapping[str, Any]]:
        connection = self.servers.get(name)
        return () if connection is None else self.find_roots(connection)

    async def wait_until_settled(self) -> dict[str, str]:
        """Wait until every server has returned its lists or can't be connected to. Return the states by name.

        The timeouts of each server limit the wait.
        """
        while not all(member.is_settled for member in self._members.values()):
            self._moved.clear()
            await self._moved.wait()
        return {name: str(described["state"]) for name, described in self.describe().items()}

    def set_level(self, level: LogLevel) -> None:
        """Lower the log level of all servers.

        Clients share a server's session, so the lowest level that any of them requested applies. Each filters its own
        messages.
        """
        if self._level is None or LOG_LEVELS.index(level) < LOG_LEVELS.index(self._level):
            self._level = level
            for connection in self.servers.values():
                connection.set_level(level)

    def describe(self) -> dict[str, Any]:
        """Return the state of every server."""
        description: dict[str, Any] = {name: member.describe() for name, member in self._members.items()}
        return description | {
            name: {"state": "Error" if one.problem else "Stopped", "message": one.problem or "switched off"}
            for name, one in self.disabled.items()
        }

    # Listeners

    def listen(self, listener: Callable[[str], None]) -> None:
        """Add a listener that is called with `tools`, `prompts` or `resources` when that list changes."""
        self._listeners.append(listener)

    def add_notification_listener(self, listener: Callable[[str, str, Mapping[str, Any]], None]) -> None:
        """Add a listener for notifications outside of calls. It gets the server, the method and the parameters."""
        self._notification_listeners.append(listener)

    def _on_notification(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        member = self._members.get(connection.name)
        if member is None or member.connection is not connection or member.handle_notification(method):
            return
        for listener in self._notification_listeners:
            listener(connection.name, method, params)

    # Servers

    @asynccontextmanager
    async def run(self, servers: Mapping[str, McpServerConfig]) -> AsyncIterator[Fleet]:
        """Start servers in the background, yield the fleet, and stop its servers at the end.

        Raises ConfigError if the pins file is invalid.
        """
        await asyncio.to_thread(self.pins.list_held)
        watching = asyncio.create_task(self._watch_pins())
        try:
            await self.apply(servers)
            yield self
        finally:
            watching.cancel()
            await self._refreshes.cancel()
            await self._close()
            await asyncio.wait({watching})

    async def apply(self, servers: Mapping[str, McpServerConfig]) -> None:
        """Apply server settings: start new servers, stop removed ones and reconnect changed ones.

        Unchanged servers aren't interrupted. Only stopping servers are waited for.
        """
        async with self._apply_lock:
            before = self._members
            enabled = {name: settings for name, settings in servers.items() if settings.enabled}
            members = {name: self._reuse_or_create_member(name, settings) for name, settings in enabled.items()}
            new = [member for name, member in members.items() if before.get(name) is not member]
            await asyncio.gather(*(member.load_cached() for member in new))
            for name, settings in enabled.items():
                member, former = members[name], members[name].connection.settings
                if former != settings:
                    await member.apply_settings(settings, ExposureRules(settings, self._settings.presets))
                if former.tenants != settings.tenants:
                    # The lists are the same, but visible to other tenants.
                    self._announced = FleetCatalogue()
            gone = [member for name, member in before.items() if members.get(name) is not member]
            ending = [self._tasks[member.connection] for member in gone if member.connection in self._tasks]
            # No await in between: a server is always either in use or disabled.
            former_problems = {name: settings.problem for name, settings in self.disabled.items()}
            self.disabled = {name: settings for name, settings in servers.items() if not settings.enabled}
            for name, settings in self.disabled.items():
                if settings.problem not in (None, former_problems.get(name)):
                    fields = {"server": name, "why": settings.problem, "effect": "the server is disabled"}
                    logger.error("downstream.unresolved", extra={"fields": fields})
            self._set_members(members)
            for task in ending:
                task.cancel()
            for member in new:
                self._start(member, before.get(member.connection.name))
            self._announce_now()
            await _wait_for_tasks(ending)

    async def _close(self) -> None:
        """Stop all servers concurrently."""
        with CancelScope(shield=True):
            async with self._apply_lock:
                self._set_members({})
                if self._telling is not None:
                    self._telling.cancel()
                tasks = list(self._tasks.values())
                for task in tasks:
                    task.cancel()
                await _wait_for_tasks(tasks)

    async def _watch_pins(self) -> None:
        """Apply approvals and refresh requests made by other processes, until cancelled."""
        stamp = read_stamp(self.pins.path)
        await asyncio.to_thread(self._refresh_requests.take)  # those from before the start are done
        while True:
            await asyncio.sleep(PIN_POLL_SECONDS)
            for name in self._refresh_requests.take():
                self._refreshes.spawn(self.refresh_server(name))
            if (current := read_stamp(self.pins.path)) != stamp:
                # Taken before the file is read, so that a change in between is seen by the next poll.
                stamp = current
                try:
                    await self.review()
                except Exception:
                    logger.exception("downstream.pins_unwatched")

    async def review(self) -> None:
        """Recheck which tools wait for approval."""
        await asyncio.gather(*(member.review() for member in self._members.values()))
        self._announce_now()

    def _set_members(self, members: dict[str, Member]) -> None:
        self._members = members
        self.servers = {name: member.connection for name, member in members.items()}
        self._count_states()
        self.invalidate()

    def _reuse_or_create_member(self, name: str, settings: McpServerConfig) -> Member:
        """Return the current member if its connection can be kept, or else a new one."""
        member = self._members.get(name)
        if member is not None:
            live = {name: getattr(settings, name) for name in LIVE_SETTINGS}
            if member.connection.settings.model_copy(update=live) == settings:
                return member
        connection = self._connect(
            name,
            settings,
            protocol_version=settings.protocol_version or self._settings.protocol_version,
            on_notification=self._on_notification,
            on_status=self._on_status,
            options=SessionOptions(list_roots=partial(self._list_roots, name)),
        )
        if self._level is not None:
            connection.set_level(self._level)
        rules = ExposureRules(settings, self._settings.presets)
        return Member(connection, rules, self.pins, self._list_cache, self.invalidate)

    def _start(self, member: Member, before: Member | None) -> None:
        connection = member.connection
        ending = self._tasks.get(before.connection) if before is not None else None
        task = asyncio.create_task(self._run_member(member, ending), name=f"downstream {connection.name}")
        self._tasks[connection] = task
        task.add_done_callback(lambda _: self._tasks.pop(connection))

    async def _run_member(self, member: Member, ending: asyncio.Task[None] | None) -> None:
        """Run a member once its predecessor has ended: a server may not support two connections."""
        if ending is not None:
            await asyncio.wait({ending})
        try:
            await member.run()
        except Exception:
            logger.exception("downstream.failed", extra={"fields": {"server": member.connection.name}})

    def _on_status(self, connection: Connection) -> None:
        member = self._members.get(connection.name)
        has_come_up = member is not None and member.connection is connection and member.status_changed()
        self._moved.set()
        if self._counts is not None and has_come_up:
            self._counts.count_server_session(connection.name)
        self._count_states()

    def _count_states(self) -> None:
        if self._counts is not None:
            states = Counter[str](member.connection.status.state for member in self._members.values())
            states["Error"] += sum(settings.problem is not None for settings in self.disabled.values())
            self._counts.set_servers_by_state({**dict.fromkeys(get_args(State), 0), **states})

    def invalidate(self) -> None:
        """Mark the catalogue as outdated, as when the reserved names change, and announce changes shortly after."""
        self._cached_catalogue = None
        self.revision += 1
        self._moved.set()
        if self._counts is not None:
            self._counts.set_held_tools(len(self.held_tools))
        if self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(COALESCE_SECONDS, self._announce)

    def _announce_now(self) -> None:
        """Announce changes at once, after a deliberate change."""
        later = self._telling
        self._announce()
        self._telling = later  # keep the timer for changes that follow

    def _announce(self) -> None:
        before, self._announced, self._telling = self._announced, self.catalogue, None
        for name in self._announced.list_changes(before):
            for listener in self._listeners:
                listener(name)


async def _refresh(lists: Sequence[ServerList], seconds: float) -> None:
    """Refresh lists and wait for them, up to a time limit."""
    refreshes = [asyncio.ensure_future(server_list.refresh()) for server_list in lists]
    if refreshes:
        _, late = await asyncio.wait(refreshes, timeout=seconds)
        for refresh in late:
            refresh.cancel()


async def _wait_for_tasks(tasks: list[asyncio.Task[None]]) -> None:
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
    for task in late:
        logger.error("downstream.unclosed", extra={"fields": {"task": task.get_name()}})
