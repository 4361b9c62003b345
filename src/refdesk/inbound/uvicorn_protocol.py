"""HTTP protocol with read deadlines and size limits.

Extends uvicorn's protocol with deadlines for head, body and response, limits on header bytes and a connection limit. It
only handles framing: body sizes, hosts, origins and callers are checked by the application.

uvicorn has no public way to replace a request's `send`, or to stop reading after a refused upgrade, so two of its
private methods are overridden. `pyproject.toml` bounds its version.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, ClassVar, Protocol

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from refdesk.config.models import ServerConfig
from refdesk.inbound.requests import RETRY_SOON

_Application = Callable[[Any, Any, Any], Awaitable[None]]

MAX_HEADER_BYTES = 65_536

# Read phases of a connection. Plain integers, since they are compared several times per request.
_IDLE, _HEAD, _BODY, _IGNORING = range(4)

# Start of a JSON response.
_JSON_HEAD = STATUS_LINE[200] + b"content-type: application/json\r\ncontent-length: "

# Seconds that a rejected client has to read the response. Closing while it still sends would reset the connection, and
# the response could be lost.
_LINGER_SECONDS = 1.0
# Connections above the limit that may linger like this. Further ones are closed at once.
_MAX_LINGERING = 64
# Requests queued behind the current one. Reading pauses at the first, but a single read can hold thousands.
_MAX_PIPELINED = 16
# Seconds. Event loops round their timers to a millisecond and may fire just before the deadline.
_MIN_CHECK_SECONDS = 0.002


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The part of an event loop that timeouts depend on."""

    def time(self) -> float: ...

    def call_later(self, delay: float, callback: Callable[[], None], /) -> Timer: ...


def create_protocol(
    limits: ServerConfig, clock: Clock | None = None, max_header_bytes: int = MAX_HEADER_BYTES
) -> type[HttpToolsProtocol]:
    """Create the protocol class for `uvicorn.Config(http=...)` that enforces the limits of connections.

    Every timeout is a total, not a pause between two reads. The clock defaults to the event loop.
    """
    attributes = {"limits": limits, "clock": clock, "max_header_bytes": max_header_bytes}
    return type("GuardedProtocol", (_LimitedProtocol,), attributes)


