"""Lines to a stream that may have a slow reader, or none: nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from errno import EBADF, EPIPE
from select import PIPE_BUF
from typing import BinaryIO

MAX_WAITING_BYTES = 1_048_576
"""How much log is kept for a reader that is slow; then lines are dropped."""


class Lines:
    """Writes lines to a stream; inside an event loop, all that one turn of it brought in one go.

    It never waits for a reader: what does not fit into a pipe waits for the next line, and beyond a bound is dropped.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: BinaryIO | None = stream
        self._pipe = _pipe_behind(stream)
        self._waiting: list[bytes] = []
        self._left = b""
        self._flush_is_due = False

    def msg(self, line: bytes) -> None:
        """Write a line, at the latest when the loop turns next."""
        self._waiting.append(line)
        if not self._flush_is_due:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
                self._flush_is_due = True
            except RuntimeError:
                self.flush()

    debug = info = warning = error = critical = exception = log = msg

    def flush(self) -> None:
        """Write what waits, or as much of it as there is room for."""
        self._flush_is_due = False
        data = self._left + b"".join([line + b"\n" for line in self._waiting])
        self._waiting.clear()
        if self._stream is None or not data:
            return
        try:
            data = self._write(self._stream, data)
        except OSError as error:
            # Nobody reads it any more; to complain of that would be to write to it. A full disk may have room again.
            self._stream = None if error.errno in (EPIPE, EBADF) else self._stream
            data = b""
        self._left = data if len(data) <= MAX_WAITING_BYTES else b""

    def _write(self, stream: BinaryIO, data: bytes) -> bytes:
        """Write without waiting; answers what is left."""
        if self._pipe is None:
            stream.write(data)
            stream.flush()
            return b""
        while data and self._pipe.poll(0):
            # So much always fits into a pipe that says it can be written to.
            data = data[os.write(stream.fileno(), data[:PIPE_BUF]) :]
        return data


def _pipe_behind(stream: BinaryIO) -> select.poll | None:
    """Tells whether a pipe, socket or terminal can be written to; None for files, which have no reader to wait for."""
    try:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return None
    except (OSError, ValueError):
        return None
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return poll
