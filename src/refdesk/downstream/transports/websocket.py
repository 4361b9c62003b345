"""A server behind a WebSocket: one connection on which both sides speak, one text frame per message."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache

from websockets import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, PayloadTooBig, WebSocketException
from websockets.frames import CloseCode
from websockets.typing import Subprotocol

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.transports.base import Message, TransportListener
from refdesk.downstream.transports.messages import deliver, encode_message
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTalksNonsense
from refdesk.version import __version__

SUBPROTOCOL = Subprotocol("mcp")

MAX_QUEUED_FRAMES = 16
"""The frames taken from the network before the reader has seen them; it never keeps them waiting for long."""

_library_logger = logging.getLogger(f"{__name__}.wire")
_library_logger.setLevel(
    logging.WARNING
)  # what the library says below that holds the headers, and with them credentials


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Intervals and time limits of a connection, in seconds."""

    ping: float = 20
    """Between two pings, which detect a lost connection and keep proxies from dropping an idle one."""
    pong: float = 60
    """For the answer to a ping: a server that computes instead of listening is slow, not gone."""
    close: float = 2
    """For a server to answer the closing handshake."""


TIMEOUTS = Timeouts()


@cache
def _create_system_context() -> ssl.SSLContext:
    """Made once: loading the certificates takes longer than connecting does."""
    return ssl.create_default_context()


@asynccontextmanager
async def open_websocket(
    name: str,
    settings: McpServerConfig,
    listener: TransportListener,
    *,
    timeouts: Timeouts = TIMEOUTS,
    create_ssl_context: Callable[[], ssl.SSLContext] = _create_system_context,
) -> AsyncIterator[WebSocketTransport]:
    """Connect; what the server sends goes to the inbox until it is closed, from whichever side.

    `trust` returns the TLS context for a `wss:` address.
    """
    socket = await _connect(name, settings, timeouts, create_ssl_context)
    transport = WebSocketTransport(name, socket, listener, settings.max_message_bytes)
    reading = asyncio.create_task(transport.read(), name=f"downstream {name} websocket")
    try:
        yield transport
    finally:
        transport.close_with(ServerGone(f"The connection to the server {name!r} was closed"))
        try:
            await _close(socket)
        finally:
            reading.cancel()
            await asyncio.wait([reading])


