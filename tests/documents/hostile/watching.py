"""Resource usage of worker processes during a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import children

LOOK_SECONDS = 0.01
"""Sampling interval; the kernel keeps peaks, so only a process's last moment can be missed."""


@dataclass(slots=True)
class Used:
    """Peak usage of any one process, in bytes."""

    addresses: int = 0
    memory: int = 0
    grown: int = 0
    """Growth of the test process itself."""


@asynccontextmanager
async def watch_usage(apart: set[str]) -> AsyncIterator[Used]:
    """Sample the processes started meanwhile, except for those in `apart`."""
    used, before = Used(), _read_status("self", "VmRSS")
    looking = asyncio.create_task(_look(used, apart, before))
    try:
        yield used
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _look(used: Used, apart: set[str], before: int) -> None:
    while True:
        for pid in filter(_is_another_program, children() - apart):
            used.addresses = max(used.addresses, _read_status(pid, "VmPeak"))
            used.memory = max(used.memory, _read_status(pid, "VmHWM"))
        used.grown = max(used.grown, _read_status("self", "VmRSS") - before)
        await asyncio.sleep(LOOK_SECONDS)


def _is_another_program(pid: str) -> bool:
    """Not so for an instant after it was started: until then a child holds all that this process does."""
    return _command(pid) not in (b"", _command("self"))


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _read_status(pid: str, name: str) -> int:
    """Return a figure of a process's status, or 0 if it has exited."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
