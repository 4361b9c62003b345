"""A gateway over real servers, with the policies around it, and clients that remember what they were told."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refdesk.calls import (
    ANONYMOUS,
    SILENT,
    Answer,
    Call,
    Caller,
    Client,
    Handler,
    InputRequired,
    LogLevel,
    Policy,
    chain,
)
from refdesk.config.models import DownstreamConfig
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.jsonrpc import Message
from refdesk.errors import RefdeskError
from refdesk.policy.policies import Deadline, Permissions, ResolveNames, can_reach
from refdesk.tools.gateway import Gateway
from refdesk.tools.registry import Dispatcher, Registry
from refdesk.tools.tool_search import Embed, ToolSearch
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).parents[2]
SCHEMES = {"techdoc": "docs", "refdesk": "downstream"}


def talkative(era: str = "legacy", **settings: Any) -> McpServerConfig:
    """The talkative server on standard input and output."""
    args = ("-m", "tests.downstream.servers.talkative", "stdio", "0", era)
    return McpServerConfig.model_validate({"command": sys.executable, "args": args, "cwd": str(ROOT), **settings})


QUIET = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    capabilities = {"resources": {}, "tools": {}}
    tools = [{"name": "link", "inputSchema": {"type": "object"}}]
    link = {"type": "resource_link", "uri": "quiet://1", "name": "One"}
    answer = {"result": {"resources": [], "resourceTemplates": [], "tools": tools, "content": [link]}}
    if asked["method"] == "initialize":
        info = {"name": "quiet", "version": "1"}
        answer = {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    elif asked["method"] == "resources/read":
        uri = asked["params"]["uri"]
        is_there = uri.startswith("quiet://")
        answer = {"result": {"contents": [{"uri": uri, "text": "found"}]}} if is_there else {
            "error": {"code": -32002, "message": "no"}
        }
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


def quiet() -> McpServerConfig:
    """A server that has resources, lists none of them, and links to one."""
    return McpServerConfig.model_validate({"command": sys.executable, "args": ("-c", QUIET)})


SHY = """
import json, sys
prompts, resources = [{"name": "first"}], [{"uri": "shy://first", "name": "first"}]
def answer(method, params):
    if method == "initialize":
        info = {"name": "shy", "version": "1"}
        capabilities = {"tools": {}, "prompts": {}, "resources": {}}
        return {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    if method == "tools/call":
        prompts.append({"name": "later"})
        resources.append({"uri": "shy://later", "name": "later"})
        return {"content": []}
    return {
        "tools/list": {
            "tools": [{"name": "grow", "description": f"Grow {len(prompts)}", "inputSchema": {"type": "object"}}]
        },
        "prompts/list": {"prompts": prompts},
        "prompts/get": {"messages": [], "description": params.get("name")},
        "resources/list": {"resources": resources},
        "resources/templates/list": {"resourceTemplates": []},
        "resources/read": {"contents": [{"uri": params.get("uri"), "text": "found"}]},
    }[method]
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def shy() -> McpServerConfig:
    """A server that doesn't tell when its lists grow, and its one tool changes."""
    return McpServerConfig.model_validate({"command": sys.executable, "args": ("-c", SHY)})


@dataclass
class Talker(Client):
    """A client of an older revision, with a session."""

    answers: Mapping[str, Any] = field(default_factory=dict)
    """By method: an object, or an error to raise."""
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)
    key: object = "one"
    uses_input_required: bool = False
    was_told: asyncio.Event = field(default_factory=asyncio.Event)

    def can(self, method: str) -> bool:
        return method in self.answers

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.heard.append(("progress", done, total, message))
        self.was_told.set()

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        self.heard.append(("log", level, data, logger))

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        assert not self.uses_input_required, "a client of the newest revision is asked by ending its call"
        self.asked.append((method, params))
        answer = self.answers[method]
        if isinstance(answer, Exception):
            raise answer
        found: Mapping[str, Any] = answer
        return found


