"""What a call costs before a tool does anything: Refdesk's revisions, a bare echo, the bare MCP SDK and FastMCP.

All of them echo a text, in one run, taking turns, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from fastmcp_environment import VERSION as FASTMCP_VERSION
from fastmcp_environment import CannotInstall, fastmcp_python
from load import ID, Measured, Plan
from processes import Server, ServerFailed, cpus, pin, running
from report import print_json, print_table, print_verdict

HERE = Path(__file__).resolve().parent
MAX_CALLS = 1_000_000
"""Of one run; bounds the load generator's memory."""
WARMUP_SECONDS = 0.5
SPARE_SECONDS = 60.0
"""How much longer than planned a run may take before it is given up: opening sessions, the last answers."""

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"
CLIENT = {"name": "benchmark", "version": "1"}
CALL: dict[str, Any] = {"name": "echo", "arguments": {"text": f"echo-{ID}"}}
META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": CLIENT,
}
JSON = {"Content-Type": "application/json"}
BOTH = {**JSON, "Accept": "application/json, text/event-stream"}


def _message(params: Mapping[str, Any]) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": int(ID), "method": "tools/call", "params": params})


@dataclass(frozen=True)
class RequestForm:
    """How a server is called."""

    headers: Mapping[str, str]
    body: str
    opening: Sequence[Mapping[str, Any]] = ()


PLAIN = RequestForm(JSON, _message(CALL))
STATELESS = RequestForm(
    {**BOTH, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"},
    _message({**CALL, "_meta": META}),
)
WITH_PARAMS = RequestForm({**STATELESS.headers, "Mcp-Param-None": "1"}, STATELESS.body)
"""A header for a parameter, though of no tool, is checked by the SDK's rules."""
SESSION = RequestForm(
    {**BOTH, "MCP-Protocol-Version": HANDSHAKE},
    _message(CALL),
    opening=(
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT},
        },
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ),
)


@dataclass(frozen=True)
class Contestant:
    """A server and a way to call it."""

    name: str
    what: str
    script: str
    form: RequestForm


RAW, BARE_JSON_RPC, BARE_SDK, FASTMCP = "raw", "plain", "sdk", "fastmcp"
CONTESTANTS = (
    Contestant(RAW, "raw ASGI echo (orjson)", "raw_echo.py", PLAIN),
    Contestant(BARE_JSON_RPC, "Refdesk, bare JSON-RPC", "refdesk_echo.py", PLAIN),
    Contestant("modern", f"Refdesk, {MODERN}", "refdesk_echo.py", STATELESS),
    Contestant("modern-params", f"Refdesk, {MODERN}, headers of parameters", "refdesk_echo.py", WITH_PARAMS),
    Contestant("session", f"Refdesk, session {HANDSHAKE}", "refdesk_echo.py", SESSION),
    Contestant(BARE_SDK, f"bare MCP SDK {MODERN}", "sdk_echo.py", STATELESS),
    Contestant(FASTMCP, f"FastMCP {FASTMCP_VERSION} {MODERN}", "fastmcp_echo.py", STATELESS),
)


@dataclass(frozen=True)
class Row:
    """A contestant's medians over all rounds; ratios are taken within each round, then their median."""

    name: str
    what: str
    cpu_us: float
    cpu_us_min: float
    cpu_ratio_to_raw: float | None
    per_second: float
    per_second_ratio_to_sdk: float | None
    p50_ms: float
    p99_ms: float
    server_busy: float
    """The share of its CPU that the server got; well below 1, something else was in the way."""
    client_busy: float
    """The share of its CPU that the load generator used; near 1 it was the bottleneck."""
    calls: int

    def cells(self) -> list[str]:
        """As they are printed."""
        return [
            self.what,
            f"{self.cpu_us:.1f}",
            _ratio(self.cpu_ratio_to_raw),
            f"{self.per_second:.0f}",
            _ratio(self.per_second_ratio_to_sdk),
            f"{self.p50_ms:.2f}",
            f"{self.p99_ms:.2f}",
            f"{self.server_busy:.2f}",
        ]


COLUMNS = ("", "CPU µs/call", "to raw", "calls/s", "to SDK", "p50 ms", "p99 ms", "busy")


def main() -> int:
    """Measure and print."""
    options = _options()
    chosen = [one for one in CONTESTANTS if one.name in options.only]
    server_cpu, client_cpu = cpus()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refdesk-bench-")))
        servers: dict[str, Server] = {}
        skipped: dict[str, str] = {}
        for one in chosen:
            try:
                command = _command(one, folder)
                servers[one.name] = stack.enter_context(running(command, folder / f"{one.name}.log", server_cpu))
            except (CannotInstall, ServerFailed) as error:
                if one.name != FASTMCP:
                    raise
                skipped[one.name] = str(error)
        measured = _measure([one for one in chosen if one.name in servers], servers, options, client_cpu)
    _tell([_row(one, measured) for one in chosen if one.name in measured], skipped, options)
    return 0


