"""Pool of SQLite connections for calls in threads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from refdesk.errors import EngineError

BUSY_SECONDS = 10.0
"""Time a writer waits for another process that is writing."""

RETRY_SECONDS = 0.02
PRAGMAS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"


class ConnectionPool:
    """Connections to one database, one per concurrent call, closed together."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: list[sqlite3.Connection] = []
        self._busy: dict[object, sqlite3.Connection] = {}
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def borrow(self, call: object) -> Iterator[sqlite3.Connection]:
        """Yield a connection reserved for this call."""
        connection = self._acquire(call)
        try:
            yield connection
        finally:
            with self._changed:
                del self._busy[call]
                self._idle.append(connection)
                self._changed.notify_all()

    def interrupt(self, call: object) -> None:
        """Interrupt the running query of a call, if any."""
        with self._changed:
            if call in self._busy:
                self._busy[call].interrupt()

    def close(self) -> None:
        """Interrupt all calls, wait until each has returned its connection, and close all connections."""
        with self._changed:
            self._closed = True
            for connection in self._busy.values():
                connection.interrupt()
            self._changed.wait_for(lambda: not self._busy)
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _acquire(self, call: object) -> sqlite3.Connection:
        with self._changed:
            if self._closed:
                raise EngineError("the desk is closed")
            connection = self._idle.pop() if self._idle else self._open()
            self._busy[call] = connection
            return connection

    def _open(self) -> sqlite3.Connection:
        # Used by one thread at a time, though not always the same one.
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        give_up_at = monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.executescript(PRAGMAS)
                return connection
            except sqlite3.Error as error:
                # SQLite doesn't wait while another process switches a new file to WAL mode.
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or monotonic() >= give_up_at:
                    connection.close()
                    raise
                sleep(RETRY_SECONDS)
