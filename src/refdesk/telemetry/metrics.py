"""Prometheus metrics and their labels.

Label values are names from the program or its operator, never from clients. The number of series per metric is limited
as a safeguard.
"""

from __future__ import annotations

import os
import re
from asyncio import CancelledError
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Final, Generic, Literal, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from refdesk.errors import DependencyError
from refdesk.telemetry.traces import child_span

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds, from a cached answer to the longest possible call."""

CONVERSION_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 300.0)
"""Seconds, from a small file to the longest possible conversion."""

BREAKER_STATES = {"closed": 0, "half_open": 1, "open": 2}
"""Higher is worse. Of several processes, the worst is shown."""

MAX_SERIES = 500
"""Maximum number of series per metric, far above what tools, methods and dependencies need."""

OTHER = "other"
"""Label of the series that takes everything beyond the limit."""

M = TypeVar("M", bound=MetricWrapperBase)


@dataclass(slots=True)
class ConversionRecord:
    """Outcome of a conversion in progress, `failed` until set."""

    outcome: Literal["ok", "cached", "refused", "failed"] = "failed"


class CallSeries(NamedTuple):
    """Series that count calls. Bound once, because looking them up costs more than counting."""

    increment: Callable[[], None]
    observe_seconds: Callable[[float], None]
    add_tokens: Callable[[float], None] | None
    """Counts the tokens of answers. None for calls of no tool."""


class Metrics:
    """All metrics of the server, in their own registry."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.calls = counter("refdesk_calls", "Calls answered, by outcome.", ["method", "tool", "outcome"])
        self.call_seconds = Histogram(
            "refdesk_call_seconds", "Time to answer a call.", ["method", "tool"], buckets=BUCKETS, registry=registry
        )
        self.refusals = counter("refdesk_http_refusals", "HTTP requests refused at the door.", ["status"])
        self.conversions = counter(
            "refdesk_conversions", "Files converted, by outcome: ok, cached, refused or failed.", ["outcome"]
        )
        self.conversion_seconds = Histogram(
            "refdesk_conversion_seconds", "Time to convert a file, waiting for a worker included.",
            buckets=CONVERSION_BUCKETS, registry=registry,
        )  # fmt: skip
        self.documents = counter(
            "refdesk_documents", "Documents read for the index, by outcome: indexed, unchanged, failed or postponed.",
            ["outcome"],
        )  # fmt: skip
        self.embedded_chunks = counter("refdesk_embedded_chunks", "Chunks of documents that were embedded.")
        self.cache_requests = counter(
            "refdesk_cache_requests", "Answers looked for in the cache, by result.", ["result"]
        )
        self.count_cache_request = _CountedSeries(self.cache_requests)
        """Count a cache lookup: `hit`, `miss`, `stale`, `shared` with a concurrent request, or `error`."""
        self._cache_bytes = gauge("refdesk_cache_bytes", "What the cache in memory holds.", multiprocess_mode="livesum")
        self._cache_entries = gauge(
            "refdesk_cache_entries", "Answers that the cache in memory holds.", multiprocess_mode="livesum"
        )
        self.count_rate_limited = self._count_by(
            "refdesk_rate_limited", "Calls refused because a limit was reached, by the kind of limit.", "kind"
        )
        """Count a rate-limited call, by limit: `calls`, `tokens`, `total` or `document`."""
        self._tokens = _Series(
            counter("refdesk_tokens_served", "Tokens in answers of tools, about: four characters are one.", ["tool"])
        )
        self.count_auth_failure = self._count_by(
            "refdesk_auth_failures", "Credentials that were refused, by reason.", "reason"
        )
        """Count a rejected credential by its error type."""
        self._define_dependency_metrics(registry)
        self.under_way = 0
        """Calls in progress in this process. A plain integer, because every call changes it twice."""
        self.breakers: dict[str, str] = {}
        """Last known state of each breaker, by dependency."""

    def _define_dependency_metrics(self, registry: CollectorRegistry) -> None:
        # All processes share the queue and have the same servers.
        gauge = partial(Gauge, multiprocess_mode="livemax", registry=registry)
        self._count_dependency_request = self._count_by(
            "refdesk_dependency_requests", "Requests to what is behind this server, by outcome.",
            "dependency", "operation", "outcome",
        )  # fmt: skip
        self._dependency_seconds = _Series(
            Histogram(
                "refdesk_dependency_seconds", "Time that what is behind this server took.", ["dependency", "operation"],
                buckets=BUCKETS, registry=registry,
            )
        )  # fmt: skip
        self._breaker_state = _Series(
            gauge("refdesk_breaker_state", "Circuit breakers: 0 closed, 1 half open, 2 open.", ["dependency"])
        )
        self._count_breaker_transition = self._count_by(
            "refdesk_breaker_transitions", "Changes of circuit breakers, by their new state.", "dependency", "state"
        )
        self.on_breaker_rejection = self._count_by(
            "refdesk_breaker_rejections", "Requests that an open circuit breaker did not let through.", "dependency"
        )
        self.on_retry = self._count_by("refdesk_retries", "Requests made again after a failure.", "dependency")
        self.count_token_refresh = self._count_by(
            "refdesk_token_refreshes", "Access tokens fetched for what is behind this server, by outcome.",
            "dependency", "outcome",
        )  # fmt: skip
        """Count an access token fetch: `refreshed`, `login` or `failed`."""
        self._queue = _Series(
            gauge("refdesk_queue_documents", "Documents waiting to be brought in, by stage.", ["stage"])
        )
        self._servers = gauge("refdesk_downstream_servers", "MCP servers behind this one, by state.", ["state"])
        self._server_sessions = Counter(
            "refdesk_downstream_sessions", "Sessions opened with each MCP server behind this one.", ["server"],
            registry=registry,
        )  # fmt: skip
        self._held_tools = gauge(
            "refdesk_downstream_held_tools", "Tools of other servers that changed and wait for approval."
        )
        self.foreign_chunks = Counter(
            "refdesk_r2r_foreign_chunks",
            "Chunks that R2R gave from collections that were not asked for; they were withheld.", registry=registry,
        )  # fmt: skip

    def _count_by(self, name: str, description: str, *labels: str) -> _CountedSeries:
        return _CountedSeries(Counter(name, description, labels, registry=self.registry))

    def bind_call(self, method: str, tool: str, outcome: str) -> CallSeries:
        """Return the series of calls with this outcome. An empty `tool` is none, or one that doesn't exist."""
        add_tokens = self._tokens[tool,].inc if tool else None
        return CallSeries(
            self.calls.labels(method, tool, outcome).inc, self.call_seconds.labels(method, tool).observe, add_tokens
        )

    def set_cache_size(self, entries: int, size: int) -> None:
        self._cache_entries.set(entries)
        self._cache_bytes.set(size)

    def count_dependency_request(self, name: str, operation: str, outcome: str, seconds: float) -> None:
        self._count_dependency_request(name, operation, outcome)
        self._dependency_seconds[name, operation].observe(seconds)

    @contextmanager
    def asking(self, name: str, operation: str) -> Iterator[None]:
        """Count, time and trace the request to a dependency in the block."""
        started = perf_counter()
        outcome = "failed"
        try:
            with child_span(name, operation):
                yield
            outcome = "ok"
        except CancelledError:
            outcome = "cancelled"
            raise
        except Exception as error:
            outcome = "failed" if isinstance(error, DependencyError | OSError | TimeoutError) else "refused"
            raise
        finally:
            self.count_dependency_request(name, operation, outcome, perf_counter() - started)

    def on_breaker_change(self, name: str, state: str) -> None:
        """Set a breaker's state, and count the transition. The first state isn't a transition."""
        before, self.breakers[name] = self.breakers.get(name, "closed"), str(state)
        self._breaker_state[name,].set(BREAKER_STATES[state])
        if before != state:
            self._count_breaker_transition(name, state)

    def set_servers_by_state(self, states: Mapping[str, int]) -> None:
        for state, count in states.items():
            self._servers.labels(state).set(count)

    def count_server_session(self, server: str) -> None:
        self._server_sessions.labels(server).inc()

    def set_held_tools(self, count: int) -> None:
        self._held_tools.set(count)

    def set_queue_length(self, stage: str, documents: int) -> None:
        """Set the number of documents at a stage of the ingest queue."""
        self._queue[stage,].set(documents)

    @contextmanager
    def conversion(self) -> Iterator[ConversionRecord]:
        """Count the conversion in the block, and its duration unless it was cached."""
        conversion, started = ConversionRecord(), perf_counter()
        try:
            yield conversion
        finally:
            self.conversions.labels(conversion.outcome).inc()
            if conversion.outcome != "cached":
                self.conversion_seconds.observe(perf_counter() - started)

    def exposition(self, *, shared: bool = False) -> bytes:
        """Return all metrics in Prometheus text format. `shared` adds up all worker processes."""
        if not shared:
            return generate_latest(self.registry)
        _remove_dead_workers(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # the library leaves it unannotated
        return generate_latest(registry)


class _Series(Generic[M]):
    """Series of a metric by labels: faster than the library's lookup, and limited in number."""

    def __init__(self, metric: M) -> None:
        self.metric: Final = metric
        self._known: dict[tuple[str, ...], M] = {}

    def __getitem__(self, labels: tuple[str, ...]) -> M:
        child = self._known.get(labels)
        if child is None:
            if len(self._known) >= MAX_SERIES:
                labels = (OTHER,) * len(labels)
            child = self._known[labels] = self.metric.labels(*labels)
        return child


class _CountedSeries(_Series[Counter]):
    """Function that adds one to the series of its labels."""

    def __call__(self, *labels: str) -> None:
        self[labels].inc()


_LIVE_GAUGE = re.compile(r"gauge_live\w+_(\d+)\.db")


def _remove_dead_workers(folder: Path) -> None:
    """Remove the live gauges of worker processes that have ended. Their counters stay."""
    for pid in {int(match[1]) for file in folder.iterdir() if (match := _LIVE_GAUGE.fullmatch(file.name))}:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            # Another worker may have removed it already.
            with suppress(FileNotFoundError):
                mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]  # unannotated
        except PermissionError:
            continue
