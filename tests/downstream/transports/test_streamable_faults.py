"""Streamable HTTP with a server that does everything wrong: an error that says what, at once or at the deadline, and
the next call works."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from refdesk.downstream.transports.streamable import StreamableHttpTransport
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerRefused, ServerTalksNonsense
from tests.downstream.servers.bad_http import BadHttp, bad_http
from tests.downstream.transports.conversing import call_off, conversing
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

MAX_BYTES = 100_000


@pytest.fixture
async def server() -> AsyncIterator[BadHttp]:
    async with bad_http() as server:
        yield server


AT_ONCE: dict[str, tuple[type[RefdeskError], str]] = {
    "reset": (ServerGone, "ended before its answer"),
    "close": (ServerGone, "ended before its answer"),
    "resetmid": (ServerGone, "was cut off"),
    "lenlie": (ServerGone, "was cut off"),
    "ssebroken": (ServerGone, "was cut off"),
    "ssecut": (ServerGone, "ended its answer before the end"),
    "badchunk": (ServerTalksNonsense, "invalid HTTP"),
    "badchunksse": (ServerTalksNonsense, "invalid HTTP"),
    "nothttp": (ServerTalksNonsense, "invalid HTTP"),
    "bighead": (ServerTalksNonsense, "invalid HTTP"),
    "lenshort": (ServerTalksNonsense, "invalid"),
    "notjson": (ServerTalksNonsense, "(no|invalid) JSON"),
    "html": (ServerTalksNonsense, "(no|invalid) JSON"),
    "empty": (ServerTalksNonsense, "(no|invalid) JSON"),
    "taken": (ServerTalksNonsense, "(no|invalid) JSON"),
    "utf8bad": (ServerTalksNonsense, "(no|invalid) JSON"),
    "deep": (ServerTalksNonsense, "invalid JSON|more than"),
    "number": (ServerTalksNonsense, "no answer"),
    "wrongid": (ServerTalksNonsense, "no answer"),
    "nullresult": (ServerTalksNonsense, "without a result"),
    "big": (ServerTalksNonsense, "more than 100000 bytes"),
    "bigchunked": (ServerTalksNonsense, "more than 100000 bytes"),
    "bigevent": (ServerTalksNonsense, "more than 100000 bytes"),
    "bigcomment": (ServerTalksNonsense, "more than 100000 bytes"),
    "bomb": (ServerTalksNonsense, "more than 100000 bytes"),
    "e204": (ServerTalksNonsense, "HTTP 204"),
    "e400bare": (ServerRefused, "HTTP 400"),
    "e405": (ServerRefused, "HTTP 405 .* needs the type 'sse'"),
    "e413": (ServerRefused, "HTTP 413"),
    "e401": (ServerAway, r"refused the credentials \(401\): set .* `headers`"),
    "e403": (ServerAway, r"refused the credentials \(403\)"),
    "e429": (ServerAway, "HTTP 429"),
    "e500": (ServerAway, "HTTP 500"),
    "e502": (ServerAway, "HTTP 502"),
    "e503": (ServerAway, "HTTP 503"),
    "redirect": (ServerAway, r"redirects to 'http.*elsewhere' \(HTTP 302\).*not followed"),
    "redirect307": (ServerAway, r"redirects to '/elsewhere' \(HTTP 307\)"),
    "e301bare": (ServerAway, r"redirects to '' \(HTTP 301\)"),
}


@pytest.mark.parametrize("fault", AT_ONCE)
async def test_a_fault_is_told_at_once_and_the_next_call_works(server: BadHttp, fault: str) -> None:
    kind, words = AT_ONCE[fault]
    async with conversing(StreamableHttpTransport, server.url(fault), max_message_bytes=MAX_BYTES) as conversation:
        with pytest.raises(kind, match=words):
            await conversation.call("any")
        assert await conversation.is_alive()
        assert conversation.host.losses == []
    assert len(server.list_posts("tools/call")) == 1


@pytest.mark.parametrize("fault", ["hang", "hanghdr", "hangsse", "slowhead", "drip", "sseforever", "comments"])
async def test_a_call_that_does_not_come_to_an_end_can_be_called_off(server: BadHttp, fault: str) -> None:
    async with conversing(StreamableHttpTransport, server.url(fault)) as conversation:
        if fault in ("hang", "slowhead"):
            await call_off(conversation.call("any"), server)
        else:
            await call_off(conversation.call("any"), server, conversation.is_reading)
        await asyncio.wait_for(server.left.wait(), PATIENCE_SECONDS)
        assert await conversation.is_alive()


@pytest.mark.parametrize("fault", ["reset", "e401", "e503", "html", "redirect", "e404", "nothttp"])
async def test_a_handshake_can_fail_in_the_same_ways(server: BadHttp, fault: str) -> None:
    with pytest.raises(RefdeskError):
        async with conversing(StreamableHttpTransport, server.url(f"init/{fault}")):
            pass


async def test_a_handshake_that_hangs_can_be_called_off(server: BadHttp) -> None:
    async def initialize() -> None:
        async with conversing(StreamableHttpTransport, server.url("init/hang")):
            pytest.fail("it was greeted")

    greeting = asyncio.create_task(initialize())
    await server.until(lambda: server.list_posts("initialize"))
    greeting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await greeting


async def test_other_calls_are_not_slowed_by_one_that_is_too_large(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        large = asyncio.create_task(conversation.call("bigcomment"))
        for _ in range(20):
            assert await conversation.says("echo", text="quick") == "quick"
        with pytest.raises(ServerTalksNonsense):
            await large


async def test_what_is_too_large_is_not_kept(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url(), max_message_bytes=1_000_000) as conversation:
        await conversation.call("echo")
        tracemalloc.start()
        try:
            for fault in ("bomb", "bigcomment", "bigchunked"):
                with pytest.raises(ServerTalksNonsense):
                    await conversation.call(fault)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 8_000_000


async def test_an_answer_of_too_many_parts_is_not_taken_apart(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("parts")) as conversation:
        with pytest.raises(ServerTalksNonsense, match="invalid JSON"):
            await conversation.call("any")
        assert conversation.peer.garbage == 0
        assert await conversation.is_alive()


async def test_a_large_message_is_sent_whole(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url()) as conversation:
        assert len(await conversation.says("echo", text="x" * 3_000_000)) == 3_000_000


async def test_an_answer_of_many_megabytes_costs_no_more_than_in_proportion(server: BadHttp) -> None:
    async def seconds(size: int) -> float:
        async with conversing(StreamableHttpTransport, server.url(f"big?bytes={size}")) as conversation:
            began = time.process_time()
            assert len(await conversation.says("any")) == size
            return time.process_time() - began

    await seconds(1_000_000)
    assert await seconds(12_000_000) < 60 * max(await seconds(1_000_000), 0.005)


@pytest.mark.parametrize(("fault", "wait"), [("e429", 7.0), ("e503", 7.0), ("e429bare", None), ("e503date", None)])
async def test_a_server_says_when_to_come_back(server: BadHttp, fault: str, wait: float | None) -> None:
    async with conversing(StreamableHttpTransport, server.url(fault)) as conversation:
        with pytest.raises(ServerAway) as caught:
            await conversation.call("any")
    assert caught.value.retry_after == wait


@pytest.mark.parametrize(("fault", "code"), [("e400", -32042), ("e400noid", -32022)])
async def test_an_error_in_a_refusal_is_the_answer(server: BadHttp, fault: str, code: int) -> None:
    async with conversing(StreamableHttpTransport, server.url(fault)) as conversation:
        with pytest.raises(ServerRefused) as caught:
            await conversation.call("any")
        assert await conversation.is_alive()
    assert caught.value.code == code
    assert caught.value.given == {"why": "because"}


async def test_without_a_session_an_unknown_method_is_just_that(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("e404method"), greeted=False) as conversation:
        with pytest.raises(ServerRefused) as caught:
            await conversation.call("any")
    assert caught.value.code == -32601
    assert [type(error) for error in conversation.host.losses] == [ServerGone]


async def test_credentials_that_are_refused_once_are_sent_again_with_the_next_call(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("e401once"), headers={"X-Key": "k"}) as conversation:
        with pytest.raises(ServerAway):
            await conversation.call("any")
        assert await conversation.says("any") == "let in"
    assert [request.headers["x-key"] for request in server.list_posts("tools/call")] == ["k", "k"]


@pytest.mark.parametrize("fault", ["redirect", "redirect307", "e401"])
async def test_nothing_that_a_server_names_is_fetched(server: BadHttp, fault: str) -> None:
    async with conversing(StreamableHttpTransport, server.url(fault)) as conversation:
        with pytest.raises(ServerAway):
            await conversation.call("any")
        assert await conversation.is_alive()
    assert {request.path for request in server.seen} == {f"/{fault}"}
    assert all("cookie" not in request.headers for request in server.seen)


async def test_only_what_changes_nothing_is_sent_twice(server: BadHttp) -> None:
    async with conversing(StreamableHttpTransport, server.url("close")) as conversation:
        for method in ("tools/list", "tools/call"):
            with pytest.raises(ServerGone):
                await conversation.peer.request(method, {})
    assert [len(server.list_posts(method)) for method in ("tools/list", "tools/call")] == [2, 1]


@pytest.mark.parametrize("fault", ["e401", "redirect", "reset", "e500", "html", "big", "nothttp", "e405"])
async def test_no_error_shows_a_secret(server: BadHttp, fault: str) -> None:
    url = server.url(fault).replace("//", "//ada:sesame@") + "?key=sesame"
    async with conversing(
        StreamableHttpTransport, url, headers={"X-Key": "sesame"}, max_message_bytes=9999
    ) as conversation:
        with pytest.raises(RefdeskError) as caught:
            await conversation.call("any")
    assert "sesame" not in f"{caught.value} {caught.value.data} {conversation.transport!r}"
