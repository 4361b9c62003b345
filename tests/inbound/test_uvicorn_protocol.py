"""Slow, greedy and broken clients against a real server on a loopback port, by a clock that the tests move."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest
import uvicorn

from refdesk.config.models import ServerConfig
from tests.inbound.protocol_server import ProtocolServer, in_background, open_server
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LIMITS = ServerConfig(max_connections=64)
HEADER_SECONDS, BODY_SECONDS = LIMITS.header_timeout_seconds, LIMITS.body_timeout_seconds
IDLE_SECONDS, WRITE_SECONDS = LIMITS.idle_timeout_seconds, LIMITS.write_timeout_seconds
LINGER_SECONDS = 1.0
LONG_SECONDS = 10 * max(HEADER_SECONDS, BODY_SECONDS, IDLE_SECONDS, WRITE_SECONDS)

GET = b"GET / HTTP/1.1\r\nhost: desk\r\n\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nhost: desk\r\ntransfer-encoding: chunked\r\n\r\n"


# Slow clients


async def test_a_connection_that_sends_nothing_is_closed_without_a_word() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        desk.clock.advance(HEADER_SECONDS)
        assert await client.read_to_end() == b""


async def test_headers_that_drip_are_answered_408_and_the_connection_closed() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"GET / HTTP/1.1\r\n")
        await client.drip(b"x-slow: 1\r\n", HEADER_SECONDS)
        answer = await client.last_answer()
        assert answer.status == 408
        assert "headers" in answer.detail
        assert desk.app.paths == []


async def test_blank_lines_that_drip_count_as_headers() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.drip(b"\r\n", HEADER_SECONDS)
        assert (await client.last_answer()).status == 408


async def test_the_second_request_of_a_connection_has_a_header_deadline_too() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(GET)
        assert (await client.answer()).status == 200
        await client.drip(GET[:-2] + b"x-slow: 1\r\n" * 100, HEADER_SECONDS)
        assert (await client.last_answer()).status == 408


async def test_a_head_begun_in_the_same_packet_as_the_last_request_has_a_deadline() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(GET + b"GET / HT")
        assert (await client.answer()).status == 200
        desk.clock.advance(HEADER_SECONDS)
        assert (await client.last_answer()).status == 408


async def test_a_body_that_drips_is_answered_408_and_the_application_sees_a_disconnect() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"POST /echo HTTP/1.1\r\nhost: desk\r\ncontent-length: 1000\r\n\r\n")
        await client.drip(b"x", BODY_SECONDS)
        answer = await client.last_answer()
        assert answer.status == 408
        assert "body" in answer.detail
        await desk.app.disconnected.wait()


async def test_a_body_that_drips_into_a_started_answer_is_cut_off() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"POST /stream HTTP/1.1\r\nhost: desk\r\ncontent-length: 1000\r\n\r\n")
        await client.read()
        await client.drip(b"x", BODY_SECONDS)
        received = await client.read_to_end()
        assert received.startswith(b"HTTP/1.1 200 ")
        assert b"408" not in received
        await desk.app.disconnected.wait()


async def test_a_body_that_drips_after_its_answer_ends_the_connection() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"POST /early HTTP/1.1\r\nhost: desk\r\ncontent-length: 1000\r\n\r\n")
        assert (await client.answer()).body == b"early"
        await client.drip(b"x", BODY_SECONDS)
        assert await client.read_to_end() == b""


async def test_a_client_is_not_blamed_for_an_application_that_does_not_read() -> None:
    body = b"x" * 1_000_000
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"POST /hold-body HTTP/1.1\r\nhost: desk\r\ncontent-length: %d\r\n\r\n" % len(body))
        await desk.app.entered.wait()
        sending = asyncio.create_task(client.send(body))
        await eventually(lambda: client.peer.is_reading_paused)
        desk.clock.advance(LONG_SECONDS)
        desk.app.release.set()
        await sending
        assert (await client.answer()).body == body


async def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    async with open_server(LIMITS) as desk, desk.client(receive_buffer=4096) as client:
        await client.send(b"GET /big HTTP/1.1\r\nhost: desk\r\n\r\n")
        await eventually(lambda: client.peer.is_writing_paused)
        assert not desk.app.finished.is_set()
        desk.clock.advance(WRITE_SECONDS)
        await desk.app.finished.wait()
        assert len(await client.read_to_end()) < 256 * 65536


@pytest.mark.parametrize("connection", [b"close", b"keep-alive"])
async def test_an_unread_answer_too_small_to_stop_writing_cannot_hold_the_connection(connection: bytes) -> None:
    async with open_server(LIMITS, send_buffer=2048) as desk, desk.client(receive_buffer=2048) as client:
        await client.send(b"GET /half-big HTTP/1.1\r\nhost: desk\r\nconnection: %s\r\n\r\n" % connection)
        await desk.app.finished.wait()
        # A server stops when its last connection is gone.
        stopping = asyncio.create_task(desk.stop())
        await eventually(lambda: client.peer.is_closing)
        desk.clock.advance(HEADER_SECONDS + WRITE_SECONDS)
        await stopping
        assert len(await client.read_to_end()) < 48_000


# Greedy clients


@pytest.mark.parametrize(
    ("opening", "more"),
    [
        pytest.param(b"GET / HTTP/1.1\r\nx-endless: ", b"x" * 1000, id="one endless header line"),
        pytest.param(b"GET / HTTP/1.1\r\nx-", b"x" * 1000, id="one endless header name"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"x-more: 1\r\n" * 100, id="many headers"),
        pytest.param(b"GET /", b"x" * 1000, id="a huge URL"),
        pytest.param(b"", b"\r\n" * 1000, id="blank lines"),
        pytest.param(CHUNKED + b"1;", b"x" * 1000, id="an endless chunk extension"),
        pytest.param(CHUNKED + b"0\r\n", b"x-more: 1\r\n" * 100, id="many trailers"),
        pytest.param(CHUNKED + b"0\r\nx-endless: ", b"x" * 1000, id="one endless trailer"),
    ],
)
async def test_a_head_without_end_is_answered_431(opening: bytes, more: bytes) -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(opening)
        async with in_background(client.flood(more)):
            answer = await client.last_answer()
        assert answer.status == 431
        assert "4096" in answer.detail


async def test_a_head_over_the_cap_in_a_single_packet_is_answered_431() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"GET / HTTP/1.1\r\nx-long: " + b"x" * 4096 + b"\r\n\r\n")
        assert (await client.last_answer()).status == 431
        assert desk.app.paths == []


async def test_a_head_of_exactly_the_cap_with_a_long_body_is_served() -> None:
    head = b"POST /echo HTTP/1.1\r\ncontent-length: 300000\r\nx-long: \r\n\r\n"
    padded = head.replace(b"x-long: ", b"x-long: " + b"x" * (4096 - len(head)))
    body = b"y" * 300_000
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(padded + body)
        assert (await client.answer()).body == body


async def test_trailers_do_not_become_headers() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(CHUNKED + b"2;note=1\r\nhi\r\n0\r\nauthorization: late\r\n\r\n")
        assert (await client.answer()).body == b"hi"
        assert dict(desk.app.headers).keys() == {b"host", b"transfer-encoding"}


async def test_a_connection_over_the_cap_is_turned_away_until_a_place_is_free() -> None:
    async with open_server(ServerConfig(max_connections=2)) as desk, desk.client() as first:
        async with desk.client() as second:
            for client in (first, second):
                await client.send(GET)
                assert (await client.answer()).status == 200
            async with desk.client() as third:
                await third.send(GET)
                answer = await third.last_answer()
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert "connections" in answer.detail
            await first.send(GET)
            assert (await first.answer()).status == 200
        await wait_until_admitted(desk)


async def wait_until_admitted(desk: ProtocolServer) -> None:
    """Return once a new client is served; the server learns of a departure in its own time."""
    while True:
        async with desk.client() as client:
            await client.send(GET)
            if (await client.answer()).status == 200:
                return


async def test_a_crowd_over_the_cap_does_not_stay_even_if_it_does_not_leave() -> None:
    async with (
        open_server(ServerConfig(max_connections=1)) as desk,
        desk.client() as guest,
        AsyncExitStack() as crowd,
    ):
        await guest.send(GET)
        assert (await guest.answer()).status == 200
        for _ in range(200):
            client = await crowd.enter_async_context(desk.client())
            assert (await client.last_answer()).status == 503
        await guest.send(GET)
        assert (await guest.answer()).status == 200
        assert desk.connections < 100
        desk.clock.advance(LINGER_SECONDS)
        await eventually(lambda: desk.connections == 1)


# Broken requests


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET /\r\n\r\n", id="HTTP/0.9 without a version"),
        pytest.param(b"GET / HTTP/0.9\r\n\r\n", id="HTTP/0.9"),
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", id="HTTP/2.0"),
        pytest.param(CHUNKED[:-2] + b"content-length: 5\r\n\r\n0\r\n\r\n", id="encoding, then length"),
        pytest.param(
            b"POST /echo HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            id="length, then encoding",
        ),
        pytest.param(b"POST /echo HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello!", id="two lengths"),
        pytest.param(b"POST /echo HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", id="unknown encoding"),
        pytest.param(b"POST /echo HTTP/1.1\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", id="two encodings"),
        pytest.param(b"POST /echo HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", id="chunked HTTP/1.0"),
        pytest.param(b"GET / HTTP/1.1\nhost: desk\n\n", id="bare line feeds"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="a TLS handshake"),
    ],
)
async def test_a_request_that_is_not_plain_http_1_is_answered_400(request_bytes: bytes) -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(request_bytes)
        answer = await client.last_answer()
        assert answer.status == 400
        assert answer.detail
        assert desk.app.paths == []


async def test_a_broken_chunk_is_answered_400_and_the_application_sees_a_disconnect() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(CHUNKED + b"2\r\nhi\r\nnot-a-size\r\n")
        assert (await client.last_answer()).status == 400
        await desk.app.disconnected.wait()


async def test_a_broken_body_behind_a_running_request_ends_the_connection_unanswered() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"GET /hold HTTP/1.1\r\nhost: desk\r\n\r\n" + CHUNKED + b"not-a-size\r\n")
        assert await client.read_to_end() == b""


async def test_a_refused_client_may_go_on_sending_for_a_while_and_is_then_cut_off() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"nonsense\r\n\r\n")
        assert (await client.last_answer()).status == 400
        for _ in range(3):
            await client.send(b"more of it")
        desk.clock.advance(LINGER_SECONDS)
        await eventually(lambda: client.peer.is_lost)
        await client.flood(b"x")


async def test_a_broken_request_behind_a_good_one_does_not_take_its_answer() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"GET /hold HTTP/1.1\r\nhost: desk\r\n\r\nnonsense\r\n\r\n")
        await desk.app.entered.wait()
        desk.app.release.set()
        assert (await client.answer()).body == b"held"
        assert await client.read_to_end() == b""


async def test_an_offer_of_another_protocol_is_ignored_and_the_body_stays_a_body() -> None:
    upgrade = b"connection: upgrade\r\nupgrade: other\r\ncontent-length: %d\r\n\r\n" % len(GET)
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"POST /hold HTTP/1.1\r\nhost: desk\r\n" + upgrade)
        await desk.app.entered.wait()
        await client.send(GET)
        desk.app.release.set()
        assert (await client.answer()).body == b"held"
        await client.send(GET)
        await client.answer()
        assert desk.app.paths == ["/hold", "/"]


# Ordinary clients


async def test_a_connection_is_used_again_and_closed_when_idle() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        for _ in range(3):
            await client.send(GET)
            answer = await client.answer()
            assert answer.status == 200
            assert "connection" not in answer.headers
            desk.clock.advance(IDLE_SECONDS - 1)
        desk.clock.advance(1)
        assert await client.read_to_end() == b""


async def test_a_connection_whose_body_ends_after_its_answer_is_closed_when_idle() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"POST /early HTTP/1.1\r\nhost: desk\r\ncontent-length: 2\r\n\r\n")
        assert (await client.answer()).body == b"early"
        await client.send(b"hi")
        await client.send(GET)
        assert (await client.answer()).status == 200
        await client.send(b"POST /early HTTP/1.1\r\nhost: desk\r\ncontent-length: 2\r\n\r\n")
        assert (await client.answer()).body == b"early"
        await client.send(b"hi")
        desk.clock.advance(IDLE_SECONDS)
        assert await client.read_to_end() == b""


async def test_an_answer_may_take_longer_than_any_timeout() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"GET /hold HTTP/1.1\r\nhost: desk\r\n\r\n")
        desk.clock.advance(LONG_SECONDS)
        desk.app.release.set()
        assert (await client.answer()).body == b"held"


class Upgraded(asyncio.Protocol):
    """Stands for a WebSocket: says that it has taken over, then echoes."""

    def __init__(self, config: uvicorn.Config, server_state: Any, app_state: dict[str, Any]) -> None:
        self.connections = server_state.connections

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"upgraded" if data.startswith(b"GET") else data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.discard(self)

    def shutdown(self) -> None:
        self.transport.close()


async def test_an_upgraded_connection_is_no_longer_timed() -> None:
    async with open_server(LIMITS, websocket=Upgraded) as desk, desk.client() as client:
        await client.send(b"GET / HTTP/1.1\r\nhost: desk\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        assert await client.read() == b"upgraded"
        desk.clock.advance(LONG_SECONDS)
        await client.push(b"still there")
        assert await client.read() == b"still there"


async def test_pipelined_requests_are_answered_in_order() -> None:
    post = b"POST /echo HTTP/1.1\r\nhost: desk\r\ncontent-length: 5\r\n\r\nhello"
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(GET + post + GET.replace(b"/ ", b"/last "))
        assert [(await client.answer()).body for _ in range(3)] == [b"/", b"hello", b"/last"]
        await client.send(GET)
        assert (await client.answer()).status == 200


async def test_a_pipelined_body_may_wait_long_for_its_turn() -> None:
    async with open_server(LIMITS) as desk, desk.client() as client:
        await client.send(b"GET /hold HTTP/1.1\r\nhost: desk\r\n\r\n")
        await client.send(b"POST /echo HTTP/1.1\r\nhost: desk\r\ncontent-length: 5\r\n\r\nhel")
        desk.clock.advance(LONG_SECONDS)
        desk.app.release.set()
        assert (await client.answer()).body == b"held"
        await client.send(b"lo")
        assert (await client.answer()).body == b"hello"


async def test_a_burst_of_pipelined_requests_is_answered_in_part_and_the_connection_closed() -> None:
    async with open_server(ServerConfig()) as desk, desk.client() as client:
        await client.send(GET * 1000)
        received = await client.read_to_end()
        answered = received.count(b"HTTP/1.1 200 OK")
        assert 0 < answered < 1000
        assert received.count(b"HTTP/1.1") == answered
        assert len(desk.app.paths) == answered


async def test_the_running_request_sees_its_client_leave_with_others_pipelined_behind_it() -> None:
    async with open_server(LIMITS) as desk:
        async with desk.client() as client:
            await client.send(b"GET /stream HTTP/1.1\r\nhost: desk\r\n\r\n" + GET)
            await client.read()
        await desk.app.disconnected.wait()
        assert desk.app.paths == ["/stream"]


async def test_a_stopping_server_answers_what_it_has_begun_and_closes_the_rest() -> None:
    async with open_server(LIMITS) as desk, desk.client() as busy, desk.client() as idle, desk.client() as silent:
        await idle.send(GET)
        assert (await idle.answer()).status == 200
        await busy.send(b"GET /hold HTTP/1.1\r\nhost: desk\r\n\r\n")
        await desk.app.entered.wait()
        stopping = asyncio.create_task(desk.stop())
        assert await idle.read_to_end() == b""
        assert await silent.read_to_end() == b""
        desk.app.release.set()
        assert (await busy.last_answer()).body == b"held"
        await stopping


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of a thousand connections in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_five_hundred_slow_clients_are_gone_while_others_are_served(many_files: None) -> None:
    openings = [
        (b"", b""),
        (b"GET / HTTP/1.1\r\n", b"x-slow: 1\r\n"),
        (b"POST /echo HTTP/1.1\r\ncontent-length: 1000\r\n\r\n", b"x"),
    ]
    async with open_server(ServerConfig(max_connections=1000)) as desk, AsyncExitStack() as crowd:
        ordinary = [await crowd.enter_async_context(desk.client()) for _ in range(4)]
        slow = []
        for number in range(500):
            client = await crowd.enter_async_context(desk.client())
            opening, drip = openings[number % 3]
            await client.send(opening)
            slow.append((client, drip))
        for _ in range(7):
            for client, drip in slow:
                with suppress(ConnectionError):
                    await client.push(drip)
            for client in ordinary:
                await client.send(b"POST /echo HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello")
                assert (await client.answer()).body == b"hello"
            desk.clock.advance(5)
        for client, _ in slow:
            await client.read_to_end()
        assert all(not client.peer.is_lost for client in ordinary)
