"""Exposes the downstream servers of the fleet.

Announces changes of their lists, and forwards subscriptions, log levels and instructions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from refdesk.calls import Call, Caller, ListChanged, LogLevel, ResourceUpdated, TenantId, resource_entry
from refdesk.config.models import DownstreamConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.fleet.sanitize import visible
from refdesk.tools.proxied import Downstream, LongResults, Reach
from refdesk.tools.registry import DOWNSTREAM_TOOLSET, Registry, Resources
from refdesk.tools.tool_search import ToolSearch
from refdesk.validation import shorten

INSTRUCTIONS_CHARACTERS, ALL_INSTRUCTIONS_CHARACTERS = 600, 4000
"""Length of the instructions of one server, and of all: untrusted text that clients read on every turn."""

MAX_ROOTS = 100
"""Roots kept of one client."""

SERVERS_URI = "refdesk://servers"

SHOWN_FIELDS = ("state", "message", "transport", "since", "tools", "prompts", "resources", "templates", "stale", "held")
"""Fields useful to callers; processes, restarts and breakers are for administrators."""


class Gateway(Resources):
    """Exposes the fleet until it's closed: its items, their changes, subscriptions and log levels."""

    def __init__(
        self,
        fleet: Fleet,
        registry: Registry,
        settings: DownstreamConfig,
        *,
        reach: Reach,
        own_schemes: Collection[str] = (),
        search: ToolSearch | None = None,
    ) -> None:
        """`reach` decides what a caller may use, and `own_schemes` are the URI schemes reserved for Refdesk.

        With `search`, tools are searchable instead of listed.
        """
        self.downstream = downstream = Downstream(
            fleet, reach, own_schemes, settings.max_result_tokens, LongResults(), lists_tools=search is None
        )
        self._fleet = fleet
        self._registry = registry
        self._search = search
        registry.downstream = downstream
        registry.add_resources(downstream.results)
        registry.add_resources(self)
        self._roots: dict[object, tuple[Caller, Sequence[Mapping[str, Any]]]] = {}
        """Roots of the connected clients, by client."""
        self._fleet.find_roots = self._find_roots
        self._fleet.listen(self._on_lists_changed)
        self._fleet.add_notification_listener(self._on_notification)
        if search is not None:
            search.index(downstream.tools.values())

    async def aclose(self) -> None:
        """Cancel suspended calls."""
        await self.downstream.forward.suspended.close()

    # Subscriptions, log level and instructions.

    async def subscribe(self, uri: str, caller: Caller) -> None:
        """Subscribe to a resource at its server, once for all subscribers; ignored if the caller can't reach it."""
        if self.downstream.is_own(uri):
            return
        server = self._fleet.find_resource_owner(uri, lambda server: self._can_subscribe(caller, server, uri))
        profile = server.server_profile if server is not None else None
        if server is not None and (profile is None or profile.has("resources.subscribe")):
            await server.subscribe(uri, (caller.tenant, caller.user))

    def unsubscribe(self, uri: str, caller: Caller) -> None:
        """Remove a subscription; unsubscribe at the server after the last one."""
        any(server.unsubscribe(uri, (caller.tenant, caller.user)) for server in self._fleet.servers.values())

    @property
    def uses_roots(self) -> bool:
        """Whether there are servers that may ask for roots."""
        return bool(self._fleet.servers)

    def set_roots(self, client: object, caller: Caller, roots: Sequence[Mapping[str, Any]]) -> None:
        """Set the roots of a client, empty when it leaves, and tell the servers that it may use."""
        _, before = self._roots.pop(client, (caller, ()))
        if roots:
            self._roots[client] = caller, roots[:MAX_ROOTS]
        if list(before) != list(roots):
            for server in self._list_open_servers(caller) if _has_toolset(caller) else ():
                server.announce_roots()

    def _find_roots(self, server: Connection) -> Sequence[Mapping[str, Any]]:
        """Return the roots of the clients that may use a server, without duplicates."""
        open_to = [
            roots
            for caller, roots in self._roots.values()
            if _has_toolset(caller) and server in self._list_open_servers(caller)
        ]
        return list({str(root.get("uri")): root for roots in open_to for root in roots}.values())

    def set_level(self, level: LogLevel) -> None:
        """Set the log level of the servers."""
        self._fleet.set_level(level)

    def instructions(self, caller: Caller) -> str:
        """Return the instructions of the servers that a caller can reach."""
        lines = ["Instructions of the connected servers:"]
        for server in self._list_open_servers(caller) if _has_toolset(caller) else ():
            given = server.server_profile.instructions if server.server_profile is not None else None
            if given:
                lines.append(f"{server.name}: {shorten(visible(given)[0].strip(), INSTRUCTIONS_CHARACTERS)}")
        return shorten("\n".join(lines), ALL_INSTRUCTIONS_CHARACTERS) if len(lines) > 1 else ""

    # Events of the fleet.

    def _on_lists_changed(self, kind: str) -> None:
        if kind == "tools" and self._search is not None:
            self._search.index(self.downstream.tools.values())
        else:
            self._registry.publish(ListChanged(kind))

    def _on_notification(self, server: str, method: str, params: Mapping[str, Any]) -> None:
        uri = params.get("uri")
        connection = self._fleet.servers.get(server)
        if method != "notifications/resources/updated" or not isinstance(uri, str) or connection is None:
            return
        if not connection.has_subscribers(uri):
            return

        def is_open(caller: Caller) -> bool:
            return self._can_subscribe(caller, connection, uri)

        for tenant in connection.settings.tenants or (None,):
            self._registry.publish(ResourceUpdated(uri, None if tenant is None else TenantId(tenant), is_open))

    # Permissions.

    def _can_subscribe(self, caller: Caller, server: Connection, uri: str) -> bool:
        return _has_toolset(caller) and self.downstream.is_reachable(caller, server, uri)

    # Resource provider of `refdesk://servers`: status of the servers that the caller may use, to explain missing tools.

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        if self._list_open_servers(call.caller):
            description = "Each server's state, what it provides, and which tools wait for approval."
            yield resource_entry("servers", "Downstream servers", description, "application/json", uri=SERVERS_URI)

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        if uri != SERVERS_URI:
            return None
        statuses, names = self._fleet.describe(), [server.name for server in self._list_open_servers(call.caller)]
        servers = [
            {"server": name, **{key: statuses[name][key] for key in SHOWN_FIELDS if key in statuses[name]}}
            for name in names
        ]
        return [{"uri": SERVERS_URI, "mimeType": "application/json", "text": orjson.dumps(servers).decode()}]

    def _list_open_servers(self, caller: Caller) -> list[Connection]:
        """Return the servers of which a caller may use anything: the server itself or any of its tools."""
        names = {server: [""] for server in self._fleet.servers.values()}
        for item in self._fleet.catalogue.tools.values():
            names.get(item.connection, []).append(item.original)
        is_reachable = self.downstream.is_reachable
        return [server for server in names if any(is_reachable(caller, server, name) for name in names[server])]


def _has_toolset(caller: Caller) -> bool:
    return caller.toolsets is None or DOWNSTREAM_TOOLSET in caller.toolsets
