"""Folder watcher that polls for changed documents.

Native notification services differ between systems, miss network folders and run out of handles on large trees. The
interval grows with the time that a scan takes, so watching uses a small share of one core.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import anyio
import anyio.to_thread

from refdesk.errors import CannotOpen
from refdesk.ingest.folder_walk import SkippedPath, walk

MIN_PAUSE_SECONDS = 1.0
"""Interval for a small folder, short enough after saving a file."""

MAX_PAUSE_SECONDS = 60.0
"""Reached at some 200,000 documents; larger folders take more of the core."""

PAUSE_FACTOR = 20.0
"""Ratio of pause to scan time: watching takes at most a twentieth of one core."""

MAX_SETTLE_ATTEMPTS = 10
"""Scans that wait for a folder to settle; one that changes constantly is then taken as is."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Digest of a folder and the seconds its scan took; no digest if the folder is unreachable."""

    digest: bytes | None
    seconds: float

    @property
    def pause(self) -> float:
        return min(max(self.seconds * PAUSE_FACTOR, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS)


async def changes(
    folder: Path,
    *,
    settle_seconds: float,
    max_files: int,
    ignore: Sequence[str] = (),
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    clock: Callable[[], float] = time.perf_counter,
) -> AsyncGenerator[None, None]:
    """Yield once at the start, then whenever the documents have changed and settled.

    Each yield follows a scan, so changes made while the caller reads are found by the next one. An unreachable folder,
    such as an unplugged disk, counts as unchanged.
    """

    async def take_snapshot() -> _Snapshot:
        return await anyio.to_thread.run_sync(_take_snapshot, folder, ignore, max_files, clock, abandon_on_cancel=True)

    reported = await take_snapshot()
    if reported.digest is None:
        raise CannotOpen(f"{folder} isn't a readable folder.")
    yield
    current = reported
    while True:
        await sleep(current.pause)
        current = await take_snapshot()
        if current.digest in (None, reported.digest):
            continue
        for _ in range(MAX_SETTLE_ATTEMPTS):
            await sleep(settle_seconds)
            before, current = current, await take_snapshot()
            if current.digest == before.digest:
                break
        if current.digest not in (None, reported.digest):
            reported = current
            yield


def _take_snapshot(folder: Path, ignore: Sequence[str], max_files: int, clock: Callable[[], float]) -> _Snapshot:
    started = clock()
    digest = blake2b(digest_size=16)
    try:
        for found in walk(folder, ignore=ignore, max_files=max_files):
            state = found.reason if isinstance(found, SkippedPath) else f"{found.size} {found.mtime_ns} {found.inode}"
            digest.update(f"{found.relative}\n{state}\0".encode())
    except CannotOpen:
        return _Snapshot(None, clock() - started)
    return _Snapshot(digest.digest(), clock() - started)
