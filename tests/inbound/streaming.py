"""A client of raw HTTP for event streams, and tools that talk though nobody said beforehand that they would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from refdesk.calls import Call
from refdesk.tools.registry import Tool
from tests.servers import NoArguments, RunningServer
from tests.waiting import PATIENCE_SECONDS

ACCEPT = "application/json, text/event-stream"
REVISIONS = ["2025-06-18", "2025-11-25"]
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ELICIT = {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}
SAMPLE = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}], "maxTokens": 5}
EVERYTHING: dict[str, Any] = {"sampling": {}, "elicitation": {}, "roots": {}}
ANN = {"action": "accept", "content": {"name": "Ann"}}
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": EVERYTHING,
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}

Work = Callable[[Call], Awaitable[str]]


def offer(server: RunningServer, name: str, work: Work) -> None:
    """A tool that is plain as far as anybody knows, and does this."""

    async def run(arguments: NoArguments, call: Call) -> str:
        return await work(call)

    server.desk.registry.add_tool(Tool(name, name, "Talks when it likes.", "docs", NoArguments, run))


def calling(tool: str, id: int | str = 5, **meta: Any) -> dict[str, Any]:
    """The message that calls a tool."""
    params = {"name": tool, "arguments": {}} | ({"_meta": meta} if meta else {})
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


@dataclass
class RawSession:
    """A session over raw HTTP."""

    http: httpx2.AsyncClient
    headers: dict[str, str]

    async def post(self, message: dict[str, Any]) -> httpx2.Response:
        return await self.http.post("/mcp", json=message, headers=self.headers)

    async def reply(self, id: Any, **answer: Any) -> httpx2.Response:
        """Answer something that was asked: `result=…` or `error=…`."""
        return await self.post({"jsonrpc": "2.0", "id": id, **answer})

    @asynccontextmanager
    async def stream(self, message: dict[str, Any]) -> AsyncIterator[RawStream]:
        async with streaming(self.http, message, self.headers) as stream:
            yield stream


@dataclass
class RawStream:
    """The events of an answer, as they come."""

    response: httpx2.Response
    lines: AsyncIterator[str] = field(init=False)

    def __post_init__(self) -> None:
        self.lines = self.response.aiter_lines()

    async def next(self) -> Any:
        """The next message; fails at the end of the stream."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for line in self.lines:
                if line.startswith("data: "):
                    return json.loads(line.removeprefix("data: "))
        raise AssertionError("the stream has ended")

    async def rest(self) -> list[Any]:
        """All that still comes."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return [json.loads(line.removeprefix("data: ")) async for line in self.lines if line.startswith("data: ")]


@asynccontextmanager
async def streaming(
    http: httpx2.AsyncClient, message: dict[str, Any], headers: dict[str, str]
) -> AsyncIterator[RawStream]:
    async with http.stream("POST", "/mcp", json=message, headers={"accept": ACCEPT, **headers}) as response:
        yield RawStream(response)


async def open_session(
    server: RunningServer, revision: str = "2025-11-25", capabilities: Any = EVERYTHING, **more: str
) -> RawSession:
    """A session that was opened in order."""
    params = {"protocolVersion": revision, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {"accept": ACCEPT, **{name.replace("_", "-"): text for name, text in more.items()}}
    opened = await server.http.post("/mcp", json=opening, headers=headers)
    headers |= {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": revision}
    session = RawSession(server.http, headers)
    await session.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return session


def newest_headers(tool: str) -> dict[str, str]:
    """Those of a call in the newest revision."""
    return {
        "accept": ACCEPT,
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": tool,
    }


def text_of(message: Any) -> str:
    """The text of a tool's answer."""
    return str(message["result"]["content"][0]["text"])


async def ask_name(call: Call) -> str:
    """A tool's work: ask for a name, and greet."""
    answer = await call.client.ask("name", "elicitation/create", ELICIT)
    return f"Hello {answer['content']['name']}"
