"""Servers as child processes: started, pinned to a CPU, read for their CPU time, and always stopped."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60.0
"""A cold disk and a loaded machine can make imports this slow."""
STOP_SECONDS = 10.0


class ServerFailed(Exception):
    """A server did not start; the message is the end of its log."""


@dataclass(frozen=True)
class Server:
    """A server that is running."""

    pid: int
    port: int


@contextmanager
def running(command: Sequence[str], log: Path, cpu: int | None) -> Iterator[Server]:
    """A server that prints its port once it listens; stopped at the end, whatever happens."""
    with log.open("wb") as stderr:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr)
    try:
        pin(process.pid, cpu)
        yield Server(process.pid, _port(process, log))
    finally:
        stop(process)


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    line = process.stdout.readline() if ready else b""
    if not line:
        raise ServerFailed(log.read_text("utf-8", "replace")[-2000:])
    return int(line)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a child process, politely first."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def cpus() -> tuple[int | None, int | None]:
    """A CPU for the server and another for its client; None where processes cannot be pinned apart."""
    if not hasattr(os, "sched_getaffinity"):
        return None, None
    available = sorted(os.sched_getaffinity(0))
    return (available[0], available[1]) if len(available) > 1 else (None, None)


def pin(pid: int, cpu: int | None) -> None:
    """Keep a process on one CPU."""
    if cpu is not None:
        os.sched_setaffinity(pid, {cpu})


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process so far, of all its threads, user and system."""
    # What clock_getcpuclockid(3) computes on Linux: nanoseconds, where /proc/PID/stat counts hundredths of a second.
    return time.clock_gettime((~pid << 3) | 2)
