"""Incremental parser for server-sent events (`text/event-stream` of the HTML standard). No I/O.

Each byte is processed once, however the stream is chunked, and at most one event is buffered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_ID_BYTES = 1024
"""Maximum length of an event id, which is sent back in a header. Longer ones are ignored."""

MAX_KIND_BYTES = 64
"""Maximum length of an event type. The known ones are short."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MILLISECONDS = re.compile(rb"[0-9]{1,9}")
_ID = re.compile(rb"[\x20-\x7e]{0,%d}" % MAX_ID_BYTES)


@dataclass(frozen=True, slots=True)
class SseEvent:
    """An event: its type, and its data as bytes."""

    kind: str
    data: bytes
    is_whole: bool = True
    """False for an event above the size limit. Its data is dropped; later events are unaffected."""


class SseParser:
    """Parser for one stream: takes chunks and returns complete events."""

    def __init__(self, max_bytes: int, last_id: str = "") -> None:
        self.last_id = last_id
        """Id of the last complete event that had one. A new stream can resume from there."""
        self.retry: float | None = None
        """Reconnection delay in seconds, as set by the server."""
        self._max_bytes = max_bytes
        self._line = bytearray()
        self._data = bytearray()
        self._kind = b""
        self._id = last_id
        self._is_oversized = False
        self._after_cr = False
        self._at_start = True

    def resume(self) -> SseParser:
        """Return a parser for a stream that resumes where this one broke off."""
        reader = SseParser(self._max_bytes, self.last_id)
        reader.retry = self.retry
        return reader

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Parse a chunk and return the events it completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")  # second half of a CRLF
            self._after_cr = False
        events: list[SseEvent] = []
        for line in chunk.splitlines(keepends=True):
            if line.endswith((b"\n", b"\r")):
                self._handle_line(self._complete_line(line), events)
            elif self._has_room(len(line), events):
                self._line += line
            else:
                self._line[:] = b":"  # the rest of an oversized line parses as a comment
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        return events

    def _has_room(self, more: int, events: list[SseEvent]) -> bool:
        """Whether the event may grow by so many bytes. The first excess reports and drops it."""
        if self._is_oversized:
            return False
        if len(self._line) + len(self._data) + more <= self._max_bytes:
            return True
        events.append(SseEvent(self._current_kind, b"", is_whole=False))
        self._is_oversized = True
        self._data.clear()
        return False

    def _complete_line(self, end: bytes) -> bytes:
        """Return a complete line without its terminator."""
        if self._line:
            self._line += end
            end = bytes(self._line)
            self._line.clear()
        line = end.rstrip(b"\r\n")
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        return line

    def _handle_line(self, line: bytes, events: list[SseEvent]) -> None:
        if not line:
            self._finish_event(events)
            return
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            if self._has_room(len(value) + 1, events):
                self._data += value
                self._data += b"\n"
        elif field == b"event":
            self._kind = value[:MAX_KIND_BYTES]
        elif field == b"id" and _ID.fullmatch(value):
            self._id = value.decode()
        elif field == b"retry" and _MILLISECONDS.fullmatch(value):
            self.retry = int(value) / 1000

    def _finish_event(self, events: list[SseEvent]) -> None:
        self.last_id = self._id
        if self._data:
            events.append(SseEvent(self._current_kind, bytes(memoryview(self._data)[:-1])))
            self._data = bytearray()
        self._kind = b""
        self._is_oversized = False

    @property
    def _current_kind(self) -> str:
        return self._kind.decode(errors="replace") or "message"
