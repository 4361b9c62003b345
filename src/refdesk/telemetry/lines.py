"""Non-blocking line writer for streams whose reader may be slow or gone."""

from __future__ import annotations

import asyncio
import os
import select
import stat
from errno import EBADF, EPIPE
from select import PIPE_BUF
from typing import BinaryIO

MAX_WAITING_BYTES = 1_048_576
"""Bytes to buffer for a slow reader. Beyond that, lines are dropped."""


class Lines:
    """Line writer that batches the lines of one event loop iteration.

    It never blocks: what doesn't fit into a pipe waits for the next line, and is dropped beyond a limit.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream: BinaryIO | None = stream
        self._poll = _create_poll(stream)
        self._pending: list[bytes] = []
        self._unwritten = b""
        self._flush_is_scheduled = False

    def msg(self, line: bytes) -> None:
        """Write a line, in the next loop iteration at the latest."""
        self._pending.append(line)
        if not self._flush_is_scheduled:
            try:
                asyncio.get_running_loop().call_soon(self.flush)
                self._flush_is_scheduled = True
            except RuntimeError:
                self.flush()

    debug = info = warning = error = critical = exception = log = msg

    def flush(self) -> None:
        """Write the buffered lines, as far as there is room."""
        self._flush_is_scheduled = False
        data = self._unwritten + b"".join([line + b"\n" for line in self._pending])
        self._pending.clear()
        if self._stream is None or not data:
            return
        try:
            data = self._write(self._stream, data)
        except OSError as error:
            # The reader is gone, and reporting that would write to the same stream. A full disk may recover.
            self._stream = None if error.errno in (EPIPE, EBADF) else self._stream
            data = b""
        self._unwritten = data if len(data) <= MAX_WAITING_BYTES else b""

    def _write(self, stream: BinaryIO, data: bytes) -> bytes:
        """Write without blocking, and return the rest."""
        if self._poll is None:
            stream.write(data)
            stream.flush()
            return b""
        while data and self._poll.poll(0):
            # A writable pipe has room for this much.
            data = data[os.write(stream.fileno(), data[:PIPE_BUF]) :]
        return data


def _create_poll(stream: BinaryIO) -> select.poll | None:
    """Return a poll object for a pipe, socket or terminal. None for files, which never block."""
    try:
        if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            return None
    except (OSError, ValueError):
        return None
    poll = select.poll()
    poll.register(stream.fileno(), select.POLLOUT)
    return poll
