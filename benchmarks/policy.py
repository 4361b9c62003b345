"""What the policy around a call costs: a cached answer beside a trivial one, lists, ingestion, and each part alone.

The same desk is served with its cache in memory, in Redis and switched off, and answers from the manual that every
desk has; another one takes documents in. They take turns in one run, so that whatever else the machine does hits all
alike. Redis is also stopped under load, which cached calls are not to notice by more than what no cache at all would
cost.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from load import ID, Measured, Plan
from policy_parts import PartCost, measure_parts
from processes import Server, cpus, pin, running
from redis_process import RedisProcess, redis_running
from report import print_json, print_table, print_verdict

HERE = Path(__file__).resolve().parent
JSON = {"Content-Type": "application/json"}
WARMUP_SECONDS = 0.5
SPARE_SECONDS = 60.0
"""How much longer than planned a run may take before it is given up."""
PAUSE_AFTER_SECONDS = WARMUP_SECONDS + 0.75
"""From the start of the load generator: it then measures for certain, and the first calls to meet it are counted."""
MAX_CALLS = 1_000_000
MAX_INGESTED = 40
"""Acknowledgements a round: the work behind them goes on, and is not what is measured."""
CALL_SECONDS = 60.0
INDEX_SECONDS = 300.0
SETTLE_SECONDS = 3.0
"""In which a desk that has indexed its documents comes to rest, and one whose Redis is back notices."""

MEMORY, REDIS, NONE, WRITING, BROKEN = "memory", "redis", "none", "writing", "broken"
BREAKER_OPEN = -32003
FAILURES = 10
"""Calls to a dead R2R in which its breaker must have opened."""
QUESTION = {"query": "how do I set the rate limits of a server", "collection_id": "refdesk"}


@dataclass(frozen=True)
class Row:
    """A call, and the server that it is made to."""

    name: str
    what: str
    server: str
    tool: str
    arguments: Mapping[str, Any]
    is_cached: bool = False
    max_calls: int = MAX_CALLS
    is_busy: bool = True
    """Whether it is also made by many at once, for its CPU time."""
    is_refused: bool = False
    """Whether it is to be refused because what it needs is down."""

    @property
    def body(self) -> str:
        """The request. Its id is what the load generator looks for in the answer."""
        params = {"name": self.tool, "arguments": self.arguments}
        return json.dumps({"jsonrpc": "2.0", "id": f"echo-{ID}", "method": "tools/call", "params": params})


TRIVIAL, CACHED, CACHED_REDIS, UNCACHED = "trivial", "cached", "cached-redis", "uncached"
LISTS, INGEST, REFUSED = ("collections", "documents"), "ingest", "refused"
NOTE = {"title": f"Note {ID}", "text": f"# Note {ID}\n\nSomething worth keeping.", "collection_id": "benchmark"}
ROWS = (
    Row(TRIVIAL, "echo, which does nothing", MEMORY, "echo", {"text": "hello"}),
    Row(CACHED, "r2r_search, cached in memory", MEMORY, "r2r_search", QUESTION, is_cached=True),
    Row(CACHED_REDIS, "r2r_search, cached in Redis", REDIS, "r2r_search", QUESTION, is_cached=True),
    Row(UNCACHED, "r2r_search, no cache", NONE, "r2r_search", QUESTION),
    Row(LISTS[0], "r2r_list_collections", MEMORY, "r2r_list_collections", {}),
    Row(LISTS[1], "r2r_list_documents", MEMORY, "r2r_list_documents", {"collection_id": "refdesk"}),
    Row(
        INGEST, "r2r_ingest_document, acknowledged", WRITING, "r2r_ingest_document", NOTE,
        max_calls=MAX_INGESTED, is_busy=False,
    ),
    Row(REFUSED, "r2r_search, R2R down: refused with -32003", BROKEN, "r2r_search", QUESTION, is_refused=True),
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A row's medians over all rounds; differences and ratios are taken within each round, then their median."""

    name: str
    what: str
    cpu_us: float | None
    cpu_us_over_trivial: float | None
    p50_ms: float
    p99_ms: float
    """Of one client alone, so that nobody waits for another's call."""
    busy_p99_ms: float | None
    calls: int

    def cells(self) -> list[str]:
        """As they are printed."""
        numbers = (self.cpu_us, self.cpu_us_over_trivial, self.p50_ms, self.p99_ms, self.busy_p99_ms)
        return [self.what, *("" if number is None else f"{number:.2f}" for number in numbers)]


COLUMNS = ("", "CPU µs/call", "over trivial", "p50 ms", "p99 ms", "p99 ms busy")


