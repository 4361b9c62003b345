"""Tools, prompts and resources of downstream servers as registry entries.

Calls and results are forwarded unchanged. Only what routing needs is validated. A server's annotations are claims, and
treated as such.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from refdesk.calls import SILENT, Call, Caller
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.exposure import ExposedItem
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.jsonrpc import Callbacks
from refdesk.errors import (
    InvalidArguments,
    Problem,
    ServerTalksNonsense,
    UnknownPrompt,
    UnknownTool,
)
from refdesk.tools.input_requests import (
    MARGIN_SECONDS,
    NO_CALLBACKS,
    ClientCallbacks,
    SuspendedCalls,
    answer_input_requests,
    build_capabilities,
)
from refdesk.tools.long_results import LongResults
from refdesk.tools.prompts import Completion
from refdesk.tools.registry import Annotations

TOOLSET = "downstream"

COMPLETIONS_DECLARED = "2025-03-26"
"""First revision in which servers declare that they support completion."""

STALE_META = "refdesk/stale"
"""Metadata key of definitions whose server is currently unavailable."""

LISTING_GRACE_SECONDS = 5.0
"""How long a running server may take to list its tools before lists without it are cacheable."""

NO_COMPLETION: Mapping[str, Any] = {"completion": {"values": [], "total": 0, "hasMore": False}}

Reach = Callable[[Caller, str, str, Collection[str]], bool]
"""Whether a caller may use something: server, name, and the server's tenants."""

Result = dict[str, Any]


