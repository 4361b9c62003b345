"""Event streams of HTTP responses, and the stored events of sessions.

A response becomes an event stream with its first message. Most calls send none and get a JSON body.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

import orjson

from refdesk.inbound.requests import Send

PING_SECONDS = 15.0
"""Seconds of silence before a comment is sent, so that proxies don't close the stream as idle."""

MAX_WAITING_BYTES = 65_536
"""Bytes that may be queued for a client that doesn't read, in addition to the socket's buffer."""

RETRY_MILLISECONDS = 1000
"""Reconnect delay that clients are asked for."""

EVENT_BYTES = 200
"""Approximate overhead of a stored event besides its message."""

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_PING = b": ping\r\n\r\n"
_NUMBER = re.compile(rb"[0-9]{1,18}")


class Channel(Protocol):
    """The way from a call to its client while the call is open."""

    def open(self) -> Outbox | None:
        """Return the stream for messages, opening it if needed. None if the call is over."""


class Outbox:
    """Queue of messages, as bytes that a task writes. Senders don't wait."""

    def __init__(self, frame: Callable[[bytes], bytes]) -> None:
        """`frame` wraps an encoded message as the transport needs it."""
        self._frame = frame
        self._outbox: list[bytes] = []
        self._waiting_bytes = 0
        self._has_data = asyncio.Event()
        self._has_drained = asyncio.Event()
        self._is_closed = False

    @property
    def has_room(self) -> bool:
        """Whether the queue is below its limit."""
        return self._waiting_bytes < MAX_WAITING_BYTES

    async def wait_for_room(self) -> None:
        """Wait until the client has read enough, or the stream is closed."""
        while not self.has_room and not self._is_closed:
            self._has_drained.clear()
            await self._has_drained.wait()

    def send(self, message: Mapping[str, Any]) -> bool:
        """Queue a message. Return False if the stream is closed."""
        return self.put(self._frame(orjson.dumps(message)))

    def put(self, data: bytes) -> bool:
        """Queue bytes. Return False if the stream is closed."""
        if self._is_closed:
            return False
        self._outbox.append(data)
        self._waiting_bytes += len(data)
        self._has_data.set()
        return True

    def _take_all(self) -> bytes:
        self._has_data.clear()
        data = b"".join(self._outbox)
        self._outbox.clear()
        self._waiting_bytes = 0
        self._has_drained.set()
        return data


class EventStream(Outbox):
    """An HTTP response sent event by event by a writer task.

    Events stay in order, and cancelling a sender never truncates an event.
    """

    def __init__(
        self, send: Send, headers: tuple[tuple[bytes, bytes], ...], ping_seconds: float = PING_SECONDS
    ) -> None:
        super().__init__(encode_event)
        self._send = send
        self._ping_seconds = ping_seconds
        self._last: bytes | None = None
        self._writer = asyncio.ensure_future(self._write_all(headers))

    def finish(self, last: bytes | None = None) -> None:
        """Close the stream after an optional last message.

        Events queued before the writer takes the last message go out first. Requests that were cancelled with the call
        use that moment to send their cancellation.
        """
        self._last = b"" if last is None else encode_event(last)
        self._has_data.set()

    async def wait(self) -> None:
        """Wait until the stream is finished and everything is written."""
        await self._writer

    async def end(self, last: bytes | None = None) -> None:
        """Finish the stream and wait until everything is written."""
        self.finish(last)
        await self._writer

    def abandon(self) -> None:
        """Stop writing. Does nothing if everything is written."""
        self._is_closed = True
        self._has_drained.set()
        self._writer.cancel()

    async def _write_all(self, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        """Write queued events as they come, and a comment after a long silence."""
        await self._send({"type": "http.response.start", "status": 200, "headers": list(headers)})
        is_last = False
        while not is_last:
            if not self._has_data.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._ping_seconds):
                        await self._has_data.wait()
            body = _PING
            if self._has_data.is_set():
                if self._last is not None:
                    self._outbox.append(self._last)
                    self._is_closed = True
                body = self._take_all()
            is_last = self._is_closed
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})


