"""A redis-server of a benchmark's own: on a free port of loopback, with nothing on the disk, always stopped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import START_SECONDS, stop


class RedisProcess:
    """A server that is running."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.url = f"redis://127.0.0.1:{port}"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It is there and does not answer."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)


@contextmanager
def redis_running(folder: Path) -> Iterator[RedisProcess | None]:
    """A server on a free port, or None where there is no redis-server."""
    executable = shutil.which("redis-server")
    if executable is None:
        yield None
        return
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [executable, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield RedisProcess(process, port)
    finally:
        stop(process)


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