class Forwarder:
    """Forwards calls; holds suspended ones."""

    def __init__(self) -> None:
        self._suspended = SuspendedCalls()

    async def __call__(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        """Return the server's result; takes ownership of `params`.

        Only the parts of the result that Refdesk reads itself are validated.
        """
        if "_meta" in params and not isinstance(params["_meta"], dict):
            raise InvalidArguments([Problem("_meta", "must be an object")])
        result = await self._forward(call, server, method, params)
        if not _is_well_formed(result):
            raise ServerTalksNonsense(f"The server {server.name!r} returned a malformed result")
        return result

    async def _forward(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        client = call.client
        if client.uses_input_required:
            return await self._suspended.forward(call, server, method, params)
        callbacks: Callbacks = NO_CALLBACKS
        if client is not SILENT:
            callbacks = ClientCallbacks(client)
        elif isinstance(meta := params.get("_meta"), Mapping) and "progressToken" in meta:
            # Nobody receives progress, and the token may collide with another.
            params["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}
        profile = server.server_profile
        capabilities = build_capabilities(client) if profile is not None and profile.is_modern else None
        result = await server.request(
            method, params, callbacks=callbacks, token=call.credential, capabilities=capabilities
        )
        if "resultType" in result:
            return await answer_input_requests(call, server, method, params, result)
        return result

    async def close(self) -> None:
        """Cancel suspended calls."""
        await self._suspended.close()


def _is_well_formed(result: Result) -> bool:
    """Return whether content is a list of objects, text is a string and `_meta` an object, if present."""
    content, meta = result.get("content", ()), result.get("_meta")
    if not isinstance(content, (list, tuple)) or not (meta is None or isinstance(meta, dict)):
        return False
    return all(
        isinstance(item, dict)
        and isinstance(item.get("text", ""), str)
        and (item.get("type") != "text" or "text" in item)
        for item in content
    )


class _ProxiedEntry:
    """Base of proxied tools and prompts."""

    toolset: ClassVar[str] = TOOLSET

    def __init__(self, item: ExposedItem, downstream: Downstream) -> None:
        self.name = item.exposed
        self.server = item.connection
        self.original = item.original
        self._downstream = downstream
        self._listing: dict[str, Any] = {**item.definition, "name": item.exposed}
        if item.is_stale:
            meta = item.definition.get("_meta")
            self._listing["_meta"] = {**(meta if isinstance(meta, dict) else {}), STALE_META: True}

    def seconds_for(self, call: Call) -> float:
        """Return the server's current call timeout plus a margin."""
        return self.server.call_seconds + MARGIN_SECONDS

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether the caller may use it."""
        return self._downstream.reach(caller, self.server.name, self.original, self.server.settings.tenants)


class ProxiedTool(_ProxiedEntry):
    """A tool of a downstream server."""

    is_live: ClassVar[bool] = False

    def __init__(self, item: ExposedItem, downstream: Downstream) -> None:
        super().__init__(item, downstream)
        self.is_listed = downstream.lists_tools
        self.definition = definition = item.definition
        hints = definition.get("annotations") or {}
        self.title: str = definition.get("title") or str(hints.get("title") or self.name)
        self.description: str = definition.get("description") or ""
        self.input_schema: Mapping[str, Any] = definition["inputSchema"]
        # Missing hints mean the worst case, as the protocol specifies.
        self.annotations = Annotations(
            read_only=hints.get("readOnlyHint") is True,
            destructive=hints.get("destructiveHint") is not False,
            idempotent=hints.get("idempotentHint") is True,
            open_world=hints.get("openWorldHint") is not False,
        )

    def listing(self, call: Call) -> dict[str, Any]:
        """Return the server's definition."""
        return self._listing

    async def __call__(self, arguments: object, call: Call) -> dict[str, Any]:
        """Return the server's result, truncated to the budget."""
        if not isinstance(arguments, dict):
            raise InvalidArguments([Problem("arguments", "must be an object")])
        downstream = self._downstream
        if self.name not in downstream.tools:
            # Removed or held a moment ago.
            raise UnknownTool(f"{self.name!r} no longer exists; see the list")
        params = {**call.params, "name": self.original}
        result = await downstream.forward(call, self.server, "tools/call", params)
        own_bound = self.server.settings.max_result_tokens
        bound = downstream.max_tokens if own_bound is None else own_bound
        if not bound:
            return result
        has_schema = self.definition.get("outputSchema") is not None
        return downstream.results.fit(result, bound, call.caller, has_schema=has_schema)


class ProxiedPrompt(_ProxiedEntry):
    """A prompt of a downstream server."""

    def listing(self) -> dict[str, Any]:
        """Return the server's definition."""
        return self._listing

    async def get(self, arguments: object, call: Call) -> dict[str, Any]:
        """Return the server's messages."""
        if not isinstance(arguments, dict):
            raise InvalidArguments([Problem("arguments", "must be an object")])
        if self.name not in self._downstream.prompts:
            raise UnknownPrompt(f"{self.name!r} no longer exists; see the list")
        params = {**call.params, "name": self.original}
        return await self._downstream.forward(call, self.server, "prompts/get", params)

    async def complete(self, name: str, value: str, call: Call) -> Completion:
        """Return the server's completion."""
        params = {**call.params, "ref": {**call.params["ref"], "name": self.original}}
        return await self._downstream.complete(call, self.server, params)


class Downstream:
    """Registry source of the fleet: its tools and prompts as registry entries, and its resources."""

    def __init__(
        self,
        fleet: Fleet,
        reach: Reach,
        own_schemes: Collection[str] = (),
        *,
        max_tokens: int = 0,
        lists_tools: bool = True,
    ) -> None:
        """`reach` decides what a caller may use. `own_schemes` are Refdesk's URI schemes, which are never forwarded.

        `max_tokens` limits the results of tools, unless their server's settings do.
        """
        self.fleet = fleet
        self.reach = reach
        self.max_tokens = max_tokens
        self.lists_tools = lists_tools
        self.forward = Forwarder()
        self.results = LongResults()
        self._own_schemes = frozenset(own_schemes)
        self._revision = -1
        self._tools: dict[str, ProxiedTool] = {}
        self._prompts: dict[str, ProxiedPrompt] = {}
        self._listing_deadlines: WeakKeyDictionary[Connection, float] = WeakKeyDictionary()

    @property
    def tools(self) -> Mapping[str, ProxiedTool]:
        """The fleet's tools, wrapped once per revision of its catalogue."""
        if self._revision != self.fleet.revision:
            self._wrap_items()
        return self._tools

    @property
    def prompts(self) -> Mapping[str, ProxiedPrompt]:
        """The fleet's prompts, wrapped once per revision of its catalogue."""
        if self._revision != self.fleet.revision:
            self._wrap_items()
        return self._prompts

    def _wrap_items(self) -> None:
        self._revision, catalogue = self.fleet.revision, self.fleet.catalogue
        self._tools = {name: ProxiedTool(item, self) for name, item in catalogue.tools.items()}
        self._prompts = {name: ProxiedPrompt(item, self) for name, item in catalogue.prompts.items()}

    def find_tool(self, name: str) -> ProxiedTool | None:
        """Return a tool by its exposed name, or by `server:tool` or `server__tool` with the server's own name of it."""
        tool = self.tools.get(name)
        item = self.fleet.catalogue.find_tool(name) if tool is None else None
        return self.tools.get(item.exposed) if item is not None else tool

    def find_prompt(self, name: str) -> ProxiedPrompt | None:
        """Return a prompt by its exposed name, or the first one that its server calls this."""
        prompts = self.prompts
        return prompts.get(name) or next((prompt for prompt in prompts.values() if prompt.original == name), None)

    def list_resources(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the resources that a caller may read."""
        return self._list_open(self.fleet.catalogue.resources, caller)

    def list_templates(self, caller: Caller) -> Iterable[Mapping[str, Any]]:
        """Return the templates that a caller may use."""
        return self._list_open(self.fleet.catalogue.templates, caller)

    async def read_resource(self, uri: str, call: Call) -> dict[str, Any] | None:
        """Return the result of the owning server, or of the first server that has the resource."""
        if self.is_own(uri):
            return None

        def is_open(server: Connection) -> bool:
            return self.is_reachable(call.caller, server, uri)

        def read(server: Connection) -> Awaitable[dict[str, Any]]:
            return self.forward(call, server, "resources/read", dict(call.params))

        server = self.fleet.find_resource_owner(uri, is_open)
        if server is not None:
            return await read(server)
        found = await self.fleet.scan(uri, read, is_open=is_open)
        return found[1] if found is not None else None

    async def complete_template(self, template: str, call: Call) -> dict[str, Any] | None:
        """Return the completion of the server that has the template."""
        item = self.fleet.catalogue.templates.get(template)
        item = None if item is None or self.is_own(template) else self._find_open(item, call.caller)
        return None if item is None else await self.complete(call, item.connection, dict(call.params))

    async def complete(self, call: Call, server: Connection, params: dict[str, Any]) -> dict[str, Any]:
        """Request a completion, unless the server declares that it has none."""
        profile = server.server_profile
        if profile is not None and profile.version >= COMPLETIONS_DECLARED and not profile.has("completions"):
            return dict(NO_COMPLETION)
        return await self.forward(call, server, "completion/complete", params)

    def resource_seconds(self, uri: str) -> float | None:
        """Return the owning server's call timeout plus a margin."""
        server = self.fleet.find_resource_owner(uri) if not self.is_own(uri) else None
        return server.call_seconds + MARGIN_SECONDS if server is not None else None

    def has_complete_lists(self) -> bool:
        """Return whether all running servers have listed their tools, or had the time: some have none."""
        servers = self.fleet.servers.values()
        if not servers:
            return True
        now, listed = time.monotonic(), {item.connection for item in self.fleet.catalogue.tools.values()}
        for server in servers:
            if server.status.state == "Running" and server not in listed:
                is_settled = now >= self._listing_deadlines.setdefault(server, now + LISTING_GRACE_SECONDS)
            else:
                is_settled = server.status.state != "Starting"
            if not is_settled:
                return False
        return True

    def is_own(self, uri: str) -> bool:
        """Return whether a URI has one of Refdesk's schemes."""
        return uri.partition(":")[0].lower() in self._own_schemes

    def is_reachable(self, caller: Caller, server: Connection, uri: str) -> bool:
        """Return whether a caller may use a server's resource."""
        return self.reach(caller, server.name, uri, server.settings.tenants)

    def _list_open(self, items: Mapping[str, ExposedItem], caller: Caller) -> Iterable[Mapping[str, Any]]:
        found = (self._find_open(item, caller) for uri, item in items.items() if not self.is_own(uri))
        return (item.definition for item in found if item is not None)

    def _find_open(self, item: ExposedItem, caller: Caller) -> ExposedItem | None:
        """Return the first item of a URI that the caller may use."""
        uri = item.original
        items = self.fleet.catalogue.duplicates.get(uri, (item,))
        return next((candidate for candidate in items if self.is_reachable(caller, candidate.connection, uri)), None)
