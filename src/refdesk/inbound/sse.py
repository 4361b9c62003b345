"""The plain lane's way back to a client: an answer that turns into an event stream once there is something to tell.

Most calls tell nothing, and theirs stays one JSON body; until something is told, a client here is a few references.
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
from refdesk.inbound.envelope import Request
from refdesk.inbound.fast_path_2026 import VERSION as NEWEST_VERSION
from refdesk.inbound.server_requests import (
    CAPABILITIES,
    Questions,
    answer_in,
    cannot_be_asked,
    capabilities_of,
    declares,
    require_form,
)

TALKING = frozenset({"tools/call", "prompts/get", "resources/read", "completion/complete"})
"""What may take a while, and have something to tell meanwhile."""

PING_SECONDS = 15.0
"""How long a stream stays quiet before a comment is sent, lest something on the way takes it for dead."""

MAX_WAITING_BYTES = 65_536
"""What may wait here for a client that does not read, on top of as much in the socket's buffer."""

_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
CANCELLED = "notifications/cancelled"
_PING = b": ping\r\n\r\n"


class Sessions(Protocol):
    """What the plain lane has to know of the sessions that the SDK keeps."""

    @property
    def questions(self) -> Questions: ...

    @property
    def connections(self) -> Mapping[str, Connection]: ...


def client_for(request: Request, headers: Headers, send: Send, sessions: Sessions) -> StreamingClient | None:
    """The way back to whoever sent this, if they can take a stream and the request is one that may talk."""
    if request.method not in TALKING or b"text/event-stream" not in headers.get(b"accept", b""):
        return None
    session = headers.get(b"mcp-session-id")
    if session is not None:
        return SessionClient(request, send, session, sessions)
    if headers.get(b"mcp-protocol-version") == NEWEST_VERSION:
        return NewestClient(request, send)
    return StreamingClient(request, send)