class WebSocketTransport:
    """The open connection."""

    def __init__(self, name: str, socket: ClientConnection, listener: TransportListener, max_bytes: int) -> None:
        self._name = name
        self._socket = socket
        self._listener = listener
        self._max_bytes = max_bytes
        self._error: RefdeskError | None = None

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Send a message; waits while the server takes none."""
        self._raise_if_closed()
        text = encode_message(self._name, message)
        try:
            await self._socket.send(text, text=True)
        except ConnectionClosed as closed:
            raise self._map_close(closed) from None
        self._raise_if_closed()  # a connection that ends while this waits makes no error of it

    def set_protocol_version(self, version: str) -> None:
        """No matter here: nothing but messages is sent."""

    async def read(self) -> None:
        """Hand over what comes until nothing can come any more."""
        try:
            while True:
                frame = await self._socket.recv()
                if self._error is None:
                    self._handle_frame(frame)
        except ConnectionClosed as closed:
            self.close_with(self._map_close(closed))
        finally:
            self.close_with(ServerGone(f"The connection to the server {self._name!r} is no longer read"))

    def close_with(self, error: RefdeskError) -> None:
        """The connection is over, for the first reason that there is."""
        if self._error is None:
            self._error = error
            self._listener.on_close(error)

    def _raise_if_closed(self) -> None:
        if self._error is not None:
            raise type(self._error)(self._error.detail)

    def _handle_frame(self, frame: str | bytes) -> None:
        if isinstance(frame, str):
            deliver(self._listener, frame)
        else:
            self._listener.on_garbage(f"a binary frame of {len(frame)} bytes")

    def _map_close(self, closed: ConnectionClosed) -> RefdeskError:
        """What ended the connection, in a sentence; what the server gave as a reason is not for others to read."""
        server, broken = f"The server {self._name!r}", self._socket.protocol.parser_exc
        if isinstance(broken, PayloadTooBig):
            return ServerTalksNonsense(f"{server} sent a message of more than {self._max_bytes} bytes")
        if closed.rcvd is not None:
            return ServerGone(f"{server} closed the connection with the WebSocket code {closed.rcvd.code}")
        if closed.sent is not None and closed.sent.code == CloseCode.INTERNAL_ERROR:
            return ServerGone(f"{server} no longer answers")
        if closed.sent is not None and closed.sent.code != CloseCode.NORMAL_CLOSURE:
            return ServerTalksNonsense(f"{server} does not keep to WebSocket: code {closed.sent.code}")
        return ServerGone(f"{server} hung up: WebSocket code {CloseCode.ABNORMAL_CLOSURE:d}")


class _Connection(ClientConnection):
    """The library waits for the other side to hang up once no more messages can come; this does so for a while only."""

    _abort_timer: asyncio.TimerHandle | None = None

    def start_keepalive(self) -> None:
        """Not for a connection that is over as soon as it is there; nobody would end that."""
        if not self.connection_lost_waiter.done():
            super().start_keepalive()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._abort_timer is None and self.protocol.close_expected():
            self._abort_timer = self.loop.call_later(self.close_timeout or 0, self.transport.abort)
            if self.protocol.parser_exc is not None:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        super().connection_lost(exc)


class _NoRedirectConnect(connect):
    """Goes where it is told: a redirect would take headers, and with them credentials, to a place of others' choice."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def _connect(
    name: str, settings: McpServerConfig, timeouts: Timeouts, create_ssl_context: Callable[[], ssl.SSLContext]
) -> ClientConnection:
    try:
        return await _build_connect(settings, timeouts, create_ssl_context)
    except TimeoutError:
        reason = f"no answer within {settings.connect_timeout_seconds:g} s"
    except InvalidStatus as error:
        reason = f"it answered with the HTTP status {error.response.status_code}"
    except WebSocketException:
        reason = "what answered is no WebSocket server for MCP"
    except ssl.SSLCertVerificationError:
        reason = "its certificate is not trusted"
    except ValueError:
        reason = "its address or headers are none that can be used"
    except OSError as error:
        reason = error.strerror or "no connection"
    raise ServerAway(f"The server {name!r} cannot be connected to: {reason}")


def _build_connect(
    settings: McpServerConfig, timeouts: Timeouts, create_ssl_context: Callable[[], ssl.SSLContext]
) -> _NoRedirectConnect:
    """A connection yet to be awaited."""
    url = _websocket_url(settings)
    return _NoRedirectConnect(
        url,
        create_connection=_Connection,
        ssl=create_ssl_context() if url.startswith("wss:") else None,
        subprotocols=[SUBPROTOCOL],
        additional_headers={key: value.get_secret_value() for key, value in settings.headers.items()},
        user_agent_header=f"refdesk/{__version__}",
        compression=None,
        proxy=None,
        open_timeout=settings.connect_timeout_seconds,
        close_timeout=timeouts.close,
        ping_interval=timeouts.ping,
        ping_timeout=timeouts.pong,
        max_size=settings.max_message_bytes,
        max_queue=MAX_QUEUED_FRAMES,
        logger=_library_logger,
    )


def _websocket_url(settings: McpServerConfig) -> str:
    """Settings may say http for ws, as the address of a server often does."""
    url = settings.url.get_secret_value() if settings.url is not None else ""
    return f"ws{url[4:]}" if url.startswith(("http://", "https://")) else url


async def _close(socket: ClientConnection) -> None:
    """Say goodbye; a server that does not answer it, or takes nothing any more, is hung up on."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(socket.close_timeout):
                await socket.close()
    finally:
        socket.transport.abort()
        await socket.wait_closed()
