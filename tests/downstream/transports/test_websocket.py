"""What is particular to WebSocket; what it shares with the other ways is in the contract."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from websockets import Headers, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.transports.websocket import TIMEOUTS, Timeouts, WebSocketTransport
from refdesk.errors import InvalidCall, ServerAway, ServerGone, ServerTalksNonsense
from tests.certificates import write_certificate
from tests.downstream.contract import Belongings, Box
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

SECRET = "tell-nobody"
BRISK = Timeouts(close=0.2)
"""For servers that do not answer the closing handshake."""

Handler = Callable[[ServerConnection], Awaitable[None]]


@asynccontextmanager
async def serve_websocket(handler: Handler, **options: Any) -> AsyncIterator[str]:
    """A WebSocket server on a free port: its address. At the end those that still hold a connection are cut off."""
    serving: dict[asyncio.Task[Any] | None, ServerConnection] = {}

    async def handle(socket: ServerConnection) -> None:
        serving[asyncio.current_task()] = socket
        try:
            await handler(socket)
        except asyncio.CancelledError:
            socket.transport.abort()
        finally:
            del serving[asyncio.current_task()]

    options = {"subprotocols": ["mcp"], **options}
    async with serve(handle, "127.0.0.1", 0, **options) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
        for task in serving:
            assert task is not None
            task.cancel()


@asynccontextmanager
async def open_test_socket(
    url: str, box: Box, timeouts: Timeouts = TIMEOUTS, **more: Any
) -> AsyncIterator[WebSocketTransport]:
    settings = McpServerConfig(type="websocket", url=url, **more)
    async with WebSocketTransport("chat", settings, box, timeouts=timeouts) as transport:
        yield transport


async def wait_closed(socket: ServerConnection) -> None:
    await socket.wait_closed()


async def say_hello(socket: ServerConnection) -> None:
    await socket.send('{"hello": 1}')
    await socket.wait_closed()


async def test_the_server_sees_the_subprotocol_the_headers_and_who_asks() -> None:
    seen: list[tuple[str | None, Headers]] = []

    async def look(socket: ServerConnection) -> None:
        assert socket.request is not None
        seen.append((socket.subprotocol, socket.request.headers))
        await say_hello(socket)

    box = Box()
    async with serve_websocket(look) as url, open_test_socket(url, box, headers={"X-Api-Key": SECRET}):
        await box.holds(messages=1)
    [(subprotocol, headers)] = seen
    assert (subprotocol, headers["X-Api-Key"], headers["User-Agent"][:8]) == ("mcp", SECRET, "refdesk/")
    assert "Sec-WebSocket-Extensions" not in headers  # so that nothing small can unpack into something large


async def test_a_server_without_subprotocols_and_an_address_that_says_http_will_do() -> None:
    box = Box()
    async with serve_websocket(say_hello, subprotocols=None) as url, open_test_socket(url.replace("ws:", "http:"), box):
        await box.holds(messages=1)
    assert box.messages == [{"hello": 1}]


async def test_messages_come_in_the_order_they_were_sent_whatever_their_frames() -> None:
    async def talk(socket: ServerConnection) -> None:
        for number in range(500):
            text = json.dumps({"n": number})
            await socket.send(text if number % 2 else [text[:3], text[3:]])
        await socket.wait_closed()

    box = Box()
    async with serve_websocket(talk) as url, open_test_socket(url, box):
        await box.holds(messages=500)
    assert [message["n"] for message in box.messages] == list(range(500))


async def test_only_text_frames_with_objects_are_messages() -> None:
    async def babble(socket: ServerConnection) -> None:
        for frame in ("no JSON", "[]", "null", b'{"binary": 1}', "", "{" * 5000, "[" * 5000 + "]" * 5000):
            await socket.send(frame)
        await say_hello(socket)

    box = Box()
    async with serve_websocket(babble) as url, open_test_socket(url, box):
        await box.holds(messages=1)
        assert box.losses == []
    assert box.messages == [{"hello": 1}]
    assert len(box.garbage) == 7
    assert max(map(len, box.garbage)) < 200


async def test_a_batch_is_its_messages_and_one_of_too_many_parts_is_not_read() -> None:
    async def send_batches(socket: ServerConnection) -> None:
        await socket.send("[" + "[]," * 300_000 + "1]")
        await socket.send('[{"n": 1}, 2, {"n": 3}]')
        await socket.wait_closed()

    box = Box()
    async with serve_websocket(send_batches) as url, open_test_socket(url, box):
        await box.holds(messages=2)
    assert box.messages == [{"n": 1}, {"n": 3}]
    assert box.garbage[1:] == ["something in a batch that is no message"]
    assert "more parts" in box.garbage[0]


async def test_what_is_no_json_concerns_its_own_message_only() -> None:
    box = Box()
    async with serve_websocket(say_hello) as url, open_test_socket(url, box) as transport:
        with pytest.raises(InvalidCall, match="'chat'"):
            await transport.send({"set": {1, 2}})
        await transport.send({"params": MappingProxyType({"a": 1})})
        await box.holds(messages=1)
        assert box.losses == []


async def test_one_message_goes_into_one_text_frame() -> None:
    frames: list[str | bytes] = []

    async def listen(socket: ServerConnection) -> None:
        frames.append(await socket.recv())
        await say_hello(socket)

    box = Box()
    async with serve_websocket(listen) as url, open_test_socket(url, box) as transport:
        await transport.send({"text": "naïve\n漢字"}, {"ignored": "header"})
        await box.holds(messages=1)
    assert frames == ['{"text":"naïve\\n漢字"}']


@pytest.mark.parametrize("code", [1000, 1001, 1008, 4001])
async def test_a_loss_is_told_once_with_the_close_code_and_without_the_words_of_the_server(code: int) -> None:
    async def leave(socket: ServerConnection) -> None:
        await socket.close(code, SECRET)

    box = Box()
    async with serve_websocket(leave) as url, open_test_socket(url, box) as transport:
        await box.holds(losses=1)
        with pytest.raises(ServerGone, match=f"code {code}$"):
            await transport.send({})
    [loss] = box.losses
    assert loss.detail == f"The server 'chat' closed the connection with the WebSocket code {code}"


async def test_a_connection_that_breaks_is_lost_at_once() -> None:
    async def vanish(socket: ServerConnection) -> None:
        socket.transport.abort()

    box = Box()
    async with serve_websocket(vanish) as url, open_test_socket(url, box):
        await box.holds(losses=1)
    assert [loss.detail for loss in box.losses] == ["The server 'chat' dropped the connection: WebSocket code 1006"]


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (b"\x81\x7f\x00\x00\x00\x00\x40\x00\x00\x00", "more than 2048 bytes"),  # a frame of a gigabyte begins
        (b"\x01\x7e\x05\x00" + b"x" * 1280 + b"\x80\x7e\x05\x00", "more than 2048 bytes"),  # a message in two frames
        (b"\x83\x01x", "1002"),  # no such kind of frame
        (b"\x81\x02\xff\xfe", "1007"),  # text that is no UTF-8
        (b"\xc1\x02{}", "1002"),  # compressed, which was not agreed on
    ],
)
async def test_a_server_that_breaks_the_rules_is_hung_up_on(octets: bytes, words: str) -> None:
    async def break_rules(socket: ServerConnection) -> None:
        socket.transport.write(octets)
        socket.transport.pause_reading()  # nor does it care for a goodbye
        await asyncio.Event().wait()

    box = Box()
    async with serve_websocket(break_rules) as url:
        before = Belongings.now()
        async with open_test_socket(url, box, BRISK, max_message_bytes=2048):
            await box.holds(losses=1)
        [loss] = box.losses
        assert type(loss) is ServerTalksNonsense
        assert words in loss.detail
    await before.are_all()


async def test_a_server_that_never_hangs_up_after_its_goodbye_is_lost_all_the_same() -> None:
    async def linger(socket: ServerConnection) -> None:
        socket.transport.write(b"\x88\x02\x03\xe8")
        socket.transport.pause_reading()
        await asyncio.Event().wait()

    box = Box()
    async with serve_websocket(linger) as url, open_test_socket(url, box, BRISK):
        await box.holds(losses=1)
    assert "1000" in box.losses[0].detail


async def test_closing_does_not_wait_for_a_server_that_takes_nothing() -> None:
    async def take_nothing(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await asyncio.Event().wait()

    box = Box()
    async with serve_websocket(take_nothing) as url:
        before = Belongings.now()
        async with asyncio.timeout(PATIENCE_SECONDS), open_test_socket(url, box, BRISK) as transport:
            sending = asyncio.create_task(transport.send({"text": "x" * 2**25}))
            await eventually(transport._tcp.get_write_buffer_size)
            assert not sending.done()
        assert [type(loss) for loss in box.losses] == [ServerGone]
        with pytest.raises(ServerGone):
            await sending
        del sending
    await before.are_all()


async def test_a_message_that_is_given_up_while_it_is_sent_leaves_the_connection_usable() -> None:
    is_given_up = asyncio.Event()

    async def take_late(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await is_given_up.wait()
        socket.transport.resume_reading()
        sizes = [len(await socket.recv()) for _ in range(2)]
        await socket.send(json.dumps({"sizes": sizes}))
        await socket.wait_closed()

    box = Box()
    async with serve_websocket(take_late, max_size=None) as url, open_test_socket(url, box) as transport:
        sending = asyncio.create_task(transport.send({"text": "x" * 2**25}))
        await eventually(transport._tcp.get_write_buffer_size)
        sending.cancel()
        await asyncio.wait([sending])
        is_given_up.set()
        await transport.send({})
        await box.holds(messages=1)
    assert box.messages == [{"sizes": [2**25 + 11, 2]}]


async def test_a_redirect_is_not_followed() -> None:
    visits: list[str | None] = []

    async def note(socket: ServerConnection) -> None:
        assert socket.request is not None
        visits.append(socket.request.headers.get("X-Api-Key"))

    async with serve_websocket(note) as elsewhere:

        def redirect(socket: ServerConnection, request: Any) -> Response:
            return Response(HTTPStatus.FOUND, "Found", Headers({"Location": elsewhere}))

        async with serve_websocket(wait_closed, process_request=redirect) as url:
            with pytest.raises(ServerAway, match="HTTP status 302"):
                async with open_test_socket(url, Box(), headers={"X-Api-Key": SECRET}):
                    pytest.fail("it went there")
    assert visits == []


async def test_a_refusal_says_its_status_and_no_secrets() -> None:
    def refuse(socket: ServerConnection, request: Any) -> Response:
        return socket.respond(HTTPStatus.UNAUTHORIZED, f"{SECRET} is wrong")

    async with serve_websocket(wait_closed, process_request=refuse) as url:
        address = url.replace("ws://", f"ws://user:{SECRET}@")
        with pytest.raises(ServerAway, match="HTTP status 401") as away:
            async with open_test_socket(address, Box(), headers={"X-Api-Key": SECRET}):
                pytest.fail("it was refused")
    assert SECRET not in str(away.value)


@pytest.mark.parametrize("url", ["ws://a..b/", "ws://127.0.0.1:1/", "wss://127.0.0.1:1/"])
async def test_an_address_where_nobody_can_be_is_away(url: str) -> None:
    with pytest.raises(ServerAway, match="'chat' cannot be connected to"):
        async with open_test_socket(url, Box()):
            pytest.fail("there is nobody")


async def test_what_is_no_websocket_server_is_away() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ServerAway, match="not a WebSocket server"):
            async with open_test_socket(url, Box()):
                pytest.fail("that was mail")


async def test_a_server_that_says_nothing_is_away_when_its_time_is_up() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        before = Belongings.now()
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ServerAway, match=r"(?:no answer|did not answer) within 0\.1 s"):
            async with open_test_socket(url, Box(), connect_timeout_seconds=0.1):
                pytest.fail("nobody answered")
    await before.are_all()


async def test_a_server_that_no_longer_answers_pings_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def fall_silent(socket: ServerConnection) -> None:
        socket.transport.pause_reading()
        await asyncio.Event().wait()

    box = Box()
    async with (
        serve_websocket(fall_silent) as url,
        open_test_socket(url, box, Timeouts(ping=0.05, pong=0.1, close=0.2)),
    ):
        await box.holds(losses=1)
    assert box.losses[0].detail == "The server 'chat' no longer answers"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_nothing_of_the_wire_is_logged_even_when_everything_is(caplog: pytest.LogCaptureFixture) -> None:
    box = Box()
    with caplog.at_level(logging.DEBUG):
        async with (
            serve_websocket(say_hello) as url,
            open_test_socket(url, box, headers={"Authorization": f"Bearer {SECRET}"}),
        ):
            await box.holds(messages=1)
    assert [record for record in caplog.records if record.name.startswith("refdesk")] == []


async def test_a_hundred_connections_leave_nothing_behind() -> None:
    async def echo(socket: ServerConnection) -> None:
        try:
            async for frame in socket:
                await socket.send(frame)
        except ConnectionClosed:
            return

    async with serve_websocket(echo) as url:
        before = Belongings.now()
        for number in range(100):
            box = Box()
            async with open_test_socket(url, box) as transport:
                await transport.send({"n": number})
                await box.holds(messages=1)
            assert len(box.losses) == 1
        await before.are_all()


async def test_over_tls_only_who_is_trusted_is_talked_to(tmp_path: Path) -> None:
    pem = tmp_path / "chat.pem"
    write_certificate(pem, "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with serve_websocket(say_hello, ssl=context) as url:
        address, box = url.replace("ws:", "wss:"), Box()
        with pytest.raises(ServerAway, match="certificate"):
            async with open_test_socket(address, box):
                pytest.fail("it was trusted")
        settings = McpServerConfig(type="websocket", url=address)
        trusting = ssl.create_default_context(cafile=str(pem))
        async with WebSocketTransport("chat", settings, box, tls=trusting):
            await box.holds(messages=1)
    assert len(box.losses) == 1