class StreamingClient:
    """A client of the older revisions without a session: it can be told, not asked."""

    __slots__ = ("_is_over", "_request", "_send", "_stream")

    asks_by_ending = False

    def __init__(self, request: Request, send: Send) -> None:
        self._request = request
        self._send = send
        self._stream: EventStream | None = None
        self._is_over = False

    @property
    def key(self) -> object:
        """No two calls are known to be of one client."""
        return self

    def can(self, method: str) -> bool:
        return False

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Never waits: a client that does not read misses some of it."""
        token = _progress_token(self._request)
        if token is None:
            return
        params: dict[str, Any] = {"progressToken": token, "progress": done}
        if total is not None:
            params["total"] = total
        if message is not None:
            params["message"] = message
        stream = self._begun()
        if stream is not None and stream.has_room:
            stream.put(_event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}))

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        if not self._wants(level):
            return
        params: dict[str, Any] = {"level": level, "data": data}
        if logger is not None:
            params["logger"] = logger
        stream = self._begun()
        if stream is not None:
            await stream.wait_for_room()
            stream.put(_event({"jsonrpc": "2.0", "method": "notifications/message", "params": params}))

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ClientCannot(f"This needs {method} from the client, over a session; connect with one.")

    def take_stream(self) -> EventStream | None:
        """The stream that the answer has become, to be ended; if it has not, it never will: nothing more is told."""
        self._is_over = True
        return self._stream

    def close(self) -> None:
        """Leave a stream that was not ended as it is."""
        self._is_over = True
        if self._stream is not None:
            self._stream.abandon()

    def _begun(self) -> EventStream | None:
        """The stream, begun now if it was not before; None when the call is over, however late somebody has news."""
        if self._stream is None and not self._is_over:
            self._stream = EventStream(self._send, self._headers())
        return self._stream

    def _headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return _HEADERS

    def _wants(self, level: LogLevel) -> bool:
        return level in LOG_LEVELS


class SessionClient(StreamingClient):
    """A client in a session: it is asked on the stream of its call, and answers with a request of its own."""

    __slots__ = ("_session", "_sessions")

    def __init__(self, request: Request, send: Send, session: bytes, sessions: Sessions) -> None:
        # As the base does it; `super()` would cost every quiet call a fifth of a microsecond in Python 3.11.
        self._request = request
        self._send = send
        self._stream = None
        self._is_over = False
        self._session = session
        self._sessions = sessions

    @property
    def key(self) -> str:
        """The session's id, as on the SDK's lane."""
        return self._session.decode("latin-1")

    def can(self, method: str) -> bool:
        connection = self._connection()
        return connection is not None and declares(capabilities_of(connection), method)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        connection = self._connection()
        capabilities = {} if connection is None else capabilities_of(connection)
        if connection is None or not declares(capabilities, method):
            raise cannot_be_asked(method)
        require_form(capabilities, method, params)
        stream = None if self._is_over else self._begun()
        if stream is None:
            raise ClientCannot(f"The call that {method} was for is over.")
        questions = self._sessions.questions
        with questions.asked(self.key) as (id, reply):
            stream.put(_event({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            try:
                return answer_in(await reply, method, connection.protocol_version)
            except asyncio.CancelledError:
                withdrawn = {"requestId": id, "reason": "Nobody waits for the answer any more"}
                if not stream.put(_event({"jsonrpc": "2.0", "method": CANCELLED, "params": withdrawn})):
                    questions.tell(connection, CANCELLED, withdrawn)
                raise

    def _connection(self) -> Connection | None:
        return self._sessions.connections.get(self.key)

    def _headers(self) -> tuple[tuple[bytes, bytes], ...]:
        return (*_HEADERS, (b"mcp-session-id", self._session))

    def _wants(self, level: LogLevel) -> bool:
        connection = self._connection()
        threshold = "debug" if connection is None else connection.state.get("log_level", "debug")
        return level in LOG_LEVELS[LOG_LEVELS.index(threshold) :]


class NewestClient(StreamingClient):
    """A client of the newest revision: it is asked by ending its call, and calls again by way of the SDK."""

    __slots__ = ()

    asks_by_ending = True

    def can(self, method: str) -> bool:
        return self._request.method in INPUT_REQUIRED_METHODS and declares(self._capabilities(), method)

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if method not in CAPABILITIES or self._request.method not in INPUT_REQUIRED_METHODS:
            raise ClientCannot(f"The client cannot be asked {method} during {self._request.method}.")
        capabilities = self._capabilities()
        if not declares(capabilities, method):
            raise MissingCapability(CAPABILITIES[method])
        require_form(capabilities, method, params)
        raise InputRequired({name: {"method": method, "params": params}})

    def _capabilities(self) -> Mapping[str, Any]:
        # The plain lane takes no request of this revision without them.
        declared: Mapping[str, Any] = self._request.params["_meta"][CLIENT_CAPABILITIES_META_KEY]
        return declared

    def _wants(self, level: LogLevel) -> bool:
        # One that wants logs says so in its request, which the SDK then answers.
        return False


class EventStream:
    """An HTTP answer that goes out event by event, written by a task of its own.

    So nobody waits who tells something, what is told stays in order, and no cancelling tears an event apart.
    """

    def __init__(
        self, send: Send, headers: tuple[tuple[bytes, bytes], ...], ping_seconds: float = PING_SECONDS
    ) -> None:
        self._send = send
        self._ping_seconds = ping_seconds
        self._outbox: list[bytes] = []
        self._waiting_bytes = 0
        self._has_news = asyncio.Event()
        self._was_taken = asyncio.Event()
        self._last: bytes | None = None
        self._is_over = False
        self._writer = asyncio.ensure_future(self._write_all(headers))

    @property
    def has_room(self) -> bool:
        """Whether the client reads what it is told, or has not been told much."""
        return self._waiting_bytes < MAX_WAITING_BYTES

    async def wait_for_room(self) -> None:
        """Until the client has taken what waits for it, or the stream is over."""
        while not self.has_room and not self._is_over:
            self._was_taken.clear()
            await self._was_taken.wait()

    def put(self, event: bytes) -> bool:
        """Send an event; False, and it is dropped, when the stream is over."""
        if self._is_over:
            return False
        self._outbox.append(event)
        self._waiting_bytes += len(event)
        self._has_news.set()
        return True

    async def end(self, last: bytes | None = None) -> None:
        """Send a last message, if there is one, and wait until all is written.

        Until the writer takes it, what others say goes out before it: whoever was called off with the call has that
        moment to withdraw what they asked.
        """
        self._last = b"" if last is None else _framed(last)
        self._has_news.set()
        await self._writer

    def abandon(self) -> None:
        """Write no more; nothing happens where all is written."""
        self._is_over = True
        self._was_taken.set()
        self._writer.cancel()

    async def _write_all(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        is_last = False
        while not is_last:
            body = await self._next()
            is_last = self._is_over
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    async def _next(self) -> bytes:
        """All that waits, once there is something; a comment after a long silence."""
        if not self._has_news.is_set():
            try:
                async with asyncio.timeout(self._ping_seconds):
                    await self._has_news.wait()
            except TimeoutError:
                if not self._has_news.is_set():
                    return _PING
        self._has_news.clear()
        if self._last is not None:
            self._outbox.append(self._last)
            self._is_over = True
        body = b"".join(self._outbox)
        self._outbox.clear()
        self._waiting_bytes = 0
        self._was_taken.set()
        return body


def _event(message: Mapping[str, Any]) -> bytes:
    return _framed(orjson.dumps(message))


def _framed(message: bytes) -> bytes:
    return b"event: message\r\ndata: %b\r\n\r\n" % message


def _progress_token(request: Request) -> str | int | None:
    meta = request.params.get("_meta")
    token = meta.get("progressToken") if isinstance(meta, dict) else None
    return token if isinstance(token, (str, int)) and not isinstance(token, bool) else None
