"""`refdesk` in forks of one process, for tests of what commands do rather than of how their process starts.

A process that is new spends about two seconds on imports; a fork of one that has them takes some hundredths.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.waiting import eventually_sync

ROOT = Path(__file__).parents[1]
CLIENT = Path(__file__).with_name("fork_client.py")


def refdesk() -> list[str]:
    """Return a command that stands in for `processes.REFDESK`: same files, folder, environment and exit code."""
    return [sys.executable, "-I", "-S", str(fork_server().with_name(CLIENT.name)), "refdesk"]


@dataclass(frozen=True)
class ForkedProcess:
    """A `refdesk` that runs in a fork; a subset of `asyncio.subprocess.Process`."""

    pid: int
    stderr: asyncio.StreamReader
    _exit_code: asyncio.Task[int]

    @property
    def returncode(self) -> int | None:
        """The exit code, or the negative number of the signal that killed it, or `None` while it runs."""
        return self._exit_code.result() if self._exit_code.done() else None

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""
        return await asyncio.shield(self._exit_code)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class _PipeProtocol(asyncio.StreamReaderProtocol):
    """Closes the pipe when it has been read to its end."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


async def start_refdesk(*arguments: str, cwd: Path, env: Mapping[str, str]) -> ForkedProcess:
    """Start `refdesk` in a fork without input and output; standard error is a pipe."""
    server = await asyncio.to_thread(fork_server)
    wanted = json.dumps({"argv": ["refdesk", *arguments], "cwd": str(cwd), "env": dict(env)}).encode()
    link = socket.socket(socket.AF_UNIX)
    link.connect(str(server))
    reading, writing = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR)
    socket.send_fds(link, [len(wanted).to_bytes(4, "big")], [nothing, nothing, writing])
    os.close(nothing)
    os.close(writing)
    link.sendall(wanted)
    replies, writer = await asyncio.open_unix_connection(sock=link)
    pid = int.from_bytes(await replies.readexactly(4), "big")

    async def read_exit_code() -> int:
        try:
            return int.from_bytes(await replies.readexactly(4), "big", signed=True)
        finally:
            writer.close()

    stderr = asyncio.StreamReader()
    pipe = os.fdopen(reading, "rb")
    await asyncio.get_running_loop().connect_read_pipe(lambda: _PipeProtocol(stderr), pipe)
    return ForkedProcess(pid, stderr, asyncio.create_task(read_exit_code()))


@cache
def fork_server() -> Path:
    """Start the fork server of this process, which ends with it, and return its socket."""
    folder = Path(tempfile.mkdtemp())
    link = folder / "forks"
    (folder / CLIENT.name).symlink_to(CLIENT)
    process = subprocess.Popen([sys.executable, "-m", "tests.fork_server", link], cwd=ROOT)
    atexit.register(_end, process, folder)
    eventually_sync(lambda: link.exists() or process.poll() is not None)
    if process.poll() is not None:
        raise RuntimeError("the fork server ended instead of starting")
    return link


def _end(process: subprocess.Popen[bytes], folder: Path) -> None:
    process.kill()
    process.wait()
    shutil.rmtree(folder)