class _LimitedProtocol(HttpToolsProtocol):
    """Protocol with one timer per connection, which fires at least as often as the shortest timeout.

    No deadline can expire unnoticed between two checks, so setting a deadline only stores a number.
    """

    limits: ClassVar[ServerConfig]
    clock: ClassVar[Clock | None]
    max_header_bytes: ClassVar[int]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        limits = self.limits
        self._clock: Clock = self.clock or self.loop
        reading = limits.header_timeout_seconds, limits.body_timeout_seconds
        self._max_check_interval = min(*reading, limits.idle_timeout_seconds, limits.write_timeout_seconds)
        self._phase = _IDLE
        self._read_deadline = inf
        self._write_deadline = inf
        # Bytes passed to the parser since it last completed a head or a part of a body.
        self._unparsed_bytes = 0
        self._running: RequestResponseCycle | None = None
        self._timer: Timer | None = None

    # Connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._phase = _HEAD
        self._start_read_deadline()
        self._schedule_check(self._max_check_interval)
        excess = len(self.connections) - self.limits.max_connections
        if excess > 0:
            self._reject(503, "Too many connections; try again in a second.")
        if excess > _MAX_LINGERING:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        # uvicorn only notifies the newest request, which may be queued behind the running one.
        if self._running is not None and not self._running.response_complete:
            _disconnect(self._running)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._write_deadline = self._clock.time() + self.limits.write_timeout_seconds
        super().pause_writing()

    def resume_writing(self) -> None:
        self._write_deadline = inf
        super().resume_writing()

    def handle_websocket_upgrade(self) -> None:
        self._enter_phase(_IGNORING)
        self._cancel_timer()
        super().handle_websocket_upgrade()

    # Reading. The base class is named since `super()` takes a fifth of a microsecond in Python 3.11, six times a
    # request.

    def data_received(self, data: bytes) -> None:
        offset = 0
        while offset < len(data) and self._phase != _IGNORING:
            if self._phase == _IDLE:
                self._enter_phase(_HEAD)
            room = self.max_header_bytes - self._unparsed_bytes
            if room <= 0:
                self._reject(431, f"Request headers are limited to {self.max_header_bytes} bytes.")
                return
            piece = data[offset : offset + room]
            if self._phase == _HEAD and b"pgrade:" in piece and self.ws_protocol_class is None:
                piece = _hide_upgrade(piece)
            offset += len(piece)
            self._unparsed_bytes += len(piece)
            HttpToolsProtocol.data_received(self, piece)
        # Most requests arrive whole and need no deadline.
        if self._read_deadline == inf and (self._phase == _HEAD or self._phase == _BODY):
            self._start_read_deadline()

    def on_message_begin(self) -> None:
        if self._phase == _IDLE:
            # SourceContent together with the end of another request: at least one byte belongs to this head.
            self._enter_phase(_HEAD)
            self._unparsed_bytes = 1
        HttpToolsProtocol.on_message_begin(self)

    def on_headers_complete(self) -> None:
        if _has_ambiguous_framing(self.parser.get_http_version(), self.headers) or len(self.pipeline) >= _MAX_PIPELINED:
            raise httptools.HttpParserError("refused")
        HttpToolsProtocol.on_headers_complete(self)
        self._enter_phase(_BODY)
        if not self.parser.should_upgrade():
            # Trailers would be appended to the headers of a request that is already being handled.
            self.headers = []

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        HttpToolsProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        self._enter_phase(_IDLE)
        HttpToolsProtocol.on_message_complete(self)
        if self.cycle is not None and self.cycle.response_complete:
            # Answered before its body was complete, so `on_response_complete` has set no deadline.
            self._read_deadline = self._clock.time() + self.limits.idle_timeout_seconds

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: _Application) -> None:
        self._running = cycle

        def call_with_sender(scope: Any, receive: Any, send: Any) -> Awaitable[None]:
            return app(scope, receive, Sender(cycle, send, self._discard_rest))

        HttpToolsProtocol._start_asgi_task(self, cycle, call_with_sender)

    def on_response_complete(self) -> None:
        # Equivalent to uvicorn's, with a deadline in place of a timer per response.
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._phase == _IDLE:
            self._read_deadline = self._clock.time() + self.limits.idle_timeout_seconds

    def _unsupported_upgrade_warning(self) -> None:
        super()._unsupported_upgrade_warning()
        # The parser treats what follows as the other protocol, or as a separate request.
        self._enter_phase(_IGNORING)
        self.cycle.keep_alive = False

    def _enter_phase(self, phase: int) -> None:
        self._phase = phase
        self._unparsed_bytes = 0
        self._read_deadline = inf

    # Deadlines

    def _start_read_deadline(self) -> None:
        limits = self.limits
        seconds = limits.header_timeout_seconds if self._phase == _HEAD else limits.body_timeout_seconds
        self._read_deadline = self._clock.time() + seconds

    def _schedule_check(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self._clock.call_later(max(seconds, _MIN_CHECK_SECONDS), self._check_deadlines)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_deadlines(self) -> None:
        now = self._clock.time()
        if self.transport.is_closing():
            # A closing transport waits until its buffer has been read, however long that takes.
            self._read_deadline = inf
            self._write_deadline = min(self._write_deadline, now + self.limits.write_timeout_seconds)
        if now >= self._write_deadline:
            self.transport.abort()
            return
        if now >= self._read_deadline:
            self._handle_read_timeout()
        self._schedule_check(min(self._max_check_interval, self._read_deadline - now, self._write_deadline - now))

    def _handle_read_timeout(self) -> None:
        if self._phase == _IGNORING:
            self.transport.abort()
        elif self.flow.read_paused:
            # The application is slow, not the client.
            self._start_read_deadline()
        elif self._phase == _BODY:
            self._reject(408, "The request body did not arrive in time.")
        elif self._unparsed_bytes:
            self._reject(408, "The request headers did not arrive in time.")
        else:
            self.transport.close()

    # Rejecting

    def send_400_response(self, msg: str) -> None:
        self._reject(400, msg)

    def _reject(self, status: int, detail: str) -> None:
        """Reject the request being read, after the responses to the ones before it."""
        in_body = self._phase == _BODY
        cycle = self.cycle
        self._enter_phase(_IGNORING)
        if cycle is None or cycle.response_complete:
            self._close_gracefully(b"" if in_body else self._build_response(status, detail))
        elif not in_body:
            cycle.keep_alive = False
        elif cycle.response_started or cycle is not self._running:
            self.transport.abort()
        else:
            _disconnect(cycle)
            self._close_gracefully(self._build_response(status, detail))

    def _discard_rest(self) -> None:
        """Discard the rest of a request that has been answered already."""
        self._enter_phase(_IGNORING)
        self._close_gracefully(b"")

    def _close_gracefully(self, response: bytes) -> None:
        self.transport.write(response)
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        # The client's end of file is only noticed while reading.
        self.flow.resume_reading()
        self.transport.write_eof()
        self._read_deadline = self._clock.time() + _LINGER_SECONDS
        self._schedule_check(_LINGER_SECONDS)

    def _build_response(self, status: int, detail: str) -> bytes:
        body = json.dumps({"detail": detail}).encode()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        if status == 503:
            headers.append(RETRY_SOON)
        return STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % header for header in headers) + b"\r\n" + body