@dataclass
class Runs:
    """Everything that was measured, a list entry for each round."""

    alone: dict[str, list[Measured]]
    busy: dict[str, list[Measured]]
    paused: list[Measured]


def main() -> int:
    """Measure and print."""
    options = _options()
    server_cpu, client_cpu = cpus()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refdesk-bench-")))
        # The manual's index is elsewhere shared by all desks of a user, and changes whenever one of them wants it to.
        os.environ["XDG_CACHE_HOME"] = str(folder)
        redis = stack.enter_context(redis_running(folder))
        absent = _absent(redis)
        parts = asyncio.run(measure_parts(redis.url if redis else None))
        rows = [row for row in ROWS if row.server not in absent]
        servers = {}
        for name in dict.fromkeys(row.server for row in rows):
            script = [sys.executable, str(HERE / "servers" / "refdesk_policy.py")]
            command = [*script, str(folder / name), name, redis.url if redis else ""]
            servers[name] = stack.enter_context(running(command, folder / f"{name}.log", server_cpu))
        for name in servers.keys() - {BROKEN}:
            _wait_until_indexed(servers[name], "refdesk")
        time.sleep(SETTLE_SECONDS)
        for row in rows:
            _check(row, servers[row.server])
        runs = _measure(rows, servers, redis, options, client_cpu)
    _tell([_result(row, runs) for row in rows], _paused_ratio(runs), parts, absent, options)
    return 0


def _absent(redis: RedisProcess | None) -> dict[str, str]:
    """The servers that cannot be had, and why."""
    if redis is None:
        return {REDIS: "there is no redis-server on the PATH"}
    return {}


def _wait_until_indexed(server: Server, collection: str) -> None:
    """While documents come in, what is cached is out of date at once, and the CPU is not the calls' own."""
    until = time.monotonic() + INDEX_SECONDS
    row = Row("", "", "", "r2r_list_documents", {"collection_id": collection, "status_filter": "pending"})
    while _answer(row, server)["result"]["structuredContent"]["total"]:
        if time.monotonic() > until:
            raise SystemExit(f"{collection} is still not indexed")
        time.sleep(0.2)


def _check(row: Row, server: Server) -> None:
    """Make the call twice, which also fills the cache: an error, or a cache that is none, is not to be measured."""
    if row.is_refused:
        codes = [_answer(row, server).get("error", {}).get("code") for _ in range(FAILURES)]
        if codes[-1] != BREAKER_OPEN:
            raise SystemExit(f"{row.what}: not refused, but {codes}")
        return
    _answer(row, server)
    answer = _answer(row, server)
    result = answer.get("result", {})
    is_cached = bool((result.get("structuredContent") or {}).get("cached"))
    if "result" not in answer or result.get("isError") or is_cached != row.is_cached:
        raise SystemExit(f"{row.what}: not the answer that is to be measured: {str(answer)[:1000]}")


def _answer(row: Row, server: Server) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=CALL_SECONDS)
    try:
        connection.request("POST", "/mcp", row.body, JSON)
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def _measure(
    rows: Sequence[Row],
    servers: Mapping[str, Server],
    redis: RedisProcess | None,
    options: argparse.Namespace,
    cpu: int | None,
) -> Runs:
    """Every row once a round, alone and among many."""
    runs = Runs({row.name: [] for row in rows}, {row.name: [] for row in rows if row.is_busy}, [])
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for row in rows:
            server = servers[row.server]
            runs.alone[row.name].append(_run(_plan(row, server, 1, options), cpu))
            if row.is_busy:
                runs.busy[row.name].append(_run(_plan(row, server, options.concurrency, options), cpu))
            if row.name == CACHED_REDIS and redis is not None:
                runs.paused.append(_run(_plan(row, server, options.concurrency, options), cpu, redis))
                _wait_until_back(row, server)
            if row.name == INGEST:
                _wait_until_indexed(server, "benchmark")
    return runs


def _plan(row: Row, server: Server, concurrency: int, options: argparse.Namespace) -> Plan:
    return Plan(
        port=server.port,
        headers=JSON,
        body=row.body,
        opening=(),
        concurrency=concurrency,
        warmup_seconds=0 if row.max_calls < MAX_CALLS else WARMUP_SECONDS,
        seconds=options.seconds,
        max_calls=row.max_calls,
        server_pids=[server.pid],
    )


