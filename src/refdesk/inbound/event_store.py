"""Event store for resumable streams: a client that lost a stream continues it with `Last-Event-ID`.

In memory, separate per session and bounded. Evicted events can't be replayed.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http import EventCallback, EventMessage, EventStore, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from refdesk.config import ServerConfig

RETRY_MILLISECONDS = 1000
"""Reconnect delay that clients are asked for."""

EVENT_BYTES = 200
"""Approximate overhead of an event besides its message."""

_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class EventStoreLimits:
    """Capacity and retention of the event store. A client that hasn't reconnected by then has given up."""

    seconds: float = 300.0
    session_events: int = 256
    session_bytes: int = 1_048_576
    total_bytes: int = 67_108_864


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A message of a stream. Without a message, it marks the start of the stream."""

    session: SessionEventStore
    stream: str
    message: bytes | None
    ends: bool
    stored_at: float

    @property
    def size(self) -> int:
        """Bytes that the event counts for."""
        return EVENT_BYTES + len(self.message or b"")


class EventBuffer:
    """Events of all sessions in this process, oldest first. The oldest are evicted to make room."""

    def __init__(self, limits: EventStoreLimits, now: Callable[[], float] = monotonic) -> None:
        self._limits = limits
        self._now = now
        self._events: dict[int, StoredEvent] = {}
        self._last = 0
        self.bytes = 0

    def add(self, session: SessionEventStore, stream: str, message: JSONRPCMessage | None) -> int:
        """Store an event, evicting older ones if needed, and return its number."""
        encoded = None if message is None else message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        ends = isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None
        event = StoredEvent(session, stream, encoded, ends, self._now())
        self._last += 1
        self._events[self._last] = event
        self.bytes += event.size
        session.numbers.append(self._last)
        session.bytes += event.size
        while len(session.numbers) > self._limits.session_events or session.bytes > self._limits.session_bytes:
            self._remove(session.numbers[0])
        self._evict()
        return self._last

    def get(self, number: int) -> StoredEvent | None:
        """Return an event if it's still stored."""
        self._evict()
        return self._events.get(number)

    def drop_session(self, session: SessionEventStore) -> None:
        """Remove all events of a session."""
        while session.numbers:
            self._remove(session.numbers[0])

    def _evict(self) -> None:
        expired = self._now() - self._limits.seconds
        while self._events:
            oldest = next(iter(self._events))
            if self.bytes <= self._limits.total_bytes and self._events[oldest].stored_at > expired:
                return
            self._remove(oldest)

    def _remove(self, number: int) -> None:
        event = self._events.pop(number)
        self.bytes -= event.size
        event.session.bytes -= event.size
        # The oldest event of all is also the oldest of its session.
        event.session.numbers.popleft()


class SessionEventStore(EventStore):
    """Event store of one session.

    Streams are named by the client's request ids, so in a shared store the streams of two clients would collide.
    """

    def __init__(self, events: EventBuffer) -> None:
        self._events = events
        self.numbers: deque[int] = deque()
        self.bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Store a message of a stream and return the event id."""
        return str(self._events.add(self, stream_id, message))

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send the events of a stream after `last_event_id`. Return the stream id if the stream is still open."""
        number = int(last_event_id) if _NUMBER.fullmatch(last_event_id) else 0
        last = self._events.get(number)
        if last is None or last.session is not self or last.ends:
            return None
        # New events may arrive while a message is being sent.
        while missed := [stored for stored in self.numbers if stored > number]:
            for number in missed:
                event = self._events.get(number)
                if event is None:
                    return None
                if event.stream == last.stream and event.message is not None:
                    message = jsonrpc_message_adapter.validate_json(event.message, by_name=False)
                    await send_callback(EventMessage(message, str(number)))
                    if event.ends:
                        return None
        return last.stream


class ResumableSessionManager(StreamableHTTPSessionManager):
    """The SDK's session manager with one event store per session. The SDK would share a single one."""

    def __init__(self, server: Server[Any], settings: ServerConfig) -> None:
        super().__init__(
            server,
            retry_interval=RETRY_MILLISECONDS,
            max_request_body_size=settings.max_body_bytes,
            session_idle_timeout=settings.session_idle_seconds,
            max_sessions=settings.max_sessions,
        )
        self._events = EventBuffer(EventStoreLimits())

    def touch(self, session_id: str, requestor: AuthorizationContext | None) -> bool:
        """Return whether a session is open and belongs to `requestor`. If so, reset its idle timeout."""
        transport = self._server_instances.get(session_id)
        if transport is None or transport.is_terminated or self._session_owners.get(session_id) != requestor:
            return False
        scope = transport.idle_scope
        if scope is not None and math.isfinite(scope.deadline) and self.session_idle_timeout is not None:
            scope.deadline = anyio.current_time() + self.session_idle_timeout
        return True

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        transport = super()._admit_session(requestor)
        if transport is not None:
            transport._event_store = SessionEventStore(self._events)
        return transport

    async def _discard_session(self, session_id: str, transport: StreamableHTTPServerTransport) -> None:
        await super()._discard_session(session_id, transport)
        if isinstance(transport._event_store, SessionEventStore):
            self._events.drop_session(transport._event_store)
