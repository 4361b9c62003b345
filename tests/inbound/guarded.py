"""What the guarded protocol is tried on: an application that can be held up, raw clients, a server without polling."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import anyio
import uvicorn

from refdesk.inbound.guard import Limits, guarded_protocol

# Long enough for a busy machine; no test passes by waiting this long.
PATIENCE_SECONDS = 20.0
# Between two drips: well below every timeout here, so a timeout counted per read would never fire.
DRIP_SECONDS = 0.05


@dataclass
class App:
    """A small ASGI application that tells what happened to it."""

    paths: list[str] = field(default_factory=list)
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)
    finished: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"])
        self.entered.set()
        routes: dict[str, Callable[[Any, Any], Awaitable[None]]] = {
            "/echo": self.echo,
            "/hold": self.hold,
            "/hold-body": self.hold_then_echo,
            "/early": self.answer_early,
            "/stream": self.stream_until_disconnect,
            "/big": self.big,
            "/half-big": self.half_big,
        }
        if scope["path"] in routes:
            await routes[scope["path"]](receive, send)
        else:
            await reply(send, scope["path"].encode())
        self.headers = list(scope["headers"])
        self.finished.set()

    async def body(self, receive: Any) -> bytes | None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return None
            body += bytes(message["body"])
            if not message["more_body"]:
                return body

    async def echo(self, receive: Any, send: Any) -> None:
        body = await self.body(receive)
        if body is not None:
            await reply(send, body)

    async def hold(self, receive: Any, send: Any) -> None:
        await self.release.wait()
        await reply(send, b"held")

    async def hold_then_echo(self, receive: Any, send: Any) -> None:
        await self.release.wait()
        await self.echo(receive, send)

    async def answer_early(self, receive: Any, send: Any) -> None:
        await reply(send, b"early")

    async def stream_until_disconnect(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"started", "more_body": True})
        await self.body(receive)
        await receive()
        self.disconnected.set()

    async def big(self, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(256):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def half_big(self, receive: Any, send: Any) -> None:
        # Below the transport's high-water mark: writing is never paused.
        await reply(send, b"x" * 48_000)


async def reply(send: Any, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def detail(self) -> str:
        assert self.headers["content-type"] == "application/json"
        detail: str = json.loads(self.body)["detail"]
        return detail


class Client:
    """A bare socket, and what has been read from it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = b""

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def drip(self, data: bytes) -> None:
        """One byte at a time until the server has had enough."""
        with suppress(ConnectionError):
            for byte in cycle(data):
                await self.send(bytes([byte]))
                await asyncio.sleep(DRIP_SECONDS)

    async def flood(self, data: bytes) -> None:
        """As much as the server takes, without end."""
        with suppress(ConnectionError):
            while True:
                await self.send(data)

    async def read(self) -> bytes:
        try:
            data = await asyncio.get_running_loop().sock_recv(self.sock, 65536)
        except ConnectionError:
            data = b""
        self.received += data
        return data

    async def read_to_end(self) -> bytes:
        while await self.read():
            pass
        return self.received

    async def answer(self) -> Answer:
        """The next whole answer."""
        while b"\r\n\r\n" not in self.received:
            assert await self.read(), "closed before an answer"
        head, _, rest = self.received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        self.received = rest
        while len(self.received) < length:
            assert await self.read(), "closed within an answer"
        body, self.received = self.received[:length], self.received[length:]
        return Answer(int(status_line.split()[1]), headers, body)

    async def last_answer(self) -> Answer:
        """The next answer, which says that it is the last and is."""
        answer = await self.answer()
        assert answer.headers["connection"] == "close"
        assert await self.read_to_end() == b""
        return answer


class Server(uvicorn.Server):
    """Stops when told instead of looking ten times a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told_to_stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.told_to_stop.wait()


@dataclass
class Guarded:
    app: App
    server: Server
    address: tuple[str, int]
    serving: asyncio.Task[None]

    @asynccontextmanager
    async def client(self, receive_buffer: int | None = None) -> AsyncIterator[Client]:
        with socket.socket() as sock:
            sock.setblocking(False)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await asyncio.get_running_loop().sock_connect(sock, self.address)
            yield Client(sock)

    async def stop(self) -> None:
        self.server.told_to_stop.set()
        await self.serving

    async def abandon(self) -> None:
        """Leave nothing open, so that a failed test ends and the loop can close."""
        self.server.force_exit = True
        self.server.told_to_stop.set()
        with anyio.move_on_after(PATIENCE_SECONDS, shield=True):
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()
            await asyncio.wait([self.serving])


@asynccontextmanager
async def open_guarded(
    limits: Limits, send_buffer: int | None = None, websocket: type[asyncio.Protocol] | None = None
) -> AsyncIterator[Guarded]:
    """A running server; everything inside must be over in `PATIENCE_SECONDS`, its stopping included."""
    app = App()
    protocol = guarded_protocol(limits)
    config = uvicorn.Config(app, http=protocol, ws=websocket or "none", lifespan="off", log_config=None)
    server = Server(config)
    with socket.socket() as listener, anyio.fail_after(PATIENCE_SECONDS):
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listener.bind(("127.0.0.1", 0))
        # Clients may connect from here on; the server takes them up when it runs.
        listener.listen(1024)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        desk = Guarded(app, server, listener.getsockname(), serving)
        try:
            yield desk
            app.release.set()
            await desk.stop()
        finally:
            await desk.abandon()


@asynccontextmanager
async def in_background(doing: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(doing)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
