"""The MCP servers behind the desk, in the console: how they are, switched on and off, their changed tools approved.

No server can be added here, nor what it runs changed: whoever is at the pages could have the desk run any program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from anyio import to_thread

from refdesk.calls import CONSOLE, Call, Caller
from refdesk.config import McpServerConfig
from refdesk.console.params import Approve, Nothing, ServerLog, SetServer
from refdesk.console.rights import Reach, ReachSome, Rights
from refdesk.console.wording import in_our_words
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.files.server_log import last_lines
from refdesk.downstream.fleet.approval import decide, difference, waiting
from refdesk.downstream.fleet.exposure import Offer
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.fleet.pins import Held
from refdesk.errors import InvalidArguments, Problem
from refdesk.telemetry.history import History
from refdesk.validation import nearest_name, shortened

LONGEST_DESCRIPTION = 500
"""Characters of what a server says of a tool."""


class ServerSettings(Protocol):
    """Where it is written down which servers there are."""

    def own(self) -> Collection[str]:
        """The names of those that can be changed here; waits for the disk."""
        ...

    def switch(self, name: str, *, on: bool) -> None:
        """Write down that a server is on or off; waits for the disk."""
        ...

    async def take_in(self) -> None:
        """Have what is written down count now."""
        ...


class Servers:
    """Answers what the pages ask of servers; of each only as much as is open to whoever asks."""

    def __init__(
        self,
        fleet: Fleet,
        settings: ServerSettings,
        rights: Rights,
        reach: Reach,
        reach_some: ReachSome,
        history: History,
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._rights = rights
        self._reach = reach
        self._reach_some = reach_some
        self._history = history

    async def servers(self, call: Call) -> dict[str, Any]:
        """Every server that is there for the caller."""
        Nothing.of(call)
        own = await self._changeable(call.caller)
        known = self._known(call.caller)
        return {"servers": [self._wire(name, settings, call.caller, own) for name, settings in known.items()]}

    async def server_log(self, call: Call) -> dict[str, Any]:
        """The last that a server wrote on standard error; secrets were taken out when it was kept."""
        asked = ServerLog.of(call)
        self._require_known(asked.name, call.caller)
        folder = self._fleet.pins.path.parent
        return {"lines": await to_thread.run_sync(last_lines, folder, asked.name, asked.lines)}

    async def set_server(self, call: Call) -> dict[str, Any]:
        """Switch a server on or off, as `refdesk servers enable` and `disable` do; it counts at once."""
        asked = SetServer.of(call)
        self._require_known(asked.name, call.caller)
        with in_our_words():
            await to_thread.run_sync(lambda: self._settings.switch(asked.name, on=asked.enabled))
        await self._settings.take_in()
        return await self._one(asked.name, call.caller)

    async def approve(self, call: Call) -> dict[str, Any]:
        """Trust tools as they are now, or refuse them, as `refdesk servers approve` does; it counts at once."""
        asked = Approve.of(call)
        self._require_known(asked.name, call.caller)
        with in_our_words():
            await to_thread.run_sync(self._decide, asked)
        await self._fleet.review()
        return await self._one(asked.name, call.caller)

    def short(self, caller: Caller) -> list[dict[str, Any]]:
        """How each server is, in a few words and from memory."""
        return [self._state(name, settings, caller) for name, settings in self._known(caller).items()]

    def names(self, caller: Caller) -> Collection[str]:
        """The servers that a caller may know of."""
        return self._known(caller).keys()

    def _decide(self, asked: Approve) -> None:
        pins = self._fleet.pins
        shown = waiting(pins, asked.name, asked.tool)
        if asked.sha256 is not None and any(held.sha256 != asked.sha256 for held in shown):
            raise InvalidArguments([Problem("sha256", "the tool is another by now; look again")])
        decide(pins, asked.name, asked.tool, shown, reject=asked.reject)

    def _known(self, caller: Caller) -> dict[str, McpServerConfig]:
        """The servers that a caller may know of, in use or switched off, with their settings."""
        used = {name: connection.settings for name, connection in self._fleet.servers.items()}
        every = used | self._fleet.disabled
        return {name: each for name, each in every.items() if self._reach_some(caller, name, each.tenants)}

    def _require_known(self, name: str, caller: Caller) -> McpServerConfig:
        known = self._known(caller)
        if name not in known:
            nearest = nearest_name(name, list(known))
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise InvalidArguments([Problem("name", f"there is no server named {shortened(name)!r}{hint}")])
        return known[name]

    async def _one(self, name: str, caller: Caller) -> dict[str, Any]:
        """A server after it was changed; somebody else may have taken it away by now."""
        own = await self._changeable(caller)
        return {"server": self._wire(name, self._require_known(name, caller), caller, own)}

    async def _changeable(self, caller: Caller) -> Collection[str]:
        if not self._rights.may(caller, f"{CONSOLE}set_server"):
            return ()
        return await to_thread.run_sync(self._settings.own)

    # In the words of the wire.

    def _state(self, name: str, settings: McpServerConfig, caller: Caller) -> dict[str, Any]:
        connection = self._fleet.servers.get(name)
        held = len(self._held(name, caller, settings))
        if connection is None:
            stopped = {"state": "Stopped", "breaker": "closed", "in_flight": 0, "last_error": None}
            return {"name": name, "enabled": False, "held": held, **stopped}
        described = connection.describe()
        return {
            "name": name,
            "enabled": True,
            "held": held,
            "state": described["state"],
            "breaker": described["breaker"],
            "in_flight": described["in_flight"],
            "last_error": described.get("message"),
        }

    def _wire(
        self, name: str, settings: McpServerConfig, caller: Caller, changeable: Collection[str]
    ) -> dict[str, Any]:
        connection = self._fleet.servers.get(name)
        tools = self._open(self._fleet.tools.values(), name, caller)
        return {
            **self._state(name, settings, caller),
            "transport": settings.kind,
            "tools": [_tool_wire(offer) for offer in tools],
            "resources": len(self._open(self._fleet.resources.values(), name, caller)),
            "prompts": len(self._open(self._fleet.prompts.values(), name, caller)),
            "held": [_held_wire(held) for held in self._held(name, caller, settings)],
            "breaker": _breaker_wire(connection),
            "latency": self._history.latency([offer.exposed for offer in tools]),
            "since": connection.describe()["since"] if connection is not None else None,
            "can_change": name in changeable,
        }

    def _open(self, offers: Iterable[Offer], name: str, caller: Caller) -> list[Offer]:
        own = (offer for offer in offers if offer.connection.name == name)
        return [one for one in own if self._reach(caller, name, one.original, one.connection.settings.tenants)]

    def _held(self, name: str, caller: Caller, settings: McpServerConfig) -> list[Held]:
        every = (held for held in self._fleet.held.values() if held.server == name)
        return [held for held in every if self._reach(caller, name, held.tool, settings.tenants)]


def _tool_wire(offer: Offer) -> dict[str, Any]:
    definition = offer.definition
    return {
        "name": offer.original,
        "exposed": offer.exposed,
        "title": definition.get("title"),
        "description": shortened(str(definition.get("description") or ""), LONGEST_DESCRIPTION),
    }


def _held_wire(held: Held) -> dict[str, Any]:
    diff = "\n".join(difference(held.before, held.after))
    return {"tool": held.tool, "is_new": held.before is None, "diff": diff, "sha256": held.sha256}


def _breaker_wire(connection: Connection | None) -> dict[str, Any]:
    return {"state": "closed", "failures": 0} if connection is None else connection.dependency.describe()
