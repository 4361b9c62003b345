"""A server with the guarded protocol: an application that can be held up, raw clients, a clock that tests move."""

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

from refdesk.config.models import ServerConfig
from refdesk.inbound.uvicorn_protocol import create_protocol
from tests.waiting import PATIENCE_SECONDS

# Between two drips: well below every timeout here, so a timeout counted per read would never fire.
DRIP_SECONDS = 1.0


@dataclass(eq=False)
class ManualTimer:
    """A callback that is due at a time."""

    at: float
    callback: Callable[[], None]
    waiting: list[ManualTimer]

    def cancel(self) -> None:
        """Never call it."""
        if self in self.waiting:
            self.waiting.remove(self)


@dataclass
class ManualClock:
    """A clock that stands still until a test moves it."""

    now: float = 1000.0
    waiting: list[ManualTimer] = field(default_factory=list)

    def time(self) -> float:
        """Return the current time in seconds."""
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None], /) -> ManualTimer:
        """Call a function after so many seconds."""
        timer = ManualTimer(self.now + delay, callback, self.waiting)
        self.waiting.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move the time on, and call what is due on the way, each at its time."""
        end = self.now + seconds
        while due := [timer for timer in self.waiting if timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            self.waiting.remove(timer)
            self.now = timer.at
            timer.callback()
        self.now = end


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


class Peer:
    """The server's end of a connection: how much it has read."""

    def __init__(self, protocol: Any) -> None:
        self.protocol = protocol
        self.read_bytes = 0
        self.is_lost = False
        self._changed = asyncio.Event()

    @property
    def is_reading_paused(self) -> bool:
        return bool(self.protocol.flow.read_paused)

    @property
    def is_writing_paused(self) -> bool:
        return bool(self.protocol.flow.write_paused)

    @property
    def is_closing(self) -> bool:
        return bool(self.protocol.transport.is_closing())

    def note(self, read_bytes: int = 0, *, is_lost: bool = False) -> None:
        self.read_bytes += read_bytes
        self.is_lost |= is_lost
        self._changed.set()

    async def has_read(self, total_bytes: int) -> None:
        """Return when the server has read so much in all, or lost the connection."""
        while self.read_bytes < total_bytes and not self.is_lost:
            self._changed.clear()
            await self._changed.wait()


class Peers:
    """The server's ends of all connections, by the addresses of the clients."""

    def __init__(self) -> None:
        self._found: dict[Any, asyncio.Future[Peer]] = {}

    def register(self, protocol: Any, address: Any) -> Peer:
        peer = Peer(protocol)
        self._future(address).set_result(peer)
        return peer

    async def of(self, address: Any) -> Peer:
        """The server's end of a client's connection, once the server has accepted it."""
        peer = await self._future(address)
        del self._found[address]  # another client may get the same port
        return peer

    def _future(self, address: Any) -> asyncio.Future[Peer]:
        return self._found.setdefault(address, asyncio.get_running_loop().create_future())


def watch_connections(protocol: Any, peers: Peers) -> Any:
    """The protocol class, which tells `peers` of its connections."""

    class WatchedProtocol(protocol):  # type: ignore[misc]  # a class that is made at run time
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.peer = peers.register(self, transport.get_extra_info("peername"))

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.peer.note(len(data))

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self.peer.note(is_lost=True)

    return WatchedProtocol


class Client:
    """A bare socket, and what has been read from it."""

    def __init__(self, sock: socket.socket, peer: Peer, clock: ManualClock) -> None:
        self.sock = sock
        self.peer = peer
        self.clock = clock
        self.sent_bytes = 0
        self.received = b""

    async def push(self, data: bytes) -> None:
        """Send without waiting for the server to read it."""
        self.sent_bytes += len(data)
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send(self, data: bytes) -> None:
        """Send, and return when the server has read it."""
        await self.push(data)
        await self.peer.has_read(self.sent_bytes)

    async def drip(self, data: bytes, seconds: float) -> None:
        """One byte at a time for so long; the first at once."""
        bytes_ = cycle(data)
        for _ in range(round(seconds / DRIP_SECONDS)):
            await self.send(bytes([next(bytes_)]))
            self.clock.advance(DRIP_SECONDS)

    async def flood(self, data: bytes) -> None:
        """As much as the server takes, until it ends the connection."""
        with suppress(ConnectionError):
            while True:
                await self.push(data)

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
class ProtocolServer:
    app: App
    server: Server
    address: tuple[str, int]
    serving: asyncio.Task[None]
    clock: ManualClock
    peers: Peers

    @property
    def connections(self) -> int:
        """How many connections the server has."""
        return len(self.server.server_state.connections)

    @asynccontextmanager
    async def client(self, receive_buffer: int | None = None) -> AsyncIterator[Client]:
        with socket.socket() as sock:
            sock.setblocking(False)
            if receive_buffer is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            await asyncio.get_running_loop().sock_connect(sock, self.address)
            yield Client(sock, await self.peers.of(sock.getsockname()), self.clock)

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
async def open_server(
    limits: ServerConfig, send_buffer: int | None = None, websocket: type[asyncio.Protocol] | None = None
) -> AsyncIterator[ProtocolServer]:
    """A running server; everything inside must be over in `PATIENCE_SECONDS`, its stopping included."""
    app, clock, peers = App(), ManualClock(), Peers()
    protocol = watch_connections(create_protocol(limits, clock, max_header_bytes=4096), peers)
    config = uvicorn.Config(app, http=protocol, ws=websocket or "none", lifespan="off", log_config=None)
    server = Server(config)
    with socket.socket() as listener, anyio.fail_after(PATIENCE_SECONDS):
        if send_buffer is not None:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        listener.bind(("127.0.0.1", 0))
        # Clients may connect from here on; the server takes them up when it runs.
        listener.listen(1024)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        desk = ProtocolServer(app, server, listener.getsockname(), serving, clock, peers)
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
