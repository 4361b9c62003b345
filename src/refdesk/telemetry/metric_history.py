"""History of the last half hour: periodic samples of the metrics, as differences between two samples.

It covers one process. With several workers, a client sees the history of the worker that answers, while `/metrics` adds
up all of them.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from mmap import PAGESIZE
from operator import add, sub
from pathlib import Path
from typing import Any

from refdesk.telemetry.metrics import BUCKETS, Metrics

INTERVAL_SECONDS = 5.0
MAX_SAMPLES = 360
"""Maximum number of samples: half an hour."""

SUCCESS_OUTCOMES = frozenset({"ok", "input_required", "cancelled"})
"""Outcomes that don't count as errors."""

CACHE_HIT_RESULTS = ("hit", "stale", "shared")
"""Cache results that avoided the work."""

MEGABYTE = 1024 * 1024

Labels = tuple[str, str]
"""Method and tool."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Number of errors, and a latency histogram of all calls with one count per bucket of `BUCKETS` and one beyond."""

    errors: int = 0
    buckets: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)

    @property
    def calls(self) -> int:
        """Number of calls."""
        return sum(self.buckets)

    @property
    def latency(self) -> dict[str, float | None]:
        """Median and 95th percentile, None without calls."""
        return {"p50_ms": self.milliseconds(0.5), "p95_ms": self.milliseconds(0.95)}

    def __add__(self, other: Calls) -> Calls:
        return Calls(self.errors + other.errors, tuple(map(add, self.buckets, other.buckets)))

    def since(self, before: Calls) -> Calls:
        """Return the difference to an earlier state of the same counters."""
        return Calls(self.errors - before.errors, tuple(map(sub, self.buckets, before.buckets)))

    def milliseconds(self, share: float) -> float | None:
        """Return an approximate latency quantile, or None without calls."""
        seconds = quantile(share, self.buckets)
        return None if seconds is None else round(seconds * 1000, 2)


@dataclass(frozen=True, slots=True)
class Sample:
    """Metrics of one interval, and the state at its end."""

    at: float
    """Unix time in seconds."""
    total: Calls
    tools: Mapping[str, Calls]
    """Only tools that were called."""
    cache_hits: int
    cache_misses: int
    in_flight: int
    queue: int | None
    """Documents in the ingest queue. None if nobody was watching, since counting them costs time."""
    rss_mb: float | None
    breakers: Mapping[str, str]

    def wire(self) -> dict[str, Any]:
        """Return the sample as JSON, without the numbers per tool."""
        return {
            "at": self.at,
            "calls": self.total.calls,
            "errors": self.total.errors,
            **self.total.latency,
            "cache_hits": self.cache_hits,
            "cache_misses": self.cache_misses,
            "in_flight": self.in_flight,
            "queue": self.queue,
            "rss_mb": self.rss_mb,
            "breakers": dict(self.breakers),
        }


class History:
    """The stored samples, oldest first."""

    def __init__(self, metrics: Metrics, *, leave_out: str) -> None:
        """Start the history. `leave_out` is a method prefix to ignore: viewing the charts must not show up in them."""
        self._metrics = metrics
        self._leave_out = leave_out
        self._samples: deque[Sample] = deque()
        self._tools: dict[str, Calls] = {}
        self._last_calls, self._last_cache = self._read_counters()

    def take(self, at: float, queue: int | None) -> Sample:
        before, cache_before = self._last_calls, self._last_cache
        self._last_calls, self._last_cache = self._read_counters()
        cache = self._last_cache - cache_before
        changed = {
            labels: calls.since(before.get(labels, Calls()))
            for labels, calls in self._last_calls.items()
            if calls != before.get(labels)
        }
        sample = Sample(
            at=round(at, 3),
            total=sum(changed.values(), Calls()),
            tools={tool: calls for (_, tool), calls in changed.items() if tool},
            cache_hits=sum(cache[result] for result in CACHE_HIT_RESULTS),
            cache_misses=cache["miss"],
            in_flight=self._metrics.under_way,
            queue=queue,
            rss_mb=resident_megabytes(),
            breakers=dict(self._metrics.breakers),
        )
        self._samples.append(sample)
        for tool, calls in sample.tools.items():
            self._tools[tool] = self._tools.get(tool, Calls()) + calls
        if len(self._samples) > MAX_SAMPLES:
            for tool, calls in self._samples.popleft().tools.items():
                self._tools[tool] = self._tools[tool].since(calls)
                if not self._tools[tool].calls:
                    del self._tools[tool]
        return sample

    @property
    def last(self) -> Sample | None:
        return self._samples[-1] if self._samples else None

    def since(self, at: float | None = None) -> list[Sample]:
        """Return the samples after a point in time, or all of them."""
        return [sample for sample in self._samples if at is None or sample.at > at]

    def tools(self) -> Mapping[str, Calls]:
        """Return the sum of all samples per tool."""
        return self._tools

    def latency(self, tools: Iterable[str]) -> dict[str, float | None] | None:
        """Return the latency of some tools, or None without calls."""
        calls = sum((self._tools[name] for name in tools if name in self._tools), Calls())
        return calls.latency if calls.calls else None

    def _read_counters(self) -> tuple[dict[Labels, Calls], Tally[str]]:
        """Return the calls, and the cache requests by result."""
        cache: Tally[str] = Tally()
        for labels, value in _iter_series(self._metrics.cache_requests, "_total"):
            cache[labels["result"]] = int(value)
        errors: Tally[Labels] = Tally()
        for labels, value in _iter_series(self._metrics.calls, "_total"):
            if labels["outcome"] not in SUCCESS_OUTCOMES:
                errors[labels["method"], labels["tool"]] += int(value)
        cumulative: dict[Labels, list[int]] = {}
        """Calls up to the upper bound of each bucket."""
        for labels, value in _iter_series(self._metrics.call_seconds, "_bucket"):
            if not labels["method"].startswith(self._leave_out):
                cumulative.setdefault((labels["method"], labels["tool"]), []).append(int(value))
        calls = {
            key: Calls(errors[key], tuple(after - before for before, after in pairwise((0, *counts))))
            for key, counts in cumulative.items()
        }
        return calls, cache


def quantile(share: float, buckets: Sequence[int]) -> float | None:
    """Estimate a latency quantile in seconds, interpolating linearly within a bucket.

    Beyond the last of `BUCKETS`, the bound of that bucket is returned.
    """
    rank = share * sum(buckets)
    if not rank:
        return None
    below = 0
    for count, (lower, upper) in zip(buckets, pairwise((0.0, *BUCKETS)), strict=False):
        if below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below += count
    return BUCKETS[-1]


def resident_megabytes() -> float | None:
    """Return the resident memory of this process, or None without procfs."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * PAGESIZE / MEGABYTE, 1)


def _iter_series(metric: Any, suffix: str) -> Iterable[tuple[Mapping[str, str], float]]:
    """Yield labels and value of each series of a metric."""
    for family in metric.collect():
        for sample in family.samples:
            if sample.name.endswith(suffix):
                yield sample.labels, sample.value
