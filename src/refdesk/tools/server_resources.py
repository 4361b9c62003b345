"""The resource `refdesk://servers`: status of the downstream servers, to explain missing tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from refdesk.calls import Call
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.tools.proxied import Reach

URI = "refdesk://servers"

SHOWN_FIELDS = ("state", "message", "transport", "since", "tools", "prompts", "resources", "templates", "stale", "held")
"""Fields useful to callers; processes, restarts and breakers are for administrators."""


class ServerResources:
    """Lists the servers that the caller may use."""

    def __init__(self, fleet: Fleet, reach: Reach) -> None:
        self._fleet = fleet
        self._reach = reach

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        if self._list_open_servers(call):
            yield {
                "uri": URI,
                "name": "servers",
                "title": "Servers behind this desk",
                "description": "Each server's state, what it offers, and what of it waits for approval.",
                "mimeType": "application/json",
            }

    def templates(self) -> Iterable[Mapping[str, Any]]:
        return ()

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        if uri != URI:
            return None
        statuses = self._fleet.describe()
        servers = [
            {"server": name, **{key: statuses[name][key] for key in SHOWN_FIELDS if key in statuses[name]}}
            for name in self._list_open_servers(call)
        ]
        return [{"uri": URI, "mimeType": "application/json", "text": orjson.dumps(servers).decode()}]

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        return []

    def _list_open_servers(self, call: Call) -> list[str]:
        """Return the servers of which a caller may use anything."""
        caller = call.caller
        return [
            name
            for name, server in self._fleet.servers.items()
            if self._reach(caller, name, "", server.settings.tenants) or self._has_offer(name, call)
        ]

    def _has_offer(self, name: str, call: Call) -> bool:
        offers = (offer for offer in self._fleet.tools.values() if offer.connection.name == name)
        tenants = self._fleet.servers[name].settings.tenants
        return any(self._reach(call.caller, name, offer.original, tenants) for offer in offers)
