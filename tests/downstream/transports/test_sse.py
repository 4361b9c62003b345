"""The transport of 2024-11-05: a stream that names where messages go, and answers on that stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from refdesk.downstream.transports.sse import SseTransport
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerRefused
from tests.downstream.contract import Belongings
from tests.downstream.servers.bad_http import BadHttp, bad_http
from tests.downstream.transports.conversing import call_off, conversing
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[BadHttp]:
    async with bad_http() as server:
        yield server


async def test_a_message_is_posted_to_where_the_stream_says_and_answered_on_the_stream(server: BadHttp) -> None:
    async with conversing(SseTransport, server.url("sse"), headers={"X-Key": "k"}) as conversation:
        assert await conversation.says("echo", text="hello") == "hello"
        await server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        await asyncio.wait_for(conversation.host.is_told.wait(), PATIENCE_SECONDS)
        assert conversation.host.losses == []
    stream, *posts = server.seen
    assert (stream.method, stream.target) == ("GET", "/sse")
    assert {(post.method, post.target) for post in posts} == {("POST", "/sse?session=1")}
    ours = {"host", "user-agent", "accept", "accept-encoding", "content-type", "content-length", "x-key"}
    assert all(request.headers.keys() <= ours for request in server.seen)
    assert [type(error) for error in conversation.host.losses] == [ServerGone]


async def test_many_answers_find_their_callers(server: BadHttp) -> None:
    async with conversing(SseTransport, server.url("sse")) as conversation:
        texts = [str(number) for number in range(50)]
        assert await asyncio.gather(*(conversation.says("echo", text=text) for text in texts)) == texts


@pytest.mark.parametrize("place", ["foreign", "otherport", "user"])
async def test_messages_go_nowhere_but_to_the_server_itself(server: BadHttp, place: str) -> None:
    with pytest.raises(ServerAway, match="another origin"):
        async with conversing(SseTransport, server.url(f"sse/{place}")):
            pass
    assert [request.method for request in server.seen] == ["GET"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("init401", "refused the credentials"),
        ("redirect", "not followed"),
        ("html", "is it of the type 'http'"),
        ("reset", "ended before"),
        ("close", "ended before"),
        ("nothttp", "invalid HTTP"),
        ("ssecut", "has ended"),
        ("badchunksse", "invalid HTTP"),
        ("late", "did not name a URL for messages within 0.3 seconds"),
        ("hang", "did not name a URL for messages within 0.3 seconds"),
        ("comments", "did not name a URL for messages within 0.3 seconds"),
        ("bigcomment", "more than 50000 bytes"),
        ("drip", "is it of the type 'http'"),
    ],
)
async def test_a_stream_that_is_none_is_told_when_it_is_opened(server: BadHttp, fault: str, words: str) -> None:
    seconds = 0.3 if "0.3 seconds" in words else PATIENCE_SECONDS
    with pytest.raises(ServerAway, match=words):
        async with conversing(
            SseTransport, server.url(f"sse/{fault}"), connect_timeout_seconds=seconds, max_message_bytes=50_000
        ):
            pass
    await server.until(lambda: not server.connections)


async def test_whoever_waits_is_told_when_the_stream_ends(server: BadHttp) -> None:
    async with conversing(SseTransport, server.url("sse")) as conversation:
        silent = asyncio.create_task(conversation.call("echo"))
        with pytest.raises(ServerGone):
            await conversation.call("cut")
        await asyncio.gather(silent, return_exceptions=True)
        assert [type(error) for error in conversation.host.losses] == [ServerGone]
        with pytest.raises(ServerGone):
            await conversation.call("echo")
    assert len(conversation.host.losses) == 1


@pytest.mark.parametrize(
    ("fault", "kind"), [("e401", ServerAway), ("e503", ServerAway), ("e500", ServerAway), ("e413", ServerRefused)]
)
async def test_a_message_that_is_refused_fails_alone(server: BadHttp, fault: str, kind: type[RefdeskError]) -> None:
    async with conversing(SseTransport, server.url(f"sse/{fault}")) as conversation:
        with pytest.raises(kind):
            await conversation.call("any")
        assert await conversation.is_alive()
        assert conversation.host.losses == []


async def test_a_server_that_no_longer_knows_us_is_gone(server: BadHttp) -> None:
    async with conversing(SseTransport, server.url("sse/e404")) as conversation:
        with pytest.raises(ServerGone):
            await conversation.call("any")
        assert [type(error) for error in conversation.host.losses] == [ServerGone]


async def test_a_call_that_is_given_up_leaves_the_stream_open(server: BadHttp) -> None:
    async with conversing(SseTransport, server.url("sse/silent")) as conversation:
        await call_off(conversation.call("any"), server)
        assert await conversation.is_alive()
        await server.until(lambda: server.list_posts("notifications/cancelled"))


async def test_a_hundred_rounds_leave_nothing_behind(server: BadHttp) -> None:
    async def once(path: str) -> None:
        async with conversing(SseTransport, server.url(path)) as conversation:
            await conversation.call("any")

    await once("sse")
    await server.until(lambda: not server.connections)
    before = Belongings.now()
    for path in ("sse", "sse/cut", "sse/foreign", "sse/e500") * 25:
        await asyncio.gather(once(path), return_exceptions=True)
    await before.are_all()
