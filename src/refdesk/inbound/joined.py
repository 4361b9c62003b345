"""A response's head and body in one write: two would be two system calls, on every request."""

from __future__ import annotations

import asyncio


class JoinedWrites:
    """A transport for one response, which holds its first write back until the second or the loop's next turn."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        """Write, or hold what is likely to be followed at once."""
        if self._head is None:
            self._head = data
            self._loop.call_soon(self._flush)
        elif self._head:
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close, once everything is written."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is on its way out."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._head = b""
