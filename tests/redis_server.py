"""A real redis-server for tests: on a free port of loopback, to be killed, restarted, paused and filled."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refdesk.config import RedisConfig
from refdesk.config.kinds import Url

EXECUTABLE = shutil.which("redis-server")

needs_redis = pytest.mark.skipif(EXECUTABLE is None, reason="needs redis-server on the PATH")

START_SECONDS = 10.0
"""How long a server may take to answer for the first time on a busy machine."""


class RedisServer:
    """A server that does what tests want to see survived; nothing of it is kept on the disk."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def settings(self, timeout_seconds: float = 0.1) -> RedisConfig:
        """The configuration of a desk that uses this server."""
        return RedisConfig(url=Url(self.url), timeout_seconds=timeout_seconds)

    def start(self) -> None:
        """Start it, on the port that it had before."""
        assert EXECUTABLE is not None
        given = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", *self._options]
        command = [EXECUTABLE, *given, "--enable-debug-command", "yes", "--dir", str(self._folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        if self.command("PING", seconds=START_SECONDS) != b"+PONG":
            raise RuntimeError("redis-server does not answer")

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
    def paused(self) -> Iterator[None]:
        """Within the block the server is there and does not answer: its sockets are open, its process stands still."""
        assert self._process is not None
        process = self._process
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)  # does nothing to one that has ended

    def sleep(self, seconds: float) -> None:
        """Have it do nothing for a while, beginning now; does not wait for the end."""
        _send(socket.create_connection(("127.0.0.1", self.port), 5), "DEBUG", "SLEEP", str(seconds)).close()

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

    def command(self, *words: str, seconds: float = 5.0) -> bytes:
        """The first line of the reply to a command, on a connection of its own."""
        with _connected(self.port, seconds) as connection:
            return _send(connection, *words).makefile("rb").readline().rstrip()

    async def commands_seen(self) -> int:
        """How many commands it has carried out."""
        return await asyncio.to_thread(self._commands_seen)

    def _commands_seen(self) -> int:
        with _connected(self.port, 5) as connection:
            lines = _send(connection, "INFO", "stats").makefile("rb")
            return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"total_commands_processed"))


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _connected(port: int, seconds: float) -> socket.socket:
    """A connection to the port, as soon as somebody listens there."""
    until = time.monotonic() + seconds
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), seconds)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


def _send(connection: socket.socket, *words: str) -> socket.socket:
    parts = [f"*{len(words)}", *(part for word in words for part in (f"${len(word.encode())}", word))]
    connection.sendall("".join(f"{part}\r\n" for part in parts).encode())
    return connection
