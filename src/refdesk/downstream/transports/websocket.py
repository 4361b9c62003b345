"""WebSocket transport: one text frame per message."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientWebSocketResponse, WSMessage, WSMsgType

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import (
    MAX_PARTS,
    PART_COUNT_THRESHOLD,
    Message,
    Transport,
    TransportListener,
    deliver_messages,
    encode_message,
)
from refdesk.downstream.transports.http import parse_url_and_headers
from refdesk.errors import RefdeskError, ServerAway, ServerConnectTimeout, ServerGone, ServerTalksNonsense
from refdesk.support.tasks import TaskSet

SUBPROTOCOL = "mcp"

MAX_QUOTE_CHARACTERS = 100
"""Characters of invalid input quoted in a log entry."""

_FAILURES = (aiohttp.ClientError, OSError)


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


class WebSocketTransport(Transport):
    """WebSocket `Transport`. It delivers messages to the listener until either side closes."""

    _connection: ClientWebSocketResponse
    _tcp: asyncio.Transport

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        listener: TransportListener,
        *,
        timeouts: Timeouts = TIMEOUTS,
        tls: ssl.SSLContext | bool = True,
    ) -> None:
        """`tls` is the TLS context for a `wss:` URL, or True for the default one."""
        super().__init__(name, listener)
        self._settings = settings
        self._timeouts = timeouts
        self._tls = tls
        self._pong = asyncio.Event()
        self._tasks = TaskSet()
        self._opened = AsyncExitStack()
        """What `close` has to end."""

    async def open(self) -> None:
        client = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, middlewares=(self._handle_handshake,)
        )
        await self._opened.enter_async_context(client)
        self._connection = await self._connect(client)
        self._opened.push_async_callback(self._tasks.cancel)
        self._opened.push_async_callback(self._end_connection)
        for work in (self._read(), self._ping()):
            self._tasks.spawn(work, f"downstream {self.name} websocket")

    async def close(self) -> None:
        await self._opened.aclose()

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Send a message. Waits while the server doesn't read."""
        self._raise_if_closed()
        text = encode_message(self.name, message)
        try:
            # Senders that wait for the buffer share a future in aiohttp, so cancelling one would cancel all.
            await asyncio.shield(self._connection.send_frame(text, WSMsgType.TEXT))
        except _FAILURES:
            self._close_with(self._build_hangup_error())
        self._raise_if_closed()

    async def _read(self) -> None:
        """Deliver messages until the connection closes."""
        error: RefdeskError = ServerGone(f"The connection to the server {self.name!r} is no longer read")
        try:
            while True:
                frame = await self._connection.receive()
                match frame.type:
                    case WSMsgType.TEXT:
                        if self._error is None:
                            _deliver_text(self._listener, frame.data)
                    case WSMsgType.BINARY:
                        self._listener.on_garbage(f"a binary frame of {len(frame.data)} bytes")
                    case WSMsgType.PING:
                        await self._connection.pong(frame.data)
                    case WSMsgType.PONG:
                        self._pong.set()
                    case _:
                        error = self._map_close(frame)
                        return
        except _FAILURES:
            error = self._build_hangup_error()
        finally:
            self._close_with(error)

    async def _ping(self) -> None:
        """Send pings, and close the connection if one isn't answered."""
        with suppress(*_FAILURES):
            while True:
                await asyncio.sleep(self._timeouts.ping)
                self._pong.clear()
                try:
                    async with asyncio.timeout(self._timeouts.pong):
                        await self._connection.ping()
                        await self._pong.wait()
                except TimeoutError:
                    self._close_with(ServerGone(f"The server {self.name!r} no longer answers"))
                    self._tcp.abort()
                    return

    async def _end_connection(self) -> None:
        """Run the closing handshake, and abort if the server doesn't answer it."""
        self._close_with(ServerGone(f"The connection to the server {self.name!r} was closed"))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeouts.close):
                    await self._connection.close()
        finally:
            self._tcp.abort()  # discards data that the server hasn't read; closing alone would wait for it

    async def _handle_handshake(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Reject a redirect, and keep the TCP transport because only that can be aborted."""
        response = await handler(request)
        if 300 <= response.status < 400:
            # Following it would send credentials to another host.
            response.close()
            raise aiohttp.WSServerHandshakeError(response.request_info, (), status=response.status)
        if response.connection is not None and response.connection.transport is not None:
            self._tcp = response.connection.transport
        return response

    async def _connect(self, client: aiohttp.ClientSession) -> ClientWebSocketResponse:
        url, headers = parse_url_and_headers(self.name, self._settings, ("ws", "wss", "http", "https"))
        try:
            async with asyncio.timeout(self._settings.connect_timeout_seconds):
                return await client.ws_connect(
                    url,
                    protocols=(SUBPROTOCOL,),
                    headers=headers,
                    ssl=self._tls,
                    timeout=aiohttp.ClientWSTimeout(ws_close=self._timeouts.close),
                    autoclose=False,
                    autoping=False,
                    max_msg_size=self._settings.max_message_bytes + 1,  # aiohttp rejects a message of this size
                )
        except TimeoutError:
            seconds = self._settings.connect_timeout_seconds
            raise ServerConnectTimeout(
                f"The server {self.name!r} cannot be connected to: no answer within {seconds:g} s"
            ) from None
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 101:
                reason = "it is not a WebSocket server for MCP"
            else:
                reason = f"it answered with the HTTP status {error.status}"
        except aiohttp.ClientConnectorCertificateError:
            reason = "its certificate is not trusted"
        except ValueError:
            reason = "its URL or headers are invalid"
        except aiohttp.ClientConnectorError as error:
            reason = error.strerror or "no connection"
        except _FAILURES:
            reason = "it is not a WebSocket server for MCP"
        raise ServerAway(f"The server {self.name!r} cannot be connected to: {reason}")

    def _map_close(self, frame: WSMessage) -> RefdeskError:
        """Return the error for the last frame. The server's own reason text is left out."""
        server = f"The server {self.name!r}"
        if frame.type is WSMsgType.CLOSE:
            return ServerGone(f"{server} closed the connection with the WebSocket code {frame.data}")
        if isinstance(frame.data, aiohttp.WebSocketError):
            if frame.data.code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                return ServerTalksNonsense(
                    f"{server} sent a message of more than {self._settings.max_message_bytes} bytes"
                )
            return ServerTalksNonsense(f"{server} violates the WebSocket protocol: code {frame.data.code}")
        return self._build_hangup_error()

    def _build_hangup_error(self) -> ServerGone:
        code = aiohttp.WSCloseCode.ABNORMAL_CLOSURE
        return ServerGone(f"The server {self.name!r} dropped the connection: WebSocket code {code:d}")


def _deliver_text(listener: TransportListener, text: str) -> None:
    """Parse a text and deliver the message or batch to the listener. Anything else is reported as garbage."""
    if len(text) > PART_COUNT_THRESHOLD and text.count("[") + text.count("{") > MAX_PARTS:
        listener.on_garbage(f"a text of {len(text)} characters with more parts than are taken")
        return
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError:
        listener.on_garbage(f"no JSON: {text[:MAX_QUOTE_CHARACTERS]!r}")
        return
    if not deliver_messages(listener, content):
        listener.on_garbage(f"JSON that is no message: {text[:MAX_QUOTE_CHARACTERS]!r}")