def _command(one: Contestant, folder: Path) -> list[str]:
    python = str(fastmcp_python()) if one.name == FASTMCP else sys.executable
    arguments = [str(folder / one.name)] if one.script == "refdesk_echo.py" else []
    return [python, str(HERE / "servers" / one.script), *arguments]


def _measure(
    chosen: Sequence[Contestant], servers: Mapping[str, Server], options: argparse.Namespace, client_cpu: int | None
) -> dict[str, list[Measured]]:
    """Every contestant once a round."""
    measured: dict[str, list[Measured]] = {one.name: [] for one in chosen}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
        for one in chosen:
            server = servers[one.name]
            plan = Plan(
                port=server.port,
                headers=one.form.headers,
                body=one.form.body,
                opening=one.form.opening,
                concurrency=options.concurrency,
                warmup_seconds=WARMUP_SECONDS,
                seconds=options.seconds,
                max_calls=MAX_CALLS,
                server_pids=[server.pid],
            )
            measured[one.name].append(run_load(one.name, plan, client_cpu))
    return measured


def run_load(name: str, plan: Plan, cpu: int | None) -> Measured:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "load.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    pin(process.pid, cpu)
    try:
        timeout = plan.warmup_seconds + plan.seconds + SPARE_SECONDS
        out, err = process.communicate(json.dumps(asdict(plan)).encode(), timeout)
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise SystemExit(f"{name}: the load generator stopped:\n{err.decode()}")
    return Measured(**json.loads(out))


def _row(one: Contestant, measured: Mapping[str, Sequence[Measured]]) -> Row:
    runs = measured[one.name]
    return Row(
        name=one.name,
        what=one.what,
        cpu_us=round(median(map(_cpu_us, runs)), 2),
        cpu_us_min=round(min(map(_cpu_us, runs)), 2),
        cpu_ratio_to_raw=_median_ratio(list(map(_cpu_us, runs)), list(map(_cpu_us, measured.get(RAW, ())))),
        per_second=round(median(map(_per_second, runs)), 1),
        per_second_ratio_to_sdk=_median_ratio(
            list(map(_per_second, runs)), list(map(_per_second, measured.get(BARE_SDK, ())))
        ),
        p50_ms=round(median(run.p50_ms for run in runs), 3),
        p99_ms=round(median(run.p99_ms for run in runs), 3),
        server_busy=round(median(run.server_cpu_seconds / run.seconds for run in runs), 2),
        client_busy=round(median(run.client_cpu_seconds / run.seconds for run in runs), 2),
        calls=sum(run.calls for run in runs),
    )


def _cpu_us(run: Measured) -> float:
    return run.server_cpu_seconds / run.calls * 1e6


def _per_second(run: Measured) -> float:
    return run.calls / run.seconds


def _median_ratio(values: Sequence[float], bases: Sequence[float]) -> float | None:
    if not bases:
        return None
    return round(median(value / base for value, base in zip(values, bases, strict=True)), 3)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _tell(rows: Sequence[Row], skipped: Mapping[str, str], options: argparse.Namespace) -> None:
    print_table(COLUMNS, [row.cells() for row in rows])
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    config = {
        "seconds": options.seconds,
        "rounds": options.rounds,
        "concurrency": options.concurrency,
        "warmup_seconds": WARMUP_SECONDS,
        "pinned": cpus()[0] is not None,
        "versions": {name: version(name) for name in ("mcp", "uvicorn", "uvloop", "httptools", "orjson")},
    }
    print_json("serve_overhead", config, [asdict(row) for row in rows], skipped=skipped)
    plain, sdk = (next((row for row in rows if row.name == name), None) for name in (BARE_JSON_RPC, BARE_SDK))
    cpu_ratio, rate_ratio = (plain.cpu_ratio_to_raw, plain.per_second_ratio_to_sdk) if plain else (None, None)
    by_cpu = f" (by CPU time {sdk.cpu_us / plain.cpu_us:.2f})" if plain and sdk else ""
    print_verdict("bare JSON-RPC CPU / raw echo CPU", cpu_ratio, 2.5, at_most=True)
    print_verdict(f"bare JSON-RPC calls/s / bare SDK calls/s{by_cpu}", rate_ratio, 3, at_most=False)


def _options() -> argparse.Namespace:
    names = [one.name for one in CONTESTANTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default 3)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contestant (default 5)")
    parser.add_argument("--concurrency", type=int, default=16, help="connections (default 16)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="contestants to measure (default all)")
    parser.add_argument("--quick", action="store_true", help="two rounds of half a second, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.rounds = 0.5, 2
    return options


if __name__ == "__main__":
    sys.exit(main())