def _run(plan: Plan, cpu: int | None, to_pause: RedisProcess | None = None) -> Measured:
    """One run of the load generator; with a Redis to pause, most of it without that."""
    command = [sys.executable, str(HERE / "load.py")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    pin(process.pid, cpu)
    given = json.dumps(asdict(plan)).encode()
    timeout = plan.warmup_seconds + plan.seconds + SPARE_SECONDS
    try:
        if to_pause is None:
            out, err = process.communicate(given, timeout)
        else:
            out, err = _communicate_paused(process, given, timeout, to_pause)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise SystemExit(f"the load generator stopped:\n{err.decode()}")
    return Measured(**json.loads(out))


def _communicate_paused(
    process: subprocess.Popen[bytes], given: bytes, timeout: float, redis: RedisProcess
) -> tuple[bytes, bytes]:
    assert process.stdin is not None
    process.stdin.write(given)
    process.stdin.close()
    process.stdin = None
    time.sleep(PAUSE_AFTER_SECONDS)
    with redis.paused():
        return process.communicate(timeout=timeout)


def _wait_until_back(row: Row, server: Server) -> None:
    """What was answered without Redis may have been kept elsewhere; the next round begins as the first did."""
    time.sleep(SETTLE_SECONDS)
    _check(row, server)


def _result(row: Row, runs: Runs) -> Result:
    alone, busy, trivial = runs.alone[row.name], runs.busy.get(row.name, []), runs.busy[TRIVIAL]
    over = [_cpu_us(one) - _cpu_us(other) for one, other in zip(busy, trivial, strict=True)] if busy else []
    return Result(
        name=row.name,
        what=row.what,
        cpu_us=_median(busy, _cpu_us),
        cpu_us_over_trivial=round(median(over), 2) if over and row.name != TRIVIAL else None,
        p50_ms=round(median(run.p50_ms for run in alone), 3),
        p99_ms=round(median(run.p99_ms for run in alone), 3),
        busy_p99_ms=_median(busy, lambda run: run.p99_ms),
        calls=sum(run.calls for run in [*alone, *busy]),
    )


def _paused_ratio(runs: Runs) -> float | None:
    """The p99 of cached calls while Redis stands still, to that of calls without any cache."""
    if not runs.paused:
        return None
    return median(paused.p99_ms / none.p99_ms for paused, none in zip(runs.paused, runs.busy[UNCACHED], strict=True))


def _cpu_us(run: Measured) -> float:
    return run.server_cpu_seconds / run.calls * 1e6


def _median(runs: Sequence[Measured], of: Callable[[Measured], float]) -> float | None:
    return round(median(map(of, runs)), 2) if runs else None


def _tell(
    results: Sequence[Result],
    paused_ratio: float | None,
    parts: Sequence[PartCost],
    absent: Mapping[str, str],
    options: argparse.Namespace,
) -> None:
    print_table(COLUMNS, [result.cells() for result in results])
    for row in ROWS:
        if row.server in absent:
            print(f"{row.what}: not measured: {absent[row.server]}")
    print()
    print_table(("alone", "CPU µs", "wall µs"), [[p.name, f"{p.cpu_us:.2f}", f"{p.wall_us:.2f}"] for p in parts])
    config = {
        "seconds": options.seconds,
        "rounds": options.rounds,
        "concurrency": options.concurrency,
        "pinned": cpus()[0] is not None,
        "versions": {name: version(name) for name in ("mcp", "uvicorn", "uvloop", "redis", "orjson")},
    }
    rows = [asdict(result) for result in results]
    print_json(
        "policy", config, rows, parts=[asdict(part) for part in parts], paused_p99_ratio=paused_ratio, absent=absent
    )
    _judge({result.name: result for result in results}, paused_ratio)


def _judge(results: Mapping[str, Result], paused_ratio: float | None) -> None:
    """The targets. How long a trivial call takes is what the machine adds to every other."""
    floor = results[TRIVIAL].p99_ms
    for name, target in ((CACHED, 150), (CACHED_REDIS, 400)):
        what = next(row.what for row in ROWS if row.name == name)
        over = results[name].cpu_us_over_trivial if name in results else None
        print_verdict(f"{what}: CPU over a trivial call", over, target, at_most=True, unit=" µs")
    waits = ((CACHED, 10), (CACHED_REDIS, 10), *((name, 200) for name in LISTS), (INGEST, 100), (REFUSED, 5))
    for name, target in waits:
        what = next(row.what for row in ROWS if row.name == name)
        p99 = results[name].p99_ms if name in results else None
        print_verdict(f"{what}: p99 (of a trivial call: {floor:.2f})", p99, target, at_most=True, unit=" ms")
    print_verdict("p99 of cached calls while Redis stands still / without a cache", paused_ratio, 3, at_most=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each row (default 5)")
    parser.add_argument("--concurrency", type=int, default=16, help="connections when busy (default 16)")
    parser.add_argument("--quick", action="store_true", help="two rounds of a second, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 1.0, 2
    return options


if __name__ == "__main__":
    sys.exit(main())
