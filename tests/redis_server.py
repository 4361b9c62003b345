"""A real redis-server for tests: on a free port of loopback, to be killed, restarted, paused and filled."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refdesk.config.models import RedisConfig
from refdesk.config.types import Url
from refdesk.resilience.redis_connection import RedisLink
from tests.ports import find_free_port
from tests.programs import find_program, needs
from tests.waiting import PATIENCE_SECONDS, eventually_sync

needs_redis = needs("redis-server")


class RedisServer:
    """A server that does what tests want to see survived; nothing of it is kept on the disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = find_free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def settings(self) -> RedisConfig:
        """The configuration of a desk that uses this server. Operations time out only if a test is about to fail."""
        return RedisConfig(url=Url(self.url), timeout_seconds=PATIENCE_SECONDS)

    def start(self) -> None:
        """Start it, on the port that it had before, and wait until it answers."""
        given = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self._options]
        command = [find_program("redis-server"), *given, "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually_sync(self._answers)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError("redis-server ended instead of starting")
        try:
            return self.command("PING") == b"+PONG"
        except ConnectionError:
            return False

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start an empty one in its place."""
        self.kill()
        self.start()

    @contextmanager
    def paused(self, link: RedisLink) -> Iterator[None]:
        """Stop the process for the length of the block: its sockets stay open, and nothing is answered.

        Operations of the link time out soon meanwhile, and have their usual time limit afterwards.
        """
        assert self._process is not None
        process, patience = self._process, link.timeout_seconds
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        link.timeout_seconds = 0.05
        try:
            yield
        finally:
            link.timeout_seconds = patience
            process.send_signal(signal.SIGCONT)  # does nothing to one that has ended

    def fill(self) -> None:
        """Leave it without room: every write is refused from now on."""
        self.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.command("CONFIG", "SET", "maxmemory", "1")

    def make_room(self) -> None:
        """Let it take writes again."""
        self.command("CONFIG", "SET", "maxmemory", "0")

    def set_read_only(self, is_read_only: bool) -> None:
        """Make it the replica of nobody, which refuses writes, or its own master again."""
        where = ("127.0.0.1", "1") if is_read_only else ("NO", "ONE")
        self.command("REPLICAOF", *where)

    def command(self, *words: str) -> bytes:
        """The first line of the reply to a command, on a connection of its own."""
        with self._connect() as connection:
            return _send(connection, *words).makefile("rb").readline().rstrip()

    def _connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS)


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """A running server that ends with the block; options are those of redis-server, as words."""
    with tempfile.TemporaryDirectory() as folder:
        server = RedisServer(Path(folder), *options)
        server.start()
        try:
            yield server
        finally:
            server.kill()


def _send(connection: socket.socket, *words: str) -> socket.socket:
    parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word.encode())}", word))]
    connection.sendall("".join(f"{part}\r\n" for part in parts).encode())
    return connection