class RecordedConnection(Connection):
    """A connection that records the requests made over it."""

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.requests: list[tuple[str, Any]] = []
        self.refusal: RefdeskError | None = None
        """Raised in place of any further request."""

    async def request(self, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Message:
        self.requests.append((method, params))
        if self.refusal is not None:
            raise self.refusal
        return await super().request(method, params, **more)


class Desk:
    """As much of a desk as a gateway needs."""

    def __init__(self, fleet: Fleet, gateway: Gateway, registry: Registry, dispatcher: Dispatcher, handle: Handler):
        self.fleet = fleet
        self.gateway = gateway
        self.registry = registry
        self.dispatcher = dispatcher
        self.handle = handle
        self.events: list[Any] = []
        registry.listen(self.events.append)

    async def ask(
        self, method: str, caller: Caller = ANONYMOUS, client: Client = SILENT, **params: Any
    ) -> dict[str, Any]:
        """The result of a request."""
        toolsets = params.pop("toolsets", None)
        return (await self.handle(Call(method, params, caller, client, toolsets=toolsets))).result

    async def call(
        self, tool: str, arguments: Any = None, *, caller: Caller = ANONYMOUS, client: Client = SILENT, **params: Any
    ) -> dict[str, Any]:
        """The result of a tool."""
        return await self.ask("tools/call", caller, client, name=tool, arguments=arguments, **params)

    async def call_through(self, tool: str, client: Client, answers: Mapping[str, Any], **more: Any) -> Any:
        """The result for a client of the newest revision, which calls again as long as it is asked something; with the
        questions that it was asked, round by round."""
        rounds: list[Mapping[str, Any]] = []
        params: dict[str, Any] = {}
        while True:
            try:
                return await self.call(tool, client=client, **more, **params), rounds
            except InputRequired as asked:
                rounds.append(asked.requests)
                given = {name: answers[request["method"]] for name, request in asked.requests.items()}
                params = {"inputResponses": given, "requestState": asked.state}

    async def names(self, list_name: str = "tools", caller: Caller = ANONYMOUS, **params: Any) -> list[str]:
        """The names, or URIs, in a list."""
        method = {"templates": "resources/templates/list"}.get(list_name, f"{list_name}/list")
        member, key = {"templates": ("resourceTemplates", "uriTemplate"), "resources": ("resources", "uri")}.get(
            list_name, (list_name, "name")
        )
        return [entry[key] for entry in (await self.ask(method, caller, **params))[member]]

    def connection(self, server: str) -> RecordedConnection:
        """The connection to a server."""
        connection = self.fleet.servers[server]
        assert isinstance(connection, RecordedConnection)
        return connection


@asynccontextmanager
async def open_test_desk(
    folder: Path,
    servers: Mapping[str, McpServerConfig],
    *,
    embed: Embed | None = None,
    registry: Registry | None = None,
    **settings: Any,
) -> AsyncIterator[Desk]:
    """A desk with nothing but servers behind it, all of which are there."""
    downstream = DownstreamConfig(**settings)
    registry = registry or Registry()
    toolsets = ("docs", "downstream")
    dispatcher = Dispatcher(registry, toolsets, 1000)
    resolve = ResolveNames(registry.find_tool, registry.find_prompt)
    permissions = Permissions(toolsets, registry.find_tool, SCHEMES, {})
    async with AsyncExitStack() as stack:
        opened = stack.enter_async_context
        fleet = await opened(
            Fleet(downstream, folder, reserved=registry.is_own, connect=RecordedConnection).run(servers)
        )
        search = None
        if downstream.tool_search:
            inner = chain([resolve, permissions], dispatcher)
            search = await opened(
                aclosing(ToolSearch(permissions.filter_tools(dispatcher.open_tools), inner, registry, embed))
            )
        gateway = await opened(
            aclosing(Gateway(fleet, registry, downstream, reach=can_reach, own_schemes=SCHEMES, search=search))
        )
        policies: list[Policy] = [resolve, permissions, Deadline(PATIENCE_SECONDS, dispatcher.seconds)]
        desk = Desk(fleet, gateway, registry, dispatcher, chain(policies, dispatcher))
        # Known, and told of: nothing changes any more by itself.
        await eventually(lambda: all(_is_known(fleet, name) for name in servers) and fleet._telling is None)
        yield desk


def _is_known(fleet: Fleet, server: str) -> bool:
    greeting = fleet.servers[server].server_profile
    if greeting is not None and not greeting.has("prompts"):
        return True
    # Of two resources with one URI, one counts.
    named = (fleet.catalogue.tools, fleet.catalogue.prompts)
    is_there = all(any(offer.connection.name == server for offer in offers.values()) for offers in named)
    return is_there and bool(fleet.catalogue.resources) and bool(fleet.catalogue.templates)


def text_of(result: Mapping[str, Any]) -> str:
    """The text of a tool's answer."""
    return Answer(dict(result)).text
