"""Times, memory and the kernel's cache: what the benchmarks of search and of ingestion read off."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Times:
    """Of calls of one kind: their CPU time, and how long somebody waited, in milliseconds."""

    calls: int
    cpu_p50: float
    cpu_p99: float
    cpu_mean: float
    wall_p50: float
    wall_p99: float


def shared_times(waited: Sequence[float], cpu: float) -> Times:
    """Of calls whose CPU time is known only in the mean: those of another process, or under way at the same time."""
    wall = sorted(waited)
    return Times(len(wall), cpu, cpu, cpu, percentile(wall, 50), percentile(wall, 99))


@dataclass(slots=True)
class Stopwatch:
    """Notes what each call takes; the CPU time is that of this whole process, so one call at a time."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time what is done inside."""
        cpu, wall = time.process_time(), time.perf_counter()
        yield
        self.cpu.append((time.process_time() - cpu) * 1000)
        self.wall.append((time.perf_counter() - wall) * 1000)

    def times(self) -> Times:
        """What was noted."""
        cpu, wall = sorted(self.cpu), sorted(self.wall)
        return Times(
            calls=len(cpu),
            cpu_p50=percentile(cpu, 50),
            cpu_p99=percentile(cpu, 99),
            cpu_mean=sum(cpu) / len(cpu),
            wall_p50=percentile(wall, 50),
            wall_p99=percentile(wall, 99),
        )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """Of values in order."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


@dataclass(frozen=True, slots=True)
class Memory:
    """What a process holds, in MiB; pages of mapped files are the kernel's to take back, the anonymous part is not."""

    rss: float
    anonymous: float


def memory_of(pid: int | str) -> Memory:
    """What a process holds now; `self` stands for this one."""
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    rss, anonymous = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "RssAnon"))
    return Memory(round(rss, 1), round(anonymous, 1))


def evict(folder: Path) -> None:
    """Have the kernel forget the files of a folder, as after a restart of the machine."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)  # pages that are not on the disk yet would stay
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
