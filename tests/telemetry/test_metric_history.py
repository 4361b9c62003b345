"""The last half hour in samples, each the difference between two looks at the metrics."""

from __future__ import annotations

import pytest

from refdesk.telemetry.metric_history import MAX_SAMPLES, Calls, History, quantile, resident_megabytes
from refdesk.telemetry.metrics import BUCKETS, Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def count_call(metrics: Metrics, method: str, tool: str, outcome: str, seconds: float) -> None:
    series = metrics.bind_call(method, tool, outcome)
    series.increment()
    series.observe_seconds(seconds)


@pytest.fixture
def history(metrics: Metrics) -> History:
    count_call(metrics, "tools/call", "before", "ok", 0.01)
    return History(metrics, leave_out="console/")


def test_a_sample_is_what_has_happened_since_the_one_before(metrics: Metrics, history: History) -> None:
    for outcome in ("ok", "ok", "tool_error", "cancelled", "Forbidden"):
        count_call(metrics, "tools/call", "search", outcome, 0.02)
    count_call(metrics, "tools/list", "", "ok", 0.001)
    metrics.count_cache_request("hit")
    metrics.count_cache_request("stale")
    metrics.count_cache_request("miss")
    metrics.on_breaker_change("r2r", "open")
    metrics.under_way = 3
    first = history.take(100.0, 7)
    assert (first.total.calls, first.total.errors) == (6, 2)
    assert {tool: (calls.calls, calls.errors) for tool, calls in first.tools.items()} == {"search": (5, 2)}
    assert (first.cache_hits, first.cache_misses, first.in_flight, first.queue) == (2, 1, 3, 7)
    assert first.breakers == {"r2r": "open"}
    count_call(metrics, "tools/call", "search", "ok", 0.02)
    second = history.take(105.0, None)
    assert (second.total.calls, second.total.errors, second.cache_hits) == (1, 0, 0)
    assert history.tools()["search"].calls == 6
    assert [sample.at for sample in history.since(100.0)] == [105.0]


def test_what_the_charts_are_looked_at_with_is_left_out(metrics: Metrics, history: History) -> None:
    count_call(metrics, "console/metrics", "", "ok", 0.01)
    assert history.take(1.0, None).total == Calls()


def test_quiet_times_have_no_percentiles(history: History) -> None:
    wire = history.take(1.0, None).wire()
    assert (wire["calls"], wire["p50_ms"], wire["p95_ms"], wire["queue"]) == (0, None, None, None)
    assert history.latency(["search"]) is None


def test_percentiles_lie_where_the_calls_do(metrics: Metrics, history: History) -> None:
    for _ in range(90):
        count_call(metrics, "tools/call", "search", "ok", 0.007)
    for _ in range(10):
        count_call(metrics, "tools/call", "search", "ok", 0.7)
    wire = history.take(1.0, None).wire()
    assert 5 <= wire["p50_ms"] <= 10
    assert 500 <= wire["p95_ms"] <= 1000
    assert history.latency(["search", "nothing"]) == {"p50_ms": wire["p50_ms"], "p95_ms": wire["p95_ms"]}


def test_calls_are_taken_to_be_spread_evenly_within_a_bucket() -> None:
    buckets = [0] * (len(BUCKETS) + 1)
    assert quantile(0.5, buckets) is None
    assert quantile(0.5, ()) is None
    buckets[4] = 10  # from 5 to 10 ms
    assert quantile(0.5, buckets) == pytest.approx(0.0075)
    buckets[-1] = 90  # longer than any
    assert quantile(0.95, buckets) == BUCKETS[-1]


def test_only_so_many_samples_are_kept(metrics: Metrics, history: History) -> None:
    count_call(metrics, "tools/call", "search", "ok", 0.01)
    for at in range(MAX_SAMPLES + 5):
        history.take(float(at), None)
    samples = history.since()
    assert len(samples) == MAX_SAMPLES
    assert samples[0].at == 5.0
    assert history.tools() == {}


def test_the_memory_of_this_process_is_some_megabytes() -> None:
    resident = resident_megabytes()
    assert resident is None or 5 < resident < 100_000


def test_what_is_told_of_tools_is_that_of_the_samples_that_are_kept(metrics: Metrics, history: History) -> None:
    for number in range(MAX_SAMPLES + 10):
        count_call(metrics, "tools/call", "search", "ok", 0.01)
        if number < 5:
            count_call(metrics, "tools/call", "early", "ok", 0.01)
        history.take(float(number), None)
    assert {tool: calls.calls for tool, calls in history.tools().items()} == {"search": MAX_SAMPLES}
    assert sum(history.tools()["search"].buckets) == MAX_SAMPLES
    assert len(history.since()) == MAX_SAMPLES
