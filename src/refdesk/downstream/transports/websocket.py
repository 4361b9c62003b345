"""WebSocket transport: one text frame per message."""

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

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.transports.base import Message, TransportListener
from refdesk.downstream.transports.messages import deliver, encode_message
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTalksNonsense
from refdesk.version import __version__

SUBPROTOCOL = Subprotocol("mcp")

MAX_QUEUED_FRAMES = 16
"""Frames buffered before the reader has handled them, which it does without delay."""

_library_logger = logging.getLogger(f"{__name__}.wire")
_library_logger.setLevel(logging.WARNING)  # debug logs contain headers and credentials


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
    """Return the default TLS context. It's cached because loading the certificates takes longer than connecting."""
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
    """Connect to the server, and deliver its messages to the listener until either side closes.

    `create_ssl_context` returns the TLS context for a `wss:` URL.
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
    """WebSocket `Transport`."""

    def __init__(self, name: str, socket: ClientConnection, listener: TransportListener, max_bytes: int) -> None:
        self._name = name
        self._socket = socket
        self._listener = listener
        self._max_bytes = max_bytes
        self._error: RefdeskError | None = None

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Send a message. Waits while the server doesn't read."""
        self._raise_if_closed()
        text = encode_message(self._name, message)
        try:
            await self._socket.send(text, text=True)
        except ConnectionClosed as closed:
            raise self._map_close(closed) from None
        self._raise_if_closed()  # `send` doesn't raise if the connection ends while it waits

    def set_protocol_version(self, version: str) -> None:
        """Do nothing: the transport doesn't depend on the version."""

    async def read(self) -> None:
        """Deliver messages until the connection closes."""
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
        """Mark the connection as closed and report the first reason."""
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
        """Return the error for a closed connection. The server's own reason text is left out."""
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
    """WebSocket connection that aborts if the other side doesn't close in time.

    The library waits for the other side without a limit once no more messages can arrive.
    """

    _abort_timer: asyncio.TimerHandle | None = None

    def start_keepalive(self) -> None:
        """Start pings, unless the connection is already lost: nothing would stop them then."""
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
    """Connector that follows no redirects, which would send credentials to another host."""

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
    """Return the connector, to be awaited."""
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
    """Return the URL with the scheme ws or wss. Settings may say http or https."""
    url = settings.url.get_secret_value() if settings.url is not None else ""
    return f"ws{url[4:]}" if url.startswith(("http://", "https://")) else url


async def _close(socket: ClientConnection) -> None:
    """Run the closing handshake, and abort if the server doesn't answer it."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(socket.close_timeout):
                await socket.close()
    finally:
        socket.transport.abort()
        await socket.wait_closed()
