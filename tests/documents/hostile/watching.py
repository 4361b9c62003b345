"""Watches what this process's workers use while they work, and what they leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import children

LOOK_SECONDS = 0.01
"""Between two looks; the system keeps the peak of each process, so that only its last moment can be missed."""


@dataclass(slots=True)
class Used:
    """The most that any one process held at a time, in bytes."""

    addresses: int = 0
    memory: int = 0
    grown: int = 0
    """What this process itself took more than at the beginning."""


@asynccontextmanager
async def watched(apart: set[str]) -> AsyncIterator[Used]:
    """What the processes use meanwhile that were started besides those `apart`."""
    used, before = Used(), _held("self", "VmRSS")
    looking = asyncio.create_task(_look(used, apart, before))
    try:
        yield used
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)


async def _look(used: Used, apart: set[str], before: int) -> None:
    while True:
        for pid in filter(_is_another_program, children() - apart):
            used.addresses = max(used.addresses, _held(pid, "VmPeak"))
            used.memory = max(used.memory, _held(pid, "VmHWM"))
        used.grown = max(used.grown, _held("self", "VmRSS") - before)
        await asyncio.sleep(LOOK_SECONDS)


def _is_another_program(pid: str) -> bool:
    """Not so for an instant after it was started: until then a child holds all that this process does."""
    return _command(pid) not in (b"", _command("self"))


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _held(pid: str, name: str) -> int:
    """A figure that the system keeps of a process; nothing for one that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
