"""Console methods for downstream MCP servers: state, logs, enabling, and approval of changed tools.

Servers can't be added or reconfigured here: anyone with console access could run arbitrary programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from anyio import to_thread

from refdesk.calls import CONSOLE, Call, Caller
from refdesk.config.server_model import McpServerConfig
from refdesk.console.params import (
    ApproveParams,
    NameParams,
    NoParams,
    ServerLogParams,
    SetServerParams,
    translate_argument_names,
)
from refdesk.downstream.files.server_log import read_last_lines
from refdesk.downstream.files.servers_file import OwnServers
from refdesk.downstream.fleet.exposure import ExposedItem
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.fleet.pins import HeldTool
from refdesk.errors import InvalidArguments, Problem
from refdesk.telemetry.metric_history import History
from refdesk.validation import nearest_name, shorten

MAX_DESCRIPTION_LENGTH = 500
"""Characters shown of a tool's description."""


CanReach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether a caller may use an item of a server, given the item's name and the server's tenants."""

CanReachServer = Callable[[Caller, str, Collection[str]], bool]
"""Whether a caller may use any item of a server."""


class Rights(Protocol):
    """Permission checks."""

    def toolsets(self, caller: Caller) -> frozenset[str]:
        """Return the toolsets open to a caller."""

    def may(self, caller: Caller, method: str) -> bool:
        """Whether a caller may call a console method."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Console methods for downstream servers, limited to what the caller may see."""

    fleet: Fleet
    settings: OwnServers
    rights: Rights
    can_reach: CanReach
    can_reach_server: CanReachServer
    history: History

    async def servers(self, call: Call) -> dict[str, Any]:
        NoParams.of(call)
        changeable = await self._list_changeable(call.caller)
        visible = self._list_visible(call.caller).items()
        return {"servers": [self._serialize(name, settings, call.caller, changeable) for name, settings in visible]}

    async def server_log(self, call: Call) -> dict[str, Any]:
        """Return the last lines of a server's standard error. Secrets were masked when it was stored."""
        params = ServerLogParams.of(call)
        self._require_visible(params.name, call.caller)
        folder = self.fleet.pins.path.parent
        return {"lines": await to_thread.run_sync(read_last_lines, folder, params.name, params.lines)}

    async def set_server(self, call: Call) -> dict[str, Any]:
        """Enable or disable a server, like `refdesk servers enable` and `disable`. Takes effect at once."""
        params = SetServerParams.of(call)
        self._require_visible(params.name, call.caller)
        with translate_argument_names():
            await to_thread.run_sync(lambda: self.settings.switch(params.name, on=params.enabled))
        await self.settings.reload_servers()
        return await self._serialize_changed(params.name, call.caller)

    async def refresh_server(self, call: Call) -> dict[str, Any]:
        """Refresh the lists of a server, like `refdesk servers refresh`."""
        params = NameParams.of(call)
        self._require_visible(params.name, call.caller)
        await self.fleet.refresh_server(params.name)
        return await self._serialize_changed(params.name, call.caller)

    async def approve(self, call: Call) -> dict[str, Any]:
        """Approve or reject held tools, like `refdesk servers approve`. Takes effect at once."""
        params = ApproveParams.of(call)
        self._require_visible(params.name, call.caller)

        def decide_pending() -> None:
            pins = self.fleet.pins
            pending = pins.list_held(params.name, params.tool)
            if params.sha256 is not None and any(held.sha256 != params.sha256 for held in pending):
                raise InvalidArguments([Problem("sha256", "the tool has changed since it was shown; reload the page")])
            if params.reject:
                pins.reject(params.name, params.tool)
            else:
                pins.approve(params.name, params.tool, as_shown=pending)

        with translate_argument_names():
            await to_thread.run_sync(decide_pending)
        await self.fleet.review()
        return await self._serialize_changed(params.name, call.caller)

    def list_states(self, caller: Caller) -> list[dict[str, Any]]:
        """Return the state of each visible server. Reads memory only."""
        return [self._serialize_state(name, settings, caller) for name, settings in self._list_visible(caller).items()]

    def list_names(self, caller: Caller) -> Collection[str]:
        """Return the names of the servers visible to a caller."""
        return self._list_visible(caller).keys()

    def _list_visible(self, caller: Caller) -> dict[str, McpServerConfig]:
        """Return the settings of the servers visible to a caller, enabled or not."""
        used = {name: connection.settings for name, connection in self.fleet.servers.items()}
        every = used | self.fleet.disabled
        return {name: each for name, each in every.items() if self.can_reach_server(caller, name, each.tenants)}

    def _require_visible(self, name: str, caller: Caller) -> McpServerConfig:
        visible = self._list_visible(caller)
        if name not in visible:
            nearest = nearest_name(name, list(visible))
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise InvalidArguments([Problem("name", f"no server named {shorten(name)!r}{hint}")])
        return visible[name]

    async def _serialize_changed(self, name: str, caller: Caller) -> dict[str, Any]:
        """Serialize a server after a change; raise InvalidArguments if it was removed meanwhile."""
        changeable = await self._list_changeable(caller)
        return {"server": self._serialize(name, self._require_visible(name, caller), caller, changeable)}

    async def _list_changeable(self, caller: Caller) -> Collection[str]:
        if not self.rights.may(caller, f"{CONSOLE}set_server"):
            return ()
        return await to_thread.run_sync(self.settings.own)

    # Serialization

    def _serialize_state(self, name: str, settings: McpServerConfig, caller: Caller) -> dict[str, Any]:
        connection = self.fleet.servers.get(name)
        held = len(self._list_held(name, caller, settings))
        if connection is None:
            state = "Error" if settings.problem else "Stopped"
            stopped = {"state": state, "breaker": "closed", "in_flight": 0, "last_error": settings.problem}
            return {"name": name, "enabled": settings.problem is not None, "held": held, **stopped}
        described = connection.describe()
        running = {key: described[key] for key in ("state", "breaker", "in_flight")}
        return {"name": name, "enabled": True, "held": held, **running, "last_error": described.get("message")}

    def _serialize(
        self, name: str, settings: McpServerConfig, caller: Caller, changeable: Collection[str]
    ) -> dict[str, Any]:
        connection = self.fleet.servers.get(name)
        tools = self._filter_reachable(self.fleet.catalogue.tools.values(), name, caller)
        return {
            **self._serialize_state(name, settings, caller),
            "transport": settings.kind,
            "tools": [
                {
                    "name": offer.original,
                    "exposed": offer.exposed,
                    "title": offer.definition.get("title"),
                    "description": shorten(str(offer.definition.get("description") or ""), MAX_DESCRIPTION_LENGTH),
                }
                for offer in tools
            ],
            "resources": len(self._filter_reachable(self.fleet.catalogue.resources.values(), name, caller)),
            "prompts": len(self._filter_reachable(self.fleet.catalogue.prompts.values(), name, caller)),
            "held": [
                {
                    "tool": held.tool,
                    "is_new": held.before is None,
                    "reason": held.reason,
                    "approve": held.approval,
                    "diff": "\n".join(held.iter_diff()),
                    "sha256": held.sha256,
                }
                for held in self._list_held(name, caller, settings)
            ],
            "breaker": connection.dependency.describe() if connection else {"state": "closed", "failures": 0},
            "latency": self.history.latency([offer.exposed for offer in tools]),
            "since": connection.describe()["since"] if connection is not None else None,
            "can_change": name in changeable,
        }

    def _filter_reachable(self, offers: Iterable[ExposedItem], name: str, caller: Caller) -> list[ExposedItem]:
        of_server = (offer for offer in offers if offer.connection.name == name)
        return [one for one in of_server if self.can_reach(caller, name, one.original, one.connection.settings.tenants)]

    def _list_held(self, name: str, caller: Caller, settings: McpServerConfig) -> list[HeldTool]:
        every = (held for held in self.fleet.held_tools.values() if held.server == name)
        return [held for held in every if self.can_reach(caller, name, held.tool, settings.tenants)]
