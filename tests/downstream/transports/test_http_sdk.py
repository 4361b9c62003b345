"""Both ways over HTTP to servers of the official SDK, in a real uvicorn: both eras, answers as JSON and as streams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from pydantic import BaseModel
from starlette.applications import Starlette

from refdesk.downstream.transports.sse import SseTransport
from refdesk.downstream.transports.streamable import StreamableHttpTransport
from refdesk.errors import ServerRefused
from tests.downstream.transports.conversing import Caller, conversing
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

MODERN = "2026-07-28"


class Name(BaseModel):
    name: str


def good_server() -> MCPServer[Any]:
    """A server with a tool for each thing that can happen during a call."""
    server: MCPServer[Any] = MCPServer("good")

    @server.tool()
    async def echo(text: str) -> str:
        return text

    @server.tool()
    async def report(context: Context[Any]) -> str:
        for done in (1, 2, 3):
            await context.report_progress(done, 3)
        return "reported"

    @server.tool()
    async def ask(context: Context[Any]) -> str:
        answer = await context.elicit("Who?", Name)
        return f"Hello {answer.data.name}" if answer.action == "accept" else "no"

    @server.tool()
    async def grow(context: Context[Any]) -> str:
        await context.session.send_tool_list_changed()
        return "grown"

    @server.tool()
    async def pause(context: Context[Any]) -> str:
        await context.close_sse_stream()
        await context.report_progress(1, 2)
        return "paused"

    @server.tool()
    async def large(size: int) -> str:
        return "x" * size

    return server


class Kept(EventStore):
    """Events in memory, so that streams can be taken up again."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self._events.append((stream_id, message))
        return str(len(self._events))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        stream, _ = self._events[int(last_event_id) - 1]
        for number, (other, message) in enumerate(self._events[int(last_event_id) :], int(last_event_id) + 1):
            if other == stream and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream


class _QuietServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The signals of this process are the test runner's."""
        yield


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """The address of a real server around the app."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1)
        server = _QuietServer(config)
        running = asyncio.create_task(server.serve([listening]))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


@pytest.mark.parametrize("json_response", [False, True])
@pytest.mark.parametrize("version", [None, "2025-06-18", MODERN])
async def test_tools_are_listed_and_called(json_response: bool, version: str | None) -> None:
    async with (
        serving(good_server().streamable_http_app(json_response=json_response)) as url,
        conversing(StreamableHttpTransport, f"{url}/mcp", version=version) as conversation,
    ):
        assert conversation.session is not None
        assert conversation.session.server_profile.version == (version or "2025-11-25")
        tools = await conversation.session.list_all("tools")
        assert {tool["name"] for tool in tools} >= {"echo", "report"}
        texts = [str(number) for number in range(40)]
        assert await asyncio.gather(*(conversation.says("echo", text=text) for text in texts)) == texts
        assert len(await conversation.says("large", size=1_000_000)) == 1_000_000
        with pytest.raises(ServerRefused) as caught:
            await conversation.session.request("no/such", {})
        assert caught.value.code == -32601
        assert conversation.host.losses == []


@pytest.mark.parametrize("version", [None, MODERN])
async def test_progress_is_heard_by_the_caller(version: str | None) -> None:
    async with (
        serving(good_server().streamable_http_app()) as url,
        conversing(StreamableHttpTransport, f"{url}/mcp", version=version) as conversation,
    ):
        caller = Caller()
        assert await conversation.says("report", caller) == "reported"
        assert caller.told == ["notifications/progress"] * 3


async def test_a_server_can_ask_the_caller_and_say_what_has_changed() -> None:
    async with (
        serving(good_server().streamable_http_app()) as url,
        conversing(StreamableHttpTransport, f"{url}/mcp") as conversation,
    ):
        caller = Caller()
        assert await conversation.says("ask", caller) == "Hello Ada"
        assert caller.asked == ["elicitation/create"]

        async def is_told_of_a_change() -> bool:
            # The stream for it is opened behind our back: the first change may be too early to be told.
            await conversation.call("grow")
            return conversation.host.is_told.is_set()

        await eventually(is_told_of_a_change)
        assert set(conversation.host.noted) == {"notifications/tools/list_changed"}


async def test_a_stream_that_the_server_closes_meanwhile_is_taken_up_again() -> None:
    app = good_server().streamable_http_app(event_store=Kept(), retry_interval=20)
    async with serving(app) as url, conversing(StreamableHttpTransport, f"{url}/mcp") as conversation:
        caller = Caller()
        assert await conversation.says("pause", caller) == "paused"
        assert caller.told == ["notifications/progress"]


async def test_a_server_without_sessions_is_spoken_to_as_well() -> None:
    app = good_server().streamable_http_app(stateless_http=True, json_response=True)
    async with serving(app) as url, conversing(StreamableHttpTransport, f"{url}/mcp") as conversation:
        assert await conversation.says("echo", text="hello") == "hello"
        assert conversation.host.losses == []


async def test_the_old_transport_does_the_same() -> None:
    async with serving(good_server().sse_app()) as url, conversing(SseTransport, f"{url}/sse") as conversation:
        caller = Caller()
        assert await conversation.says("echo", text="hello") == "hello"
        assert await conversation.says("report", caller) == "reported"
        assert await conversation.says("ask", caller) == "Hello Ada"
        assert caller.told == ["notifications/progress"] * 3
        assert len(await conversation.says("large", size=1_000_000)) == 1_000_000
        await conversation.call("grow")
        assert conversation.host.noted == ["notifications/tools/list_changed"]
        texts = [str(number) for number in range(40)]
        assert await asyncio.gather(*(conversation.says("echo", text=text) for text in texts)) == texts
