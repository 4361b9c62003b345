"""Metrics: what is counted is shown, with few labels, and over several processes as one."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refdesk.errors import DocumentNotFound, EngineError
from refdesk.telemetry.metrics import MAX_SERIES, Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_everything_that_the_policies_tell_is_shown() -> None:
    metrics = Metrics()
    metrics.count_cache_request("hit")
    metrics.set_cache_size(3, 4096)
    metrics.count_rate_limited("tokens")
    add_tokens = metrics.bind_call("tools/call", "r2r_search", "ok").add_tokens
    assert add_tokens is not None
    add_tokens(120)
    add_tokens(30)
    metrics.count_auth_failure("expired")
    metrics.count_dependency_request("r2r", "search", "ok", 0.02)
    metrics.on_breaker_rejection("r2r")
    metrics.on_retry("r2r")
    metrics.count_token_refresh("r2r", "refreshed")
    metrics.foreign_chunks.inc(2)
    metrics.set_queue_length("queued", 7)
    metrics.set_queue_length("queued", 5)
    assert value(metrics, "refdesk_cache_requests_total", result="hit") == 1
    assert value(metrics, "refdesk_cache_entries") == 3
    assert value(metrics, "refdesk_cache_bytes") == 4096
    assert value(metrics, "refdesk_rate_limited_total", kind="tokens") == 1
    assert value(metrics, "refdesk_tokens_served_total", tool="r2r_search") == 150
    assert value(metrics, "refdesk_auth_failures_total", reason="expired") == 1
    served = {"dependency": "r2r", "operation": "search"}
    assert value(metrics, "refdesk_dependency_requests_total", **served, outcome="ok") == 1
    assert value(metrics, "refdesk_dependency_seconds_bucket", **served, le="0.025") == 1
    assert value(metrics, "refdesk_dependency_seconds_bucket", **served, le="0.01") == 0
    assert value(metrics, "refdesk_breaker_rejections_total", dependency="r2r") == 1
    assert value(metrics, "refdesk_retries_total", dependency="r2r") == 1
    assert value(metrics, "refdesk_token_refreshes_total", dependency="r2r", outcome="refreshed") == 1
    assert value(metrics, "refdesk_r2r_foreign_chunks_total") == 2
    assert value(metrics, "refdesk_queue_documents", stage="queued") == 5


def test_a_breaker_has_a_state_and_counts_its_changes() -> None:
    metrics = Metrics()
    for state, number in (("closed", 0), ("open", 2), ("half_open", 1), ("open", 2), ("open", 2), ("closed", 0)):
        metrics.on_breaker_change("r2r", state)
        assert value(metrics, "refdesk_breaker_state", dependency="r2r") == number
    assert value(metrics, "refdesk_breaker_transitions_total", dependency="r2r", state="open") == 2
    assert value(metrics, "refdesk_breaker_transitions_total", dependency="r2r", state="half_open") == 1
    assert value(metrics, "refdesk_breaker_transitions_total", dependency="r2r", state="closed") == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (EngineError("down"), "failed"),
        (ConnectionError(), "failed"),
        (TimeoutError(), "failed"),
        (DocumentNotFound("no such document"), "refused"),
        (asyncio.CancelledError(), "cancelled"),
    ],
)
def test_a_request_is_counted_by_how_it_ended(error: BaseException, outcome: str) -> None:
    metrics = Metrics()
    with pytest.raises(type(error)), metrics.asking("r2r", "read"):
        raise error
    with metrics.asking("r2r", "read"):
        pass
    for how in (outcome, "ok"):
        found = value(metrics, "refdesk_dependency_requests_total", dependency="r2r", operation="read", outcome=how)
        assert found == 1
    assert value(metrics, "refdesk_dependency_seconds_count", dependency="r2r", operation="read") == 2


def test_made_up_labels_make_only_so_many_series() -> None:
    metrics = Metrics()
    for number in range(MAX_SERIES * 3):
        add_tokens = metrics.bind_call("tools/call", f"made-up-{number}", "ok").add_tokens
        assert add_tokens is not None
        add_tokens(1)
        metrics.count_dependency_request("r2r", f"made-up-{number}", "ok", 0.1)
    (tokens,) = [family for family in metrics.registry.collect() if family.name == "refdesk_tokens_served"]
    counted = [sample.value for sample in tokens.samples if sample.name.endswith("_total")]
    assert len(counted) == MAX_SERIES + 1
    assert sum(counted) == MAX_SERIES * 3
    assert value(metrics, "refdesk_tokens_served_total", tool="other") == MAX_SERIES * 2


WORKER = """
import sys
from refdesk.telemetry.metrics import Metrics
metrics = Metrics()
metrics.count_cache_request("hit")
metrics.set_cache_size(10, int(sys.argv[1]))
metrics.on_breaker_change("r2r", sys.argv[2])
metrics.set_queue_length("queued", 4)
print("told", flush=True)
sys.stdin.read()
"""

LOOK = """
import sys
from refdesk.telemetry.metrics import Metrics
sys.stdout.buffer.write(Metrics().exposition(shared=True))
"""


def start_worker(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", WORKER, *arguments]
    worker = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"told\n"
    return worker


def read_shared_metrics(folder: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    text = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, check=True, capture_output=True
    ).stdout.decode()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.mark.slow
def test_several_processes_are_shown_as_one_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    first, second = start_worker(tmp_path, "1000", "open"), start_worker(tmp_path, "24", "closed")
    try:
        together = read_shared_metrics(tmp_path)
        second.kill()
        second.communicate()
        first_alone = read_shared_metrics(tmp_path)
    finally:
        first.kill()
        first.communicate()
    nobody = read_shared_metrics(tmp_path)
    hits = ("refdesk_cache_requests_total", (("result", "hit"),))
    breaker = ("refdesk_breaker_state", (("dependency", "r2r"),))
    queue = ("refdesk_queue_documents", (("stage", "queued"),))
    held = ("refdesk_cache_bytes", ())
    assert (together[held], together[breaker], together[queue], together[hits]) == (1024, 2, 4, 2)
    assert (first_alone[held], first_alone[breaker], first_alone[hits]) == (1000, 2, 2)
    assert nobody[hits] == 2
    assert nobody[held] == 0
    assert breaker not in nobody
