"""Client callbacks on the fast path: a response becomes an event stream with the first notification.

Most calls send none and get a JSON body. Until then, a client costs a few references.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import orjson
from mcp.server.connection import Connection
from mcp_types import CLIENT_CAPABILITIES_META_KEY
from mcp_types.methods import INPUT_REQUIRED_METHODS

from refdesk.calls import LOG_LEVELS, InputRequired, LogLevel
from refdesk.errors import ClientCannot, MissingCapability
from refdesk.inbound.asgi import Headers, Send
from refdesk.inbound.envelope import RpcRequest
from refdesk.inbound.fast_path_2026 import VERSION as MODERN_VERSION
from refdesk.inbound.server_requests import (
    CAPABILITIES,
    PendingRequests,
    build_unsupported_error,
    declares,
    get_capabilities,
    read_answer,
    require_form,
)

STREAMING_METHODS = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
"""Methods that may take long enough to send notifications."""

PING_SECONDS = 15.0
"""Seconds of silence before a comment is sent, so that proxies don't close the stream as idle."""

MAX_WAITING_BYTES = 65_536
"""Bytes that may be queued for a client that doesn't read, in addition to the socket's buffer."""

_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
CANCELLED = "notifications/cancelled"
_PING = b": ping\r\n\r\n"


class SessionDirectory(Protocol):
    """The SDK's sessions as seen by the fast path."""

    @property
    def pending_requests(self) -> PendingRequests: ...

    @property
    def connections(self) -> Mapping[str, Connection]: ...


def create_client(
    request: RpcRequest, headers: Headers, send: Send, sessions: SessionDirectory
) -> StreamingClient | None:
    """Return the client of a request if it accepts a stream and the method may send notifications."""
    if request.method not in STREAMING_METHODS or b"text/event-stream" not in headers.get(b"accept", b""):
        return None
    session = headers.get(b"mcp-session-id")
    if session is not None:
        return SessionClient(request, send, session, sessions)
    if headers.get(b"mcp-protocol-version") == MODERN_VERSION:
        return ModernClient(request, send)
    return StreamingClient(request, send)


