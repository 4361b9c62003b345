"""MCP servers inside of the test: what they offer can be changed, and they can fall silent or go away."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from refdesk.config.models import DownstreamConfig
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from refdesk.downstream.jsonrpc import Message, Transport, TransportListener
from refdesk.errors import ServerAway, ServerGone
from refdesk.telemetry.metrics import Metrics
from tests.waiting import PATIENCE_SECONDS


def tool(name: str, description: str = "A tool", **more: Any) -> Message:
    return {"name": name, "description": description, "inputSchema": {"type": "object"}, **more}


def server_settings(**settings: Any) -> McpServerConfig:
    """Settings of a server; nothing is started by them here."""
    return McpServerConfig(command="nothing", **settings)


class _Session(Transport):
    """A Transport to a scripted server."""

    def __init__(self, server: Scripted, listener: TransportListener) -> None:
        super().__init__("scripted", listener)
        self._server = server

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        answer = self._server.hear(message)
        if answer is not None:
            asyncio.get_running_loop().call_soon(self._listener.on_message, answer)


class Scripted:
    """A server."""

    def __init__(self, *tools: Message, **lists: list[Message]) -> None:
        self.lists: dict[str, list[Message]] = {"tools": list(tools), **lists}
        self.capabilities: dict[str, Any] = {"tools": {"listChanged": True}}
        for name, capability in (("prompts", "prompts"), ("resources", "resources"), ("templates", "resources")):
            if name in lists:
                self.capabilities[capability] = {}
        self.contents: dict[str, str] = {}
        self.silent: set[str] = set()
        self.refused: dict[str, int] = {}
        self.is_away = False
        self.asked: Counter[str] = Counter()
        self.sessions = 0
        self.open_now = 0
        self._listener: TransportListener | None = None

    @asynccontextmanager
    async def open(self, name: str, settings: McpServerConfig, listener: TransportListener) -> AsyncIterator[Transport]:
        if self.is_away:
            raise ServerAway("There is nobody")
        self.sessions += 1
        self.open_now += 1
        self._listener = listener
        try:
            yield _Session(self, listener)
        finally:
            self.open_now -= 1
            listener.on_close(ServerGone("closed"))

    def hear(self, message: Message) -> Message | None:
        """The answer to a message, if it gets one."""
        method = message.get("method", "")
        self.asked[method] += 1
        if "id" not in message or method in self.silent:
            return None
        return {"jsonrpc": "2.0", "id": message["id"], **self._answer(method, message.get("params", {}))}

    def say(self, method: str, **params: Any) -> None:
        """Tell the client something."""
        assert self._listener is not None
        self._listener.on_message({"jsonrpc": "2.0", "method": method, "params": params})

    def offer(self, *tools: Message) -> None:
        """Have these tools from now on, and say so."""
        self.lists["tools"] = list(tools)
        self.say("notifications/tools/list_changed")

    def die(self) -> None:
        """Be gone, and stay away."""
        self.is_away = True
        assert self._listener is not None
        self._listener.on_close(ServerGone("It died"))

    def _answer(self, method: str, params: Mapping[str, Any]) -> Message:
        if method in self.refused:
            return {"error": {"code": self.refused[method], "message": "No"}}
        match method:
            case "initialize":
                info = {"name": "scripted", "version": "1"}
                return {
                    "result": {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "serverInfo": info}
                }
            case "resources/read" if params["uri"] in self.contents:
                return {"result": {"contents": [{"uri": params["uri"], "text": self.contents[params["uri"]]}]}}
            case "tools/list" | "prompts/list" | "resources/list":
                name = method.partition("/")[0]
                return {"result": {name: list(self.lists.get(name, []))}}
            case "resources/templates/list":
                return {"result": {"resourceTemplates": list(self.lists.get("templates", []))}}
        return {"error": {"code": -32601, "message": "Unknown"}}


class Watch(Metrics):
    """Counts for the fleet, and wakes whoever waits for something of it."""

    def __init__(self) -> None:
        super().__init__()
        self.states: Mapping[str, int] = {}
        self.connected: Counter[str] = Counter()
        self.held = 0
        self._moved = asyncio.Event()

    def set_servers_by_state(self, states: Mapping[str, int]) -> None:
        self.states = states
        self._moved.set()

    def count_server_session(self, server: str) -> None:
        self.connected[server] += 1

    def set_held_tools(self, count: int) -> None:
        self.held = count
        self._moved.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._moved.clear()
                await self._moved.wait()


@asynccontextmanager
async def fleet_of(
    folder: Path,
    servers: Mapping[str, Scripted],
    settings: DownstreamConfig | None = None,
    reserved: Callable[[str], bool] = lambda name: False,
    **configured: McpServerConfig,
) -> AsyncIterator[tuple[Fleet, Watch]]:
    """A fleet of scripted servers, with default settings for those that have none."""

    def connect(name: str, settings: McpServerConfig, **more: Any) -> Connection:
        return Connection(name, settings, open_transport=servers[name].open, **more)

    watch = Watch()
    used = {name: configured.get(name, server_settings()) for name in servers}
    fleet = Fleet(settings or DownstreamConfig(), folder, reserved=reserved, counts=watch, connect=connect)
    async with fleet.run(used):
        yield fleet, watch
