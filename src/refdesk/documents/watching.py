"""Noticing that the documents of a folder have changed, by looking again and again.

Systems have services for this that differ, miss network folders and run out of handles on large trees; a look is the
same everywhere. The time between looks grows with what a look costs, so that watching takes a small share of one core.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import anyio
import anyio.to_thread

from refdesk.documents.folders import FoundFile, LeftOut, walk
from refdesk.errors import CannotOpen

SHORTEST_PAUSE = 1.0
"""Seconds between two looks at a small folder: soon enough for whoever has just saved a file."""

LONGEST_PAUSE = 60.0
"""Seconds, which a folder of some two hundred thousand documents comes to; a larger one takes more of the core."""

PAUSE_PER_LOOK = 20.0
"""How much longer than a look the pause after it is: watching takes at most a twentieth of one core."""

MAX_SETTLING = 10
"""Times that a folder is waited for to come to rest; one that is written to all the time is then taken as it is."""


@dataclass(frozen=True, slots=True)
class _Look:
    """What a look at the folder found and the seconds that it took; no digest while the folder is out of reach."""

    digest: bytes | None
    seconds: float

    @property
    def pause(self) -> float:
        return min(max(self.seconds * PAUSE_PER_LOOK, SHORTEST_PAUSE), LONGEST_PAUSE)


async def changes(
    folder: Path,
    *,
    settle_seconds: float,
    max_files: int,
    ignore: Sequence[str] = (),
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> AsyncGenerator[None, None]:
    """Yield once at the beginning, and then whenever the documents have changed and come to rest.

    The folder is looked at before each yield, so what changes while the caller reads it is noticed by the next look. A
    folder that is out of reach, such as a disk that was unplugged, has not changed: its documents may come back.
    """

    async def look() -> _Look:
        return await anyio.to_thread.run_sync(_look, folder, ignore, max_files, clock, abandon_on_cancel=True)

    known = await look()
    if known.digest is None:
        raise CannotOpen(f"{folder} is no folder that can be read.")
    yield
    seen = known
    while True:
        await sleep(seen.pause)
        seen = await look()
        if seen.digest in (None, known.digest):
            continue
        seen = await _settled(seen, look, settle_seconds, sleep)
        if seen.digest not in (None, known.digest):
            known = seen
            yield


async def _settled(
    seen: _Look,
    look: Callable[[], Awaitable[_Look]],
    settle_seconds: float,
    sleep: Callable[[float], Awaitable[None]],
) -> _Look:
    """The first look that is the same as the one before it."""
    for _ in range(MAX_SETTLING):
        await sleep(settle_seconds)
        before, seen = seen, await look()
        if seen.digest == before.digest:
            break
    return seen


def _look(folder: Path, ignore: Sequence[str], max_files: int, clock: Callable[[], float]) -> _Look:
    started = clock()
    try:
        digest = _digest(folder, ignore, max_files)
    except CannotOpen:
        digest = None
    return _Look(digest, clock() - started)


def _digest(folder: Path, ignore: Sequence[str], max_files: int) -> bytes:
    digest = blake2b(digest_size=16)
    for found in walk(folder, ignore=ignore, max_files=max_files):
        digest.update(_seen(found).encode() + b"\0")
    return digest.digest()


def _seen(found: FoundFile | LeftOut) -> str:
    if isinstance(found, LeftOut):
        return f"{found.relative}\n{found.reason}"
    return f"{found.relative}\n{found.size} {found.mtime_ns} {found.inode}"
