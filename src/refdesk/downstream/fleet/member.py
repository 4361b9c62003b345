"""One server of the fleet: its connection, its four lists, and what of them is exposed.

The last known lists are cached on disk, and exposed while the server is down at startup. There is one file per server.
It's valid only for the same server, reached in the same way, and is trusted no more than the server itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
from anyio import CancelScope

from refdesk.config.server_model import McpServerConfig
from refdesk.config.types import mask_url
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import ExposureRules, FilteredList, filter_list
from refdesk.downstream.fleet.names import append_hash, clean_name
from refdesk.downstream.fleet.pins import HeldTool, Pins
from refdesk.downstream.jsonrpc import Message
from refdesk.downstream.session import LISTS, ListName
from refdesk.errors import METHOD_NOT_FOUND, DependencyError, RefdeskError, ServerRefused
from refdesk.support.fs import make_private_folder, replace_file

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

CACHE_FOLDER = "listings"
CACHE_FORMAT = 1

MAX_CACHED_BYTES = 8 * 1024 * 1024
"""Size of one server's file: some thousand tools. Larger lists aren't cached."""

MAX_FILE_NAME = 100
"""Characters of a file name without extension, which every file system supports."""

Lists = dict[ListName, tuple[Message, ...]]
"""The lists of a server, unmodified."""


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
        is_there = self._connection.settings.session == "short" or self._connection.is_connected
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
        connection, profile, before = self._connection, self._connection.server_profile, self.entries
        if profile is None and self.name != "tools":
            # With ephemeral sessions the capabilities are unknown before the first one.
            return
        try:
            is_supported = profile is None or profile.has(LISTS[self.name].capability)
            self.entries = tuple(await connection.list_all(self.name)) if is_supported else ()
            self.error, self.is_live, self._failures = None, True, 0
        except RefdeskError as error:
            if isinstance(error, ServerRefused) and error.code == METHOD_NOT_FOUND:
                # Many servers with resources have no templates, and this is the only sign.
                self.entries, self.error, self.is_live, self._failures = (), None, True, 0
            else:
                self.error, self.is_live = error.detail[:MAX_ERROR_CHARACTERS], False
                # A server that rejects the request will do so again: no retries before the list expires.
                self._failures = min(self._failures + 1, 30) if isinstance(error, DependencyError) else 0
                fields = {"server": connection.name, "list": self.name, "why": error.detail[:200]}
                logger.warning("downstream.list_failed", extra={"fields": fields})
        self.was_asked, self._asked_at = True, self._now()
        await self._on_result(self, self.entries != before)


class Member:
    """A server and its lists. `on_change` is called when they change."""

    def __init__(
        self,
        connection: Connection,
        rules: ExposureRules,
        pins: Pins,
        list_cache: ListCache,
        on_change: Callable[[], None],
    ) -> None:
        self.connection = connection
        self.rules = rules
        self.lists: dict[ListName, ServerList] = {
            name: ServerList(name, connection, self._handle_result) for name in LISTS
        }
        self.held: Mapping[str, HeldTool] = {}
        self.filtered: dict[ListName, FilteredList] = {name: FilteredList() for name in LISTS}
        self._is_live: dict[ListName, bool] = dict.fromkeys(LISTS, False)
        self._saved: Lists = dict.fromkeys(LISTS, ())
        self._pin_error: str | None = None
        self._pins = pins
        self._list_cache = list_cache
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._was_running = self._had_error = False

    async def load_cached(self) -> None:
        """Load the last known lists from disk."""
        known = await asyncio.to_thread(self._list_cache.read, self.connection.name, self.connection.settings)
        self._saved = known or self._saved
        for name, server_list in self.lists.items():
            server_list.entries = self._saved[name]
            await self._review_list(server_list)

    async def run(self) -> None:
        """Run the connection and refresh its lists, until cancelled."""
        if self.connection.settings.session == "short":
            self.lists["tools"].request_refresh()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.connection.run())
                for server_list in self.lists.values():
                    group.create_task(server_list.run())
        finally:
            with CancelScope(shield=True):
                await self._save()

    def handle_notification(self, method: str) -> bool:
        """Handle a list change notification. Return whether it was one."""
        changed = [name for name, kind in LISTS.items() if method == f"notifications/{kind.capability}/list_changed"]
        for name in changed:
            self.lists[name].on_list_changed()
        return bool(changed)

    def status_changed(self) -> bool:
        """Refresh the lists when the server comes up, and report when they become stale or current.

        Return whether it came up. A failed call changes the status of a server that is still connected.
        """
        state, is_connected = self.connection.status.state, self.connection.is_connected
        is_running = state == "Running" or (state == "Error" and is_connected)
        has_come_up = is_running and not self._was_running
        if has_come_up and self.connection.settings.session == "pooled":
            for server_list in self.lists.values():
                server_list.request_refresh()
        had_error, self._had_error = self._had_error, state == "Error" and not is_connected
        self._was_running = is_running
        if had_error != self._had_error:
            self._on_change()
        return has_come_up

    async def apply_settings(self, settings: McpServerConfig, rules: ExposureRules) -> None:
        """Apply settings that don't require a new connection."""
        self.connection.settings, self.rules = settings, rules
        await self.review()

    async def review(self) -> None:
        """Recheck which tools wait for approval."""
        before = self.held, self._pin_error
        await self._review_list(self.lists["tools"])
        if (self.held, self._pin_error) != before:
            self._on_change()

    @property
    def is_settled(self) -> bool:
        """Whether the server has returned or refused its lists, or can't be connected to."""
        lists = self.lists.values()
        return self._had_error or all(self._is_live[each.name] or each.error is not None for each in lists)

    def is_stale(self, name: ListName) -> bool:
        """Whether a list is only the last known one."""
        return self._had_error or not self._is_live[name]

    def describe(self) -> dict[str, Any]:
        """Return the state of the server and its lists."""
        description: dict[str, Any] = {**self.connection.describe()}
        description |= {name: len(filtered.entries) for name, filtered in self.filtered.items()}
        description["stale"] = sorted(filter(self.is_stale, LISTS))
        details = {
            "partial": {
                name: server_list.error for name, server_list in self.lists.items() if server_list.error is not None
            },
            "dropped": {name: filtered.reasons for name, filtered in self.filtered.items() if filtered.dropped},
            "invisible_characters": sum(filtered.invisible for filtered in self.filtered.values()),
            "held": sorted(self.held),
            "problems": [problem for problem in (self.rules.problem, self._pin_error) if problem is not None],
        }
        return description | {name: value for name, value in details.items() if value}

    async def _handle_result(self, server_list: ServerList, is_new: bool) -> None:
        was_live = self._is_live[server_list.name]
        if is_new:
            await self._review_list(server_list)
        self._is_live[server_list.name] = server_list.is_live
        if server_list.name == "tools":
            for other in self.lists.values():
                if not other.was_asked:
                    other.request_refresh()
        if is_new or was_live != server_list.is_live or server_list.error is not None:
            self._on_change()
        await self._save()

    async def _review_list(self, server_list: ServerList) -> None:
        """Filter a list and check its pins, in a thread because lists can be long and pins are on disk."""
        hold = self.connection.settings.hold
        async with self._lock:
            filtered = await asyncio.to_thread(filter_list, server_list.name, server_list.entries)
            if server_list.name == "tools":
                try:
                    given = [entry.given for entry in filtered.entries]
                    held = await asyncio.to_thread(self._pins.review, self.connection.name, given, hold)
                except RefdeskError as error:
                    # Without pins nothing new is exposed. What is exposed already stays.
                    self._pin_error = error.detail
                    logger.error("downstream.pins_unread", extra={"fields": {"why": error.detail[:300]}})
                    return
                for name, tool in held.items():
                    if self.held.get(name) != tool:  # logged once per definition
                        fields = {"server": self.connection.name, "tool": name[:100], "is_new": tool.before is None}
                        fields |= {"why": tool.reason, "to_approve": tool.approval[:300]}
                        logger.warning("downstream.tool_changed", extra={"fields": fields})
                self.held, self._pin_error = held, None
            self.filtered[server_list.name], self._is_live[server_list.name] = filtered, server_list.is_live

    async def _save(self) -> None:
        """Write the lists to disk if they changed."""
        async with self._lock:
            lists: Lists = {name: server_list.entries for name, server_list in self.lists.items()}
            if lists != self._saved:
                connection = self.connection
                await asyncio.to_thread(self._list_cache.write, connection.name, connection.settings, lists)
                self._saved = lists


