"""`refdesk://servers`: how the servers behind the desk are, for a model that wonders why a tool is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from refdesk.calls import Call
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.tools.proxied import Reach

URI = "refdesk://servers"

TOLD = ("state", "message", "transport", "since", "tools", "prompts", "resources", "templates", "stale", "held")
"""What is of use to whoever calls the tools; processes, restarts and breakers are for those who look after the desk."""


class ServerResources:
    """One resource: a list of the servers that are open to the caller."""

    def __init__(self, fleet: Fleet, reach: Reach) -> None:
        self._fleet = fleet
        self._reach = reach

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        if self._open_to(call):
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
        described = self._fleet.describe()
        told = [
            {"server": name, **{key: described[name][key] for key in TOLD if key in described[name]}}
            for name in self._open_to(call)
        ]
        return [{"uri": URI, "mimeType": "application/json", "text": orjson.dumps(told).decode()}]

    async def complete(self, template: str, name: str, value: str, given: Mapping[str, str], call: Call) -> list[str]:
        return []

    def _open_to(self, call: Call) -> list[str]:
        """The servers that a caller may reach anything of."""
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
