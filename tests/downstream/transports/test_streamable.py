"""Streamable HTTP with a server that does its part: sessions, streams, headers, and nothing left behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest

from refdesk.downstream.transports.streamable import StreamableHttpTransport
from refdesk.errors import ServerAway, ServerGone
from tests.downstream.contract import Belongings
from tests.downstream.servers.bad_http import BadHttp, Request, bad_http
from tests.downstream.transports.conversing import Caller, call_off, conversing
from tests.ports import find_free_port
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

OURS = {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length"}
OF_SESSIONS = {"mcp-session-id", "mcp-protocol-version"}


@pytest.fixture
async def server() -> AsyncIterator[BadHttp]:
    async with bad_http() as server:
        yield server


async def test_the_session_and_the_version_are_sent_from_the_handshake_on_until_the_end(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        assert await conversation.says("echo", text="hello") == "hello"
        await asyncio.wait_for(server.stream_opened.wait(), PATIENCE_SECONDS)
        (session,) = server.sessions
    first, *others = server.seen
    assert not OF_SESSIONS & first.headers.keys()
    assert all(request.headers["mcp-session-id"] == session for request in others)
    assert all(request.headers["mcp-protocol-version"] == "2025-11-25" for request in others)
    assert {request.method for request in others} == {"POST", "GET", "DELETE"}
    assert server.sessions == set()


async def test_nothing_is_sent_before_the_first_message(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url(), greeted=False):
        pass
    assert server.connections_made == 0


async def test_only_our_own_headers_are_sent_and_those_that_are_set(server: BadHttp) -> None:
    url = server.url().replace("//", "//ada:secret%20word@")
    async with conversing(StreamableHttpTransport, url, headers={"X-Key": "k"}) as conversation:
        await conversation.call("echo")
    for request in server.seen:
        assert request.headers.keys() <= OURS | OF_SESSIONS | {"authorization", "x-key", "last-event-id"}
        assert request.headers["authorization"] == "Basic YWRhOnNlY3JldCB3b3Jk"
        assert request.headers["x-key"] == "k"


async def test_headers_of_one_message_go_with_that_message_only(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url(), headers={"Authorization": "ours"}) as conversation:
        for headers in ({"authorization": "theirs"}, None):
            await conversation.peer.request("tools/call", {"name": "echo"}, headers=headers)
    assert [request.headers["authorization"] for request in server.list_posts("tools/call")] == ["theirs", "ours"]


async def test_an_address_of_another_kind_is_told_when_it_is_opened() -> None:
    with pytest.raises(ServerAway, match="is not an HTTP URL"):
        async with conversing(StreamableHttpTransport, "ws://127.0.0.1/mcp", greeted=False, type="http"):
            pass


async def test_what_belongs_to_no_call_comes_on_a_stream_that_is_opened_again_where_it_broke_off(
    server: BadHttp,
) -> None:
    changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        for last_id in ("one", "two"):
            await asyncio.wait_for(server.stream_opened.wait(), PATIENCE_SECONDS)
            await server.say(changed, last_id)
            await asyncio.wait_for(conversation.host.is_told.wait(), PATIENCE_SECONDS)
            conversation.host.is_told.clear()
            await server.cut_streams()
        await asyncio.wait_for(server.stream_opened.wait(), PATIENCE_SECONDS)
    assert conversation.host.noted == ["notifications/tools/list_changed"] * 2
    assert [get.headers.get("last-event-id") for get in _gets(server)] == [None, "one", "two"]


async def test_a_server_without_such_a_stream_is_asked_for_it_once(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("get405")) as conversation:
        await server.until(lambda: _gets(server))
        assert await conversation.is_alive()
    assert len(_gets(server)) == 1
    assert [str(error) for error in conversation.host.losses] == ["The session with the server 'bad' has ended"]


async def test_what_is_said_on_the_stream_of_a_call_belongs_to_that_call(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        caller = Caller()
        assert await conversation.says("progress", caller) == "progressed"
        assert caller.told == [*["notifications/progress"] * 2, "notifications/message"]
        assert conversation.host.noted == []


async def test_an_answer_may_come_among_other_messages(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        assert await conversation.says("batch", Caller()) == "of a batch"
        assert await conversation.says("dripsse") == "dripped"
        assert await conversation.says("packed") == "unpacked"
        assert await conversation.says("ssegarbage") == "after garbage"


async def test_an_answer_is_had_although_its_stream_is_never_closed(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        assert await conversation.says("sseopen") == "and now?"
        await asyncio.wait_for(server.left.wait(), PATIENCE_SECONDS)


async def test_an_answer_is_taken_up_where_its_stream_broke_off(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("resumable")) as conversation:
        caller = Caller()
        assert await conversation.says("any", caller) == "resumed after two"
        assert caller.told == ["notifications/message"]
    assert [get.headers["last-event-id"] for get in _gets(server) if "last-event-id" in get.headers] == ["one", "two"]


async def test_an_answer_that_cannot_be_taken_up_is_given_up_after_a_few_tries(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("unresumable")) as conversation:
        with pytest.raises(ServerGone, match="was cut off"):
            await conversation.call("any")
        assert await conversation.is_alive()
    assert len([get for get in _gets(server) if "last-event-id" in get.headers]) == 5


async def test_a_session_that_the_server_forgot_is_over_for_all(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("e404session")) as conversation:
        with pytest.raises(ServerGone, match="has ended"):
            await conversation.call("any")
        assert [type(error) for error in conversation.host.losses] == [ServerGone]
        with pytest.raises(ServerGone):
            await conversation.call("any")
        requests = len(server.list_posts("tools/call"))
    assert requests == 1
    assert len(conversation.host.losses) == 1
    assert "DELETE" not in {request.method for request in server.seen}


async def test_a_session_that_the_server_forgot_is_noticed_without_a_call(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        await asyncio.wait_for(server.stream_opened.wait(), PATIENCE_SECONDS)
        server.sessions.clear()
        await server.cut_streams()
        await asyncio.wait_for(conversation.host.is_lost.wait(), PATIENCE_SECONDS)


async def test_a_call_that_is_given_up_is_called_off(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        await call_off(conversation.call("hangsse"), server, conversation.is_reading)
        await asyncio.wait_for(server.left.wait(), PATIENCE_SECONDS)
        assert await conversation.says("echo", text="next") == "next"
        await server.until(lambda: server.list_posts("notifications/cancelled"))
        (call,) = [request for request in server.list_posts("tools/call") if b"hangsse" in request.body]
        (cancelled,) = server.list_posts("notifications/cancelled")
        assert cancelled.message["params"]["requestId"] == call.message["id"]


async def test_in_the_newest_revision_closing_the_stream_calls_it_off_and_there_is_no_session(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("hangsse"), greeted=False) as conversation:
        conversation.transport.set_protocol_version("2026-07-28")
        headers = {"Mcp-Method": "tools/call"}
        request = conversation.peer.request("tools/call", {"name": "any"}, headers=headers)
        await call_off(request, server, conversation.is_reading)
        await asyncio.wait_for(server.left.wait(), PATIENCE_SECONDS)
        await conversation.peer.close()
    (call,) = server.seen
    assert call.headers.keys() == OURS | {"mcp-protocol-version", "mcp-method"}


async def test_a_long_request_says_much_before_it_ends(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("sseforever"), greeted=False) as conversation:
        conversation.transport.set_protocol_version("2026-07-28")
        caller = Caller()
        listening = asyncio.create_task(conversation.peer.request("subscriptions/listen", {}, callbacks=caller))
        await eventually(lambda: len(caller.told) >= 5)
        listening.cancel()
        await asyncio.wait((listening,))
        await asyncio.wait_for(server.left.wait(), PATIENCE_SECONDS)


async def test_connections_are_used_again(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        for tool in ("echo", "progress") * 20:
            await conversation.call(tool)
        assert server.connections_made <= 4
        await asyncio.gather(*(conversation.call("echo") for _ in range(16)))
        await asyncio.gather(*(conversation.call("echo") for _ in range(16)))
        assert server.connections_made <= 20


@pytest.mark.parametrize("fault", ["hang", "hanghdr", "hangsse", "slowhead"])
async def test_calls_fail_at_once_when_the_transport_is_closed(server: BadHttp, fault: str) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        calls = [asyncio.create_task(conversation.call(fault)) for _ in range(3)]
        await server.until(lambda: len(server.list_posts("tools/call")) == 3)
        if fault in ("hanghdr", "hangsse"):
            await eventually(lambda: conversation.is_reading(answers=3))
    async with asyncio.timeout(PATIENCE_SECONDS):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [ServerGone] * 3
    with pytest.raises(ServerGone):
        await conversation.transport.send({"jsonrpc": "2.0", "id": "x", "method": "ping"})


async def test_the_farewell_waits_for_no_server_that_hangs(server: BadHttp) -> None:
    server.hangs_at_the_end = True
    open_briskly = partial(StreamableHttpTransport, delete_seconds=0.1)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with conversing(open_briskly, server.url()) as conversation:
            await conversation.call("echo")
    assert [type(error) for error in conversation.host.losses] == [ServerGone]


async def test_a_server_that_is_not_there_is_away() -> None:
    url = f"http://127.0.0.1:{find_free_port()}/mcp"
    async with conversing(StreamableHttpTransport, url, greeted=False) as conversation:
        for _ in range(2):
            with pytest.raises(ServerAway, match="no server is listening at its address"):
                await conversation.call("any")


async def test_a_server_that_takes_no_connection_is_away_in_time() -> None:
    """A full backlog: the kernel answers no one any more."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(listening.getsockname())
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        async with conversing(StreamableHttpTransport, url, greeted=False, connect_timeout_seconds=0.3) as conversation:
            with pytest.raises(ServerAway, match=r"did not accept a connection within 0\.3 seconds"):
                await conversation.call("any")
        for one in waiting:
            one.close()


@pytest.mark.slow
async def test_two_hundred_rounds_leave_nothing_behind(server: BadHttp) -> None:
    faults = ("echo", "progress", "reset", "e500", "sseopen", "badchunk", "html", "ssebroken")
    await _round(server, "echo")
    await server.until(lambda: not server.connections)
    before = Belongings.now()
    for round in range(200):
        await _round(server, faults[round % len(faults)])
    await before.are_all()


async def _round(server: BadHttp, tool: str) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        await asyncio.gather(conversation.call(tool), return_exceptions=True)


def _gets(server: BadHttp) -> list[Request]:
    return [request for request in server.seen if request.method == "GET"]