class StreamingClient:
    """A client without a session in a handshake revision. It gets notifications but no requests."""

    __slots__ = ("_is_closed", "_request", "_send", "_stream")

    uses_input_required = False

    def __init__(self, request: RpcRequest, send: Send) -> None:
        self._request = request
        self._send = send
        self._stream: EventStream | None = None
        self._is_closed = False

    @property
    def key(self) -> object:
        """Unique per call, since calls can't be assigned to a client."""
        return self

    def can(self, method: str) -> bool:
        return False

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Send progress without blocking. A client that doesn't read misses some of it."""
        token = _read_progress_token(self._request)
        if token is None:
            return
        params: dict[str, Any] = {"progressToken": token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        stream = self._open_stream()
        if stream is not None and stream.has_room:
            stream.put(_encode_event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        if not self._wants_level(level):
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        stream = self._open_stream()
        if stream is not None:
            await stream.wait_for_room()
            stream.put(_encode_event({"jsonrpc": "2.0", "method": "notifications/message", "params": params}))

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ClientCannot(f"This needs {method} from the client, over a session; connect with one.")

    def take_stream(self) -> EventStream | None:
        """Return the stream if one was opened, so that it can be ended. No stream can be opened afterwards."""
        self._is_closed = True
        return self._stream

    def close(self) -> None:
        """Abandon a stream that wasn't ended."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.abandon()

    def _open_stream(self) -> EventStream | None:
        """Return the stream, opening it if needed. None if the call is over."""
        if self._stream is None and not self._is_closed:
            self._stream = EventStream(self._send, self._get_headers())
        return self._stream

    def _get_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return _HEADERS

    def _wants_level(self, level: LogLevel) -> bool:
        return level in LOG_LEVELS


class SessionClient(StreamingClient):
    """A client of a session. Requests go out on the stream of its call, and it responds with a POST."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, request: RpcRequest, send: Send, session: bytes, sessions: SessionDirectory) -> None:
        # Repeats the base class: `super()` would cost every call a fifth of a microsecond in Python 3.11.
        self._request = request
        self._send = send
        self._stream = None
        self._is_closed = False
        self._session = session
        self._sessions = sessions

    @property
    def key(self) -> str:
        """The session id, as on the SDK routes."""
        return self._session.decode("latin-1")

    def can(self, method: str) -> bool:
        connection = self._get_connection()
        return connection is not None and declares(get_capabilities(connection), method)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        connection = self._get_connection()
        capabilities = {} if connection is None else get_capabilities(connection)
        if connection is None or not declares(capabilities, method):
            raise build_unsupported_error(method)
        require_form(capabilities, method, params)
        stream = None if self._is_closed else self._open_stream()
        if stream is None:
            raise ClientCannot(f"The call that {method} was for is over.")
        pending_requests = self._sessions.pending_requests
        with pending_requests.register(self.key) as (id, response):
            stream.put(_encode_event({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            try:
                return read_answer(await response, method, connection.protocol_version)
            except asyncio.CancelledError:
                cancellation = {"requestId": id, "reason": "Nobody waits for the answer any more"}
                if not stream.put(_encode_event({"jsonrpc": "2.0", "method": CANCELLED, "params": cancellation})):
                    pending_requests.notify(connection, CANCELLED, cancellation)
                raise

    def _get_connection(self) -> Connection | None:
        return self._sessions.connections.get(self.key)

    def _get_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return (*_HEADERS, (b"mcp-session-id", self._session))

    def _wants_level(self, level: LogLevel) -> bool:
        connection = self._get_connection()
        threshold = "debug" if connection is None else connection.state.get("log_level", "debug")
        return level in LOG_LEVELS[LOG_LEVELS.index(threshold) :]


class ModernClient(StreamingClient):
    """A client of the modern revision.

    A request to it ends the call with `input_required`, and the client continues it through the SDK.
    """

    __slots__ = ()

    uses_input_required = True

    def can(self, method: str) -> bool:
        return self._request.method in INPUT_REQUIRED_METHODS and declares(self._get_capabilities(), method)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if method not in CAPABILITIES or self._request.method not in INPUT_REQUIRED_METHODS:
            raise ClientCannot(f"The client cannot be asked {method} during {self._request.method}.")
        capabilities = self._get_capabilities()
        if not declares(capabilities, method):
            raise MissingCapability(CAPABILITIES[method])
        require_form(capabilities, method, params)
        raise InputRequired({name: {"method": method, "params": params}})

    def _get_capabilities(self) -> Mapping[str, Any]:
        # The fast path accepts no request of this revision without them.
        declared: Mapping[str, Any] = self._request.params["_meta"][CLIENT_CAPABILITIES_META_KEY]
        return declared

    def _wants_level(self, level: LogLevel) -> bool:
        # A client that wants log messages declares so in its request, which the SDK then answers.
        return False


class EventStream:
    """An HTTP response sent event by event by a writer task.

    Senders don't wait, events stay in order, and cancelling a sender never truncates an event.
    """

    def __init__(
        self, send: Send, headers: tuple[tuple[bytes, bytes], ...], ping_seconds: float = PING_SECONDS
    ) -> None:
        self._send = send
        self._ping_seconds = ping_seconds
        self._outbox: list[bytes] = []
        self._waiting_bytes = 0
        self._has_data = asyncio.Event()
        self._has_drained = asyncio.Event()
        self._last: bytes | None = None
        self._is_closed = False
        self._writer = asyncio.ensure_future(self._write_all(headers))

    @property
    def has_room(self) -> bool:
        """Whether the queue is below its limit."""
        return self._waiting_bytes < MAX_WAITING_BYTES

    async def wait_for_room(self) -> None:
        """Wait until the client has read enough, or the stream is closed."""
        while not self.has_room and not self._is_closed:
            self._has_drained.clear()
            await self._has_drained.wait()

    def put(self, event: bytes) -> bool:
        """Queue an event. Return False if the stream is closed."""
        if self._is_closed:
            return False
        self._outbox.append(event)
        self._waiting_bytes += len(event)
        self._has_data.set()
        return True

    async def end(self, last: bytes | None = None) -> None:
        """Send an optional last message and wait until everything is written.

        Events queued before the writer takes the last message go out first. Requests that were cancelled with the call
        use that moment to send their cancellation.
        """
        self._last = b"" if last is None else _frame(last)
        self._has_data.set()
        await self._writer

    def abandon(self) -> None:
        """Stop writing. Does nothing if everything is written."""
        self._is_closed = True
        self._has_drained.set()
        self._writer.cancel()

    async def _write_all(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        is_last = False
        while not is_last:
            body = await self._next_chunk()
            is_last = self._is_closed
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def _next_chunk(self) -> bytes:
        """Wait for queued events and return them, or a comment after a long silence."""
        if not self._has_data.is_set():
            try:
                async with asyncio.timeout(self._ping_seconds):
                    await self._has_data.wait()
            except TimeoutError:
                if not self._has_data.is_set():
                    return _PING
        self._has_data.clear()
        if self._last is not None:
            self._outbox.append(self._last)
            self._is_closed = True
        body = b"".join(self._outbox)
        self._outbox.clear()
        self._waiting_bytes = 0
        self._has_drained.set()
        return body


def _encode_event(message: Mapping[str, Any]) -> bytes:
    return _frame(orjson.dumps(message))


def _frame(message: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def _read_progress_token(request: RpcRequest) -> str | int | None:
    meta = request.params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None