class Sender:
    """ASGI `send` with a shortcut for complete JSON responses, which are written at once.

    Two ASGI messages mean two writes and a check of every header, a tenth of the cost of a call. A response that is
    sent before the whole request was read is still delivered.
    """

    __slots__ = ("_close_gracefully", "_cycle", "_send")

    def __init__(
        self, cycle: RequestResponseCycle, send: Callable[[Any], Awaitable[None]], close_gracefully: Callable[[], None]
    ) -> None:
        self._cycle = cycle
        self._send = send
        self._close_gracefully = close_gracefully

    async def __call__(self, message: Any) -> None:
        """Send an ASGI message."""
        cycle = self._cycle
        ends = message["type"] == "http.response.body" and not message.get("more_body", False)
        if ends and cycle.more_body and not cycle.keep_alive and not cycle.disconnected:
            # The client is still sending. Closing now, as uvicorn does, could lose the response.
            cycle.keep_alive = True
            await self._send(message)
            self._close_gracefully()
        else:
            await self._send(message)

    def send_json(self, body: bytes) -> bool:
        """Send a 200 response with this body. Return False if it has to be sent as ASGI messages."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or not cycle.keep_alive or cycle.flow.write_paused:
            return False
        # Equivalent to the two steps of `RequestResponseCycle.send`.
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        more = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
        cycle.transport.write(b"%b%d\r\n%b\r\n%b" % (_JSON_HEAD, len(body), more, body))
        cycle.message_event.set()
        cycle.on_response()
        return True


def _hide_upgrade(piece: bytes) -> bytes:
    """Hide the offer of another protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would treat what follows the head as that protocol and drop the body.
    """
    head, end, body = piece.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-offer:", head) + end + body


_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Make the application's `receive` return `http.disconnect`."""
    cycle.disconnected = True
    cycle.message_event.set()


def _has_ambiguous_framing(version: str, headers: list[tuple[bytes, bytes]]) -> bool:
    """Return whether intermediaries could disagree on where this request ends (RFC 9112, 6.1)."""
    return version not in ("1.1", "1.0") or any(
        name == b"transfer-encoding" and (version == "1.0" or value.lower() != b"chunked") for name, value in headers
    )