class ResponseChannel:
    """The response to a call over HTTP, which becomes a stream with the first message."""

    __slots__ = ("_headers", "_is_closed", "_send", "_stream", "on_open")

    def __init__(self, send: Send, headers: tuple[tuple[bytes, bytes], ...] = STREAM_HEADERS) -> None:
        self._send = send
        self._headers = headers
        self._stream: EventStream | None = None
        self._is_closed = False
        self.on_open: Callable[[], None] | None = None
        """Called when the stream opens."""

    def open(self) -> EventStream | None:
        """Return the stream, opening it if needed. None if the call is over."""
        if self._is_closed:
            return None
        if self._stream is None:
            self._stream = EventStream(self._send, self._headers)
            if self.on_open is not None:
                self.on_open()
        return self._stream

    def take_stream(self) -> EventStream | None:
        """Return the stream if one was opened, so that it can be ended. No stream can be opened afterwards."""
        self._is_closed = True
        return self._stream

    def close(self) -> None:
        """Abandon a stream that wasn't ended."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.abandon()


def encode_event(message: bytes, number: int | None = None) -> bytes:
    """Encode a message as an event. A client resumes a stream after the event with a `number`."""
    if number is None:
        return b"event: message\r\ndata: %b\r\n\r\n" % message
    return b"id: %d\r\nevent: message\r\ndata: %b\r\n\r\n" % (number, message)


def encode_start(number: int) -> bytes:
    """Encode the event without a message that tells a client where to resume, and when."""
    return b"id: %d\r\nretry: %d\r\ndata: \r\n\r\n" % (number, RETRY_MILLISECONDS)


@dataclass(frozen=True, slots=True)
class EventStoreLimits:
    """Capacity and retention of the event store. A client that hasn't reconnected by then has given up."""

    seconds: float = 300.0
    session_events: int = 256
    session_bytes: int = 1_048_576
    total_bytes: int = 67_108_864


@dataclass(slots=True)
class SessionEvents:
    """Numbers and bytes of a session's stored events, oldest first."""

    numbers: deque[int] = field(default_factory=deque)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """A message to a session. Without a message, it marks the start of a stream."""

    session: SessionEvents
    message: bytes | None
    stored_at: float

    @property
    def size(self) -> int:
        """Bytes that the event counts for."""
        return EVENT_BYTES + len(self.message or b"")


class EventStore:
    """Events of all sessions in this process, oldest first, for clients that lost their stream.

    In memory and bounded: the oldest are evicted to make room, and can't be replayed.
    """

    def __init__(self, limits: EventStoreLimits | None = None, now: Callable[[], float] = monotonic) -> None:
        self._limits = limits or EventStoreLimits()
        self._now = now
        self._events: dict[int, StoredEvent] = {}
        self._last = 0
        self.bytes = 0

    def add(self, session: SessionEvents, message: bytes | None) -> int:
        """Store an event, evicting older ones if needed, and return its number."""
        event = StoredEvent(session, message, self._now())
        self._last += 1
        self._events[self._last] = event
        self.bytes += event.size
        session.numbers.append(self._last)
        session.bytes += event.size
        while len(session.numbers) > self._limits.session_events or session.bytes > self._limits.session_bytes:
            self._remove(session.numbers[0])
        self._evict()
        return self._last

    def list_after(self, session: SessionEvents, last_event_id: bytes) -> list[tuple[int, bytes]]:
        """Return the messages of a session after an event. Empty if the event isn't stored, or is another session's."""
        self._evict()
        number = int(last_event_id) if _NUMBER.fullmatch(last_event_id) else 0
        if number not in session.numbers:
            return []
        later = ((stored, self._events[stored].message) for stored in session.numbers if stored > number)
        return [(stored, message) for stored, message in later if message is not None]

    def drop_session(self, session: SessionEvents) -> None:
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
