"""Calls whose answer turns into a stream: what goes over the wire, and who gets it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from refdesk.app import Desk, open_desk
from refdesk.calls import Call
from refdesk.config.models import Config
from refdesk.errors import ClientCannot, EngineError
from refdesk.inbound.http_server import HttpServer, bind, open_http
from refdesk.inbound.mcp.streams import MAX_WAITING_BYTES, EventStream
from refdesk.tools.registry import Tool
from tests.conftest import Serve
from tests.inbound.protocol_server import ManualClock
from tests.inbound.streaming import META, ask_name, calling, newest_headers, offer, open_session, streaming, text_of
from tests.servers import NoArguments, RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(server: RunningServer) -> RunningServer:
    offer(server, "steps", take_steps)
    offer(server, "chat", chat)
    offer(server, "ask", ask_name)
    return server


async def take_steps(call: Call) -> str:
    await call.client.progress(1, 2, "half")
    await call.client.progress(2)
    return "done"


async def chat(call: Call) -> str:
    await call.client.log("info", {"rows": 3}, "chat")
    await call.client.log("error", "lost", "chat")
    return "done"


# Telling


async def test_a_call_that_tells_nothing_is_answered_with_one_body(server: RunningServer) -> None:
    session = await open_session(server)
    for quiet in (calling("whoami", progressToken=1), calling("steps")):
        answer = await session.post(quiet)
        assert answer.headers["content-type"] == "application/json"
        assert answer.json()["result"]["content"]


@pytest.mark.parametrize("token", ["p", 0, 7])
async def test_progress_starts_a_stream_that_ends_with_the_answer(server: RunningServer, token: Any) -> None:
    session = await open_session(server)
    async with session.stream(calling("steps", progressToken=token)) as stream:
        headers = stream.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert headers["mcp-session-id"] == session.headers["mcp-session-id"]
        *told, last = await stream.rest()
    assert [note["params"] for note in told] == [
        {"progressToken": token, "progress": 1, "total": 2, "message": "half"},
        {"progressToken": token, "progress": 2},
    ]
    assert (last["id"], text_of(last)) == (5, "done")


@pytest.mark.parametrize("token", [None, True, 1.5, {}])
async def test_a_token_that_is_none_asks_for_no_progress(server: RunningServer, token: Any) -> None:
    answer = await (await open_session(server)).post(calling("steps", progressToken=token))
    assert answer.headers["content-type"] == "application/json"


async def test_an_event_has_the_form_that_the_sdk_gives_it(server: RunningServer) -> None:
    answer = await (await open_session(server)).post(calling("steps", progressToken=1))
    first = answer.content.partition(b"\r\n\r\n")[0]
    assert first.startswith(b'event: message\r\ndata: {"jsonrpc":"2.0","method":"notifications/progress"')


async def test_a_failure_after_something_was_told_is_the_last_event(server: RunningServer) -> None:
    async def fail(call: Call) -> str:
        await call.client.progress(1)
        raise EngineError("the engine does not answer")

    offer(server, "fail", fail)
    for headers, meta in (({}, {}), (newest_headers("fail"), META)):
        async with streaming(server.http, calling("fail", progressToken=1, **meta), headers) as stream:
            assert stream.response.status_code == 200
            assert [message.get("error", {}).get("code") for message in await stream.rest()] == [None, -32001]


async def test_without_a_session_a_client_is_told_and_not_asked(server: RunningServer) -> None:
    async with streaming(server.http, calling("chat"), {}) as stream:
        assert "mcp-session-id" not in stream.response.headers
        *told, _ = await stream.rest()
    assert [note["params"] for note in told] == [
        {"level": "info", "data": {"rows": 3}, "logger": "chat"},
        {"level": "error", "data": "lost", "logger": "chat"},
    ]
    async with streaming(server.http, calling("ask"), {}) as stream:
        assert stream.response.headers["content-type"] == "application/json"
        assert (await stream.response.aread()).find(b"over a session") > 0


async def test_who_accepts_no_stream_gets_none(server: RunningServer) -> None:
    answer = await server.post(calling("steps", progressToken=1), accept="application/json")
    assert text_of(answer.json()) == "done"


async def test_a_session_hears_from_the_level_on_that_it_set(server: RunningServer) -> None:
    session, other = await open_session(server), await open_session(server)
    level = {"jsonrpc": "2.0", "id": 2, "method": "logging/setLevel", "params": {"level": "warning"}}
    await session.post(level)
    async with session.stream(calling("chat")) as stream:
        assert [note["params"]["level"] for note in (await stream.rest())[:-1]] == ["error"]
    async with other.stream(calling("chat")) as stream:
        assert len(await stream.rest()) == 3


async def test_the_newest_revision_streams_progress_and_no_logs_unasked(server: RunningServer) -> None:
    async with streaming(server.http, calling("steps", progressToken="p", **META), newest_headers("steps")) as stream:
        *told, last = await stream.rest()
    assert [note["params"]["progress"] for note in told] == [1, 2]
    assert last["result"]["resultType"] == "complete"
    async with streaming(server.http, calling("chat", **META), newest_headers("chat")) as stream:
        assert stream.response.headers["content-type"] == "application/json"


# Ending


async def test_a_call_that_is_called_off_ends_its_stream_without_an_answer(server: RunningServer) -> None:
    stopped = asyncio.Event()

    async def work(call: Call) -> str:
        await call.client.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    offer(server, "work", work)
    session = await open_session(server)
    async with session.stream(calling("work", progressToken=1)) as stream:
        await stream.next()
        params = {"requestId": 5, "reason": "enough"}
        await session.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        assert await stream.rest() == []
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stopped.wait()
    assert (await session.post(calling("whoami"))).status_code == 200, "the id is free again"


@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_that_leaves_its_stream_stops_the_work(server: RunningServer, modern: bool) -> None:
    stopped = asyncio.Event()

    async def work(call: Call) -> str:
        await call.client.progress(1)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    offer(server, "work", work)
    headers = newest_headers("work") if modern else (await open_session(server)).headers
    async with streaming(server.http, calling("work", progressToken=1, **(META if modern else {})), headers) as stream:
        await stream.next()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stopped.wait()


async def test_a_stream_that_outlasts_the_grace_period_is_told_so(serve: Serve) -> None:
    async with serve(server__shutdown_grace_seconds=0) as server:

        async def never(call: Call) -> str:
            await call.client.progress(1)
            await asyncio.Event().wait()
            return "never"

        offer(server, "never", never)
        async with streaming(server.http, calling("never", progressToken=1), {}) as stream:
            await stream.next()
            os.kill(os.getpid(), signal.SIGTERM)
            assert (await stream.next())["error"]["data"]["retryable"] is True
            assert await stream.rest() == []


@asynccontextmanager
async def serving_by(clock: ManualClock, config: Config) -> AsyncIterator[tuple[Desk, int]]:
    """A server whose timeouts depend on a clock that the test moves."""
    listener = bind(config.server)
    port: int = listener.getsockname()[1]
    async with open_desk(config) as desk, open_http(desk, config, port) as app:
        ready = asyncio.Event()
        server = HttpServer(app, config.server, ready.set, clock=clock)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await ready.wait()
            yield desk, port
        finally:
            server.should_exit = True
            await running


async def test_a_client_that_does_not_read_costs_little_and_not_for_long(settings: Callable[..., Config]) -> None:
    done, stopped = asyncio.Event(), asyncio.Event()

    async def flood(arguments: NoArguments, call: Call) -> str:
        try:
            for number in range(2000):  # 200 MB, which no socket's buffer holds
                await call.client.progress(number, message="x" * 100_000)
                await checkpoint()
            done.set()
            while True:
                await call.client.log("info", "x" * 100_000)
        finally:
            stopped.set()

    clock = ManualClock()
    async with serving_by(clock, settings()) as (desk, port):
        desk.registry.add_tool(Tool("flood", "Flood", "Tells much.", "docs", NoArguments, flood))
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        body = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"flood","_meta":{"progressToken":1}}}'
        head = (
            "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\naccept: text/event-stream\r\n"
        )
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(PATIENCE_SECONDS):
            await done.wait()
            assert not stopped.is_set()
            clock.advance(settings().server.write_timeout_seconds)
            await stopped.wait()
        writer.close()


async def test_only_so_much_waits_for_a_client_that_does_not_read() -> None:
    reads = asyncio.Event()
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        await reads.wait()
        sent.append(message.get("body", b""))

    stream = EventStream(send, ())
    offered = 0
    while stream.has_room:
        stream.put(b"x" * 1000)
        offered += 1
    assert offered == MAX_WAITING_BYTES // 1000 + 1
    waiting = asyncio.create_task(stream.wait_for_room())
    await anyio.wait_all_tasks_blocked()
    assert not waiting.done()
    reads.set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await waiting
        await stream.end(b"last")
    assert b"".join(sent) == b"x" * 1000 * offered + b"event: message\r\ndata: last\r\n\r\n"
    stream.put(b"late")
    stream.abandon()


async def test_a_long_silence_is_broken_by_a_comment_that_is_no_event() -> None:
    sent: list[bytes] = []
    pinged = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(b": ping\r\n\r\n") == 2:
            pinged.set()

    stream = EventStream(send, (), ping_seconds=0.01)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await pinged.wait()
        await stream.end(b"{}")
    assert sent[-1].endswith(b"event: message\r\ndata: {}\r\n\r\n")


async def test_who_has_news_after_the_answer_disturbs_nobody(server: RunningServer) -> None:
    late: list[asyncio.Task[None]] = []
    release = asyncio.Event()

    async def report_late(call: Call) -> None:
        await release.wait()
        await call.client.progress(1)
        await call.client.log("error", "late")
        with pytest.raises(ClientCannot):
            await call.client.ask("name", "elicitation/create", {})

    async def leave(call: Call) -> str:
        late.append(asyncio.create_task(report_late(call)))
        return "left"

    offer(server, "leave", leave)
    session = await open_session(server)
    assert text_of((await session.post(calling("leave", progressToken=1))).json()) == "left"
    release.set()
    await late[0]
    assert text_of((await session.post(calling("whoami"))).json()) == "default/anonymous"


# Who is there


async def test_a_call_knows_what_its_caller_presented_and_does_not_show_it(server: RunningServer) -> None:
    async def present(call: Call) -> str:
        assert call.credential is not None
        assert call.credential not in repr(call)
        return call.credential

    offer(server, "present", present)
    bearer = {"authorization": "Bearer token-of-ann"}
    session = await open_session(server, **bearer)
    answers = [
        (await session.post(calling("present"))).json(),
        (await server.http.post("/mcp", json=calling("present"), headers=bearer)).json(),
    ]
    assert [text_of(answer) for answer in answers] == ["token-of-ann"] * 2
    rest = await server.http.post("/api/tools/present", json={}, headers=bearer)
    assert rest.json()["content"][0]["text"] == "token-of-ann"
    answer = await server.http.post("/mcp", json=calling("present", **META), headers=newest_headers("present") | bearer)
    assert text_of(answer.json()) == "token-of-ann"


async def test_calls_of_one_session_have_one_key(server: RunningServer) -> None:
    keys: list[object] = []

    async def note(call: Call) -> str:
        keys.append(call.client.key)
        return "noted"

    offer(server, "note", note)
    session, other = await open_session(server), await open_session(server)
    await session.post(calling("note"))
    # Some clients do not name their revision.
    await server.http.post(
        "/mcp", json=calling("note"), headers={k: v for k, v in session.headers.items() if k != "mcp-protocol-version"}
    )
    await other.post(calling("note"))
    assert keys[0] == keys[1] != keys[2]
