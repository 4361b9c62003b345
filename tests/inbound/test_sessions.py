"""What only a live connection can do: progress, logs, questions, changes, cancelling, and an orderly end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp.client.streamable_http import streamable_http_client
from mcp.server.subscriptions import PromptsListChanged, ToolsListChanged

from refdesk.calls import ANONYMOUS, Caller, Event, ListChanged, ResourceUpdated, TenantId, UserId
from refdesk.inbound.mcp.sessions import MAX_SUBSCRIPTIONS, MAX_URI_LENGTH, Session, SessionTable
from refdesk.tools.registry import Tool
from tests.conftest import Serve
from tests.inbound.streaming import RawSession, open_session
from tests.servers import NoArguments, RunningServer, whoami
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

MODES = ["legacy", "2026-07-28"]
ACCEPT = "application/json, text/event-stream"
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


async def name_is_ann(context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ann"})


@pytest.mark.parametrize("mode", MODES)
async def test_progress_and_logs_arrive_while_the_call_is_open(server: RunningServer, mode: Any) -> None:
    steps: list[tuple[float, float | None, str | None]] = []
    logs: list[Any] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total, message))

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    async with Client(f"{server.url}/mcp", mode=mode, logging_callback=on_log, log_level="debug") as client:
        result = await client.call_tool("report", {}, progress_callback=on_progress)
    assert isinstance(result, types.CallToolResult)
    assert steps == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
    assert logs == ["almost done"]


async def test_logs_below_the_level_that_a_session_set_are_not_sent(server: RunningServer) -> None:
    logs: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        logs.append(params.data)

    async with Client(f"{server.url}/mcp", mode="legacy", logging_callback=on_log) as client:
        level = types.SetLevelRequest(params=types.SetLevelRequestParams(level="error"))
        await client.session.send_request(level, types.EmptyResult)
        await client.call_tool("report", {})
    assert logs == []


@pytest.mark.parametrize("mode", MODES)
async def test_a_tool_can_ask_the_client_in_either_era(server: RunningServer, mode: Any) -> None:
    async with Client(f"{server.url}/mcp", mode=mode, elicitation_callback=name_is_ann) as client:
        result = await client.call_tool("ask_name", {})
    assert isinstance(result, types.CallToolResult)
    assert isinstance(result.content[0], types.TextContent)
    assert result.content[0].text == "Hello Ann"


async def test_a_client_that_cannot_be_asked_is_told_so(server: RunningServer) -> None:
    plain = await server.call("tools/call", {"name": "ask_name", "arguments": {}})
    assert plain["result"]["isError"] is True
    async with Client(f"{server.url}/mcp", mode="legacy") as client:
        result = await client.call_tool("ask_name", {})
    assert isinstance(result, types.CallToolResult)
    assert result.is_error


async def test_a_plain_client_that_accepts_a_stream_gets_progress_without_a_session(server: RunningServer) -> None:
    params = {"name": "report", "arguments": {}, "_meta": {"progressToken": "p"}}
    message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
    answer = await server.post(message, accept=ACCEPT)
    events = [
        json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: {")
    ]
    steps = [event["params"]["progress"] for event in events if event.get("method") == "notifications/progress"]
    assert steps == [1, 2, 3]
    assert events[-1]["result"]["content"][0]["text"] == "reported"


async def test_open_sessions_hear_that_a_list_changed(server: RunningServer) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification | types.ResourceUpdatedNotification):
            heard.put_nowait(message.method)

    async with Client(f"{server.url}/mcp", mode="legacy", message_handler=on_message) as client:
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed
        uri = "techdoc://refdesk/docs"
        subscribe = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
        await client.session.send_request(subscribe, types.EmptyResult)
        # The stream that carries it is opened by the client in its own time, so the change is told until it is heard.
        for event, method in (
            (ListChanged("tools"), "notifications/tools/list_changed"),
            (ResourceUpdated(uri), "notifications/resources/updated"),
        ):
            await eventually(partial(is_heard, server, heard, event))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await heard.get() != method:
                    continue
                while not heard.empty():
                    heard.get_nowait()


def is_heard(server: RunningServer, heard: asyncio.Queue[str], *events: Event) -> bool:
    """Publish events once more, and return whether any has been heard."""
    for event in events:
        server.desk.registry.publish(event)
    return not heard.empty()


async def test_nobody_hears_of_a_resource_that_is_not_open_to_them(server: RunningServer) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    asked: list[str] = []

    async def on_message(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification | types.ResourceUpdatedNotification):
            heard.put_nowait(message.method)

    def is_open(caller: Caller) -> bool:
        asked.append(caller.user)
        return False

    async with Client(f"{server.url}/mcp", mode="legacy", message_handler=on_message) as client:
        uri = "notes://all"
        subscribe = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
        await client.session.send_request(subscribe, types.EmptyResult)
        events = ResourceUpdated(uri, is_open_to=is_open), ListChanged("tools")
        await eventually(lambda: is_heard(server, heard, *events))
        assert asked[0] == "anonymous"
        assert {heard.get_nowait() for _ in range(heard.qsize())} == {"notifications/tools/list_changed"}


async def test_a_client_cannot_have_anything_of_any_length_kept_for_it(server: RunningServer) -> None:
    session = await open_session(server)
    uris = ["x://" + "x" * MAX_URI_LENGTH, *(f"x://{number}" for number in range(MAX_SUBSCRIPTIONS + 1))]
    refused = []
    for uri in uris:
        subscribe = {"jsonrpc": "2.0", "id": 2, "method": "resources/subscribe", "params": {"uri": uri}}
        answer = (await session.post(subscribe)).json()
        if "error" in answer:
            refused.append((uri, answer["error"]["code"]))
    assert refused == [(uris[0], types.INVALID_PARAMS), (uris[-1], types.INVALID_PARAMS)]


async def test_listeners_of_the_newest_revision_hear_it_too(server: RunningServer) -> None:
    async with (
        Client(f"{server.url}/mcp", mode="2026-07-28") as client,
        client.listen(tools_list_changed=True) as events,
    ):
        server.desk.registry.add_tool(_late_tool())
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in events:
                assert isinstance(event, ToolsListChanged)
                break
        listed = await client.list_tools(cache_mode="bypass")
    assert "late" in {tool.name for tool in listed.tools}


TENANTS = {
    "auth__required": True,
    "auth__keys": [{"key": "key-of-acme", "tenant": "acme"}, {"key": "key-of-beta", "tenant": "beta"}],
}


CHANGES = ListChanged("tools", TenantId("acme")), ListChanged("prompts", TenantId("beta"))
"""Of the other tenant first, so that who hears of the second has not been told of it."""


@asynccontextmanager
async def client_of_beta(server: RunningServer, **how: Any) -> AsyncIterator[Client]:
    async with (
        httpx2.AsyncClient(headers={"x-api-key": "key-of-beta"}, timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), **how) as client,
    ):
        yield client


async def test_a_session_does_not_hear_what_other_tenants_do(serve: Serve) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def on_message(message: Any) -> None:
        heard.put_nowait(message.method)

    async with serve(**TENANTS) as server, client_of_beta(server, mode="legacy", message_handler=on_message):
        await eventually(lambda: is_heard(server, heard, *CHANGES))
        for event in CHANGES:
            server.desk.registry.publish(event)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [await heard.get() for _ in range(2)] == ["notifications/prompts/list_changed"] * 2


async def test_a_listener_of_the_newest_revision_does_not_hear_it_either(serve: Serve) -> None:
    async with (
        serve(**TENANTS) as server,
        client_of_beta(server, mode="2026-07-28") as client,
        client.listen(tools_list_changed=True, prompts_list_changed=True) as events,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        for event in CHANGES:
            server.desk.registry.publish(event)
        assert isinstance(await anext(aiter(events)), PromptsListChanged)


def _late_tool() -> Any:
    return Tool("late", "Late", "Came later.", "docs", NoArguments, whoami)


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_call_stops_the_work_behind_it(server: RunningServer, mode: Any) -> None:
    async with Client(f"{server.url}/mcp", mode=mode) as client:
        call = asyncio.create_task(client.call_tool("hang", {}))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.probe.started.wait()
            call.cancel()
            await server.probe.cancelled.wait()


async def test_a_stop_lets_calls_finish_and_ends_streams_at_once(serve: Serve) -> None:
    """A call with a bare answer, and one whose answer is an event stream; a signal as an operator sends it."""
    async with serve(server__shutdown_grace_seconds=PATIENCE_SECONDS) as server:
        begun: asyncio.Queue[None] = asyncio.Queue()
        release = asyncio.Event()

        async def slow(arguments: NoArguments, call: Any) -> str:
            begun.put_nowait(None)
            await release.wait()
            return "finished"

        async def slow_talker(arguments: NoArguments, call: Any) -> str:
            await call.client.log("info", "begun")
            return await slow(arguments, call)

        for tool in (slow, slow_talker):
            server.desk.registry.add_tool(Tool(tool.__name__, "Slow", "Takes its time.", "docs", NoArguments, tool))
        opened = await server.post(OPENING, accept=ACCEPT)
        headers = {"mcp-session-id": opened.headers["mcp-session-id"], "accept": ACCEPT}
        async with server.http.stream("GET", "/mcp", headers=headers) as stream:
            assert stream.status_code == 200
            calls = [asyncio.create_task(server.post(_call(name), accept=ACCEPT)) for name in ("slow", "slow_talker")]
            async with asyncio.timeout(PATIENCE_SECONDS):
                await begun.get()
                await begun.get()
                os.kill(os.getpid(), signal.SIGTERM)
                async for _ in stream.aiter_raw():
                    pass
                assert not any(call.done() for call in calls)
                release.set()
                for call in calls:
                    assert "finished" in (await call).text


async def test_a_call_that_outlasts_the_grace_period_is_told_so(serve: Serve) -> None:
    async with serve(server__shutdown_grace_seconds=0) as server:
        call = asyncio.create_task(server.post(_call("hang")))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.probe.started.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            answer = await call
        assert answer.status_code == 503
        assert answer.json()["error"]["data"]["retryable"] is True


async def test_a_stream_that_outlasts_the_grace_period_ends_with_an_error(serve: Serve) -> None:
    async with serve(server__shutdown_grace_seconds=0) as server:

        async def never(arguments: NoArguments, call: Any) -> str:
            await call.client.log("info", "begun")
            server.probe.started.set()
            await asyncio.Event().wait()
            return "never"

        server.desk.registry.add_tool(Tool("never", "Never", "Never ends.", "docs", NoArguments, never))
        call = asyncio.create_task(server.post(_call("never"), accept=ACCEPT))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.probe.started.wait()
            os.kill(os.getpid(), signal.SIGTERM)
            answer = await call
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert '"retryable":true' in answer.text.rstrip().rpartition("data: ")[2]


def _call(tool: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": tool, "arguments": {}}}


async def test_a_session_too_many_is_told_when_to_come_back(serve: Serve) -> None:
    async with serve(server__max_sessions=1) as server:
        assert (await server.post(OPENING, accept=ACCEPT)).status_code == 200
        refused = await server.post(OPENING, accept=ACCEPT)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["data"]["retryable"] is True


async def test_notification_is_acknowledged_once_when_its_session_ends_meanwhile(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    session = await open_session(server)
    body = json.dumps({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}).encode()
    headers = {"host": f"127.0.0.1:{server.port}", "content-type": "application/json", **session.headers}
    scope = {
        "type": "http", "method": "POST", "path": "/mcp", "query_string": b"", "http_version": "1.1", "scheme": "http",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", server.port),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(part: Any) -> None:
        sent.append(part)
        if part["type"] == "http.response.body":
            await server.http.delete("/mcp", headers=session.headers)

    await server.app(scope, receive, send)
    assert [part.get("status") for part in sent] == [202, None]
    assert [record for record in caplog.records if record.name.startswith("mcp")] == []


@asynccontextmanager
async def notifications(session: RawSession, **headers: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """The notifications of a session with their ids, as they come."""
    async with session.http.stream("GET", "/mcp", headers=session.headers | headers) as response:
        assert response.status_code == 200
        yield read_events(response)


async def read_events(response: httpx2.Response) -> AsyncIterator[tuple[str, Any]]:
    id = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            id = line.removeprefix("id: ")
        elif line.startswith("data:"):
            data = line.removeprefix("data:").strip()
            yield id, json.loads(data)["method"] if data else None


async def test_a_lost_stream_is_taken_up_after_the_last_notification_that_arrived(server: RunningServer) -> None:
    session = await open_session(server)
    async with notifications(session) as heard, asyncio.timeout(PATIENCE_SECONDS):
        server.desk.registry.publish(ListChanged("tools"))
        last, method = await anext(heard)
        assert method == "notifications/tools/list_changed"
    server.desk.registry.publish(ListChanged("prompts"))
    server.desk.registry.publish(ListChanged("resources"))
    async with asyncio.timeout(PATIENCE_SECONDS), notifications(session, **{"last-event-id": last}) as heard:
        missed = [await anext(heard) for _ in range(3)]
        server.desk.registry.publish(ListChanged("tools"))
        next_one = await anext(heard)
    changed = ["notifications/prompts/list_changed", "notifications/resources/list_changed", None]
    assert [method for _, method in missed] == changed, "what was missed, and where the stream goes on"
    assert next_one[1] == "notifications/tools/list_changed"
    ids = [int(id) for id, _ in (*missed, next_one)]
    assert ids == sorted(ids)
    assert ids[0] > int(last)


async def test_a_session_has_one_stream_and_who_comes_back_takes_it_over(server: RunningServer) -> None:
    session = await open_session(server)
    async with asyncio.timeout(PATIENCE_SECONDS), notifications(session) as first:
        second = await server.http.get("/mcp", headers=session.headers)
        assert second.status_code == 409
        async with notifications(session, **{"last-event-id": "1"}) as heard:
            assert [event async for event in first] == []
            assert (await anext(heard))[1] is None
            server.desk.registry.publish(ListChanged("tools"))
            assert (await anext(heard))[1] == "notifications/tools/list_changed"


async def test_a_session_ends_when_its_client_says_so(server: RunningServer) -> None:
    session = await open_session(server)
    async with asyncio.timeout(PATIENCE_SECONDS), notifications(session) as heard:
        assert (await server.http.delete("/mcp", headers=session.headers)).status_code == 200
        assert [event async for event in heard] == []
    assert (await session.post(_call("whoami"))).status_code == 404
    assert (await server.http.get("/mcp", headers=session.headers)).status_code == 404
    assert (await server.http.delete("/mcp", headers=session.headers)).status_code == 404


async def test_only_an_unused_session_expires() -> None:
    ended: asyncio.Queue[Session] = asyncio.Queue()
    table = SessionTable(max_sessions=3, idle_seconds=0.01, on_close=ended.put_nowait)
    busy, unused = (table.create(ANONYMOUS) for _ in range(2))
    for session in (busy, unused):
        table.add(session)
    work = asyncio.get_running_loop().create_future()
    busy.begin(1, work)
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await ended.get() is unused
        assert table.find(unused.id.encode(), ANONYMOUS) is None
        assert table.find(busy.id.encode(), ANONYMOUS) is busy
        busy.finish(1, work)
        assert await ended.get() is busy
    assert len(table) == 0


async def test_a_session_belongs_to_who_opened_it() -> None:
    table = SessionTable(max_sessions=3, idle_seconds=60, on_close=lambda session: None)
    ann, eve = (Caller(user=UserId(name), authenticated=True) for name in ("ann", "eve"))
    session = table.create(ann)
    table.add(session)
    assert table.find(session.id.encode(), ann) is session
    for other in (eve, ANONYMOUS, replace(ann, tenant=TenantId("other"))):
        assert table.find(session.id.encode(), other) is None
    table.close_all()