class ListCache:
    """The cache folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / CACHE_FOLDER

    def read(self, server: str, settings: McpServerConfig) -> Lists | None:
        """Return the last known lists of a server, or None if there are none or the file is invalid."""
        path = self._path(server)
        try:
            if path.stat().st_size > MAX_CACHED_BYTES:
                raise ValueError("it is too large")
            content = orjson.loads(path.read_bytes())
            return _parse_lists(content, server, fingerprint(settings))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._warn("downstream.listing_unread", server, error)
            return None

    def write(self, server: str, settings: McpServerConfig, lists: Lists) -> None:
        """Store the lists of a server. A failure is only logged."""
        content = {"format": CACHE_FORMAT, "server": server, "fingerprint": fingerprint(settings)}
        try:
            encoded = orjson.dumps({**content, **lists})
            if len(encoded) > MAX_CACHED_BYTES:
                raise ValueError("it would be too large")
            make_private_folder(self._folder)
            replace_file(self._path(server), encoded, is_durable=False)
        except (OSError, ValueError, TypeError) as error:
            self._warn("downstream.listing_unwritten", server, error)

    def _path(self, server: str) -> Path:
        name = clean_name(server)
        if name != server or len(name) > MAX_FILE_NAME:
            name = append_hash(name, server, MAX_FILE_NAME)
        return self._folder / f"{name}.json"

    def _warn(self, event: str, server: str, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else str(error)
        logger.warning(event, extra={"fields": {"server": server, "why": (why or type(error).__name__)[:200]}})


def fingerprint(settings: McpServerConfig) -> str:
    """Return a hash of how the server is reached, without secrets."""
    identity = {
        "kind": settings.kind,
        "command": settings.command,
        "args": settings.args,
        "cwd": str(settings.cwd) if settings.cwd else None,
        "url": mask_url(settings.url.get_secret_value()) if settings.url else None,
        "env": sorted(settings.env),
        "headers": sorted(name.lower() for name in settings.headers),
    }
    return sha256(orjson.dumps(identity, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _parse_lists(content: object, server: str, expected: str) -> Lists | None:
    """Return the lists in a file, or None if it belongs to another server."""
    if not isinstance(content, dict) or content.get("format") != CACHE_FORMAT:
        raise ValueError("it is not a cached list")
    if content.get("server") != server or content.get("fingerprint") != expected:
        return None
    lists: Lists = {}
    for name in LISTS:
        entries = content.get(name)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"its {name} are no list of objects")
        lists[name] = tuple(entries)
    return lists
