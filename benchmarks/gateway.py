"""What a call costs through a gateway, and what a gateway does when servers behind it hang, crash or die.

Refdesk, the gateways that people use, and a bare relay as the floor, each with the same servers behind it, in one run.
CPU is that of the gateway's own processes, not of the servers behind it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp

from gateway_client import HttpClient, SseClient, measure_sse
from gateway_peers import FOLDER, GATEWAYS, REFDESK, Behind, CannotInstall, Gateway, Kind
from load import ID, Measured, Plan, cpu_of
from processes import running, stop
from report import print_json, print_table, print_verdict
from serve_overhead import BOTH, CLIENT, run_load

HERE = Path(__file__).resolve().parent
DOWNSTREAM = HERE / "servers" / "downstream.py"
VERSION = "2025-06-18"
START_SECONDS = 120.0
COLD_SECONDS = 30.0
"""How long a gateway may take until the good servers' tools are listed; what takes longer is told as never."""
TARGETS: Mapping[Kind, float] = {"stdio": 0.35, "http": 0.5}
QUIET_SECONDS = 30.0
ENGINE_MEMORY = """
import asyncio, pathlib, sys
from refdesk.config.loading import load
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics

def rss():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

async def use():
    config, metrics = load(None, {}, {"data_dir": sys.argv[1]}), Metrics()
    before = rss()
    from refdesk.documents.conversions import open_conversions
    from refdesk.engines.embedded.embedding import open_embedder
    from refdesk.engines.embedded.engine import open_embedded
    from refdesk.engines.base import Search
    from refdesk.manual import find_manual_index_folder
    async with (
        open_conversions(config.convert, config.data_path, metrics) as conversions,
        open_embedder(config.embedding) as embedder,
        open_embedded(config.data_path / "tenants", find_manual_index_folder(config.data_path), embedder, conversions,
                      log=Log("error", "json"), metrics=metrics, readers=1, closed=[]) as engine,
    ):
        await engine.search("default", Search("how do I require keys"))
        print(rss() - before)

asyncio.run(use())
"""
"""What the knowledge engine takes, when nothing else is there."""
GOOD, HANG, CRASH = "normal", "hang", "crash"


@dataclass(frozen=True)
class Row:
    """One gateway over one kind of server; medians over the rounds."""

    name: str
    what: str
    kind: str
    cpu_ms_1: float
    cpu_ms_16: float
    p50_ms_1: float
    p99_ms_1: float
    p50_ms_16: float
    p99_ms_16: float
    per_second_16: float
    rss_mb: float

    def cells(self) -> list[str]:
        """As they are printed."""
        numbers = (self.cpu_ms_1, self.cpu_ms_16, self.p50_ms_1, self.p99_ms_1, self.p50_ms_16, self.p99_ms_16)
        return [self.what, self.kind, *(f"{n:.2f}" for n in numbers), f"{self.per_second_16:.0f}", f"{self.rss_mb:.0f}"]


COLUMNS = ("", "behind", "CPU ms c=1", "CPU ms c=16", "p50 c=1", "p99 c=1", "p50 c=16", "p99 c=16", "calls/s", "RSS MB")


@dataclass(frozen=True)
class Cold:
    """One start with ten servers; seconds since the process began, None for never."""

    name: str
    what: str
    scenario: str
    initialized: float | None
    listed: float | None
    first_tools: int
    all_good: float | None

    def cells(self) -> list[str]:
        """As they are printed."""
        shown = [_seconds(self.initialized), _seconds(self.listed), str(self.first_tools), _seconds(self.all_good)]
        return [self.what, self.scenario, *shown]


COLD_COLUMNS = ("", "servers", "initialize", "tools/list", "tools in it", "all good ones")


@dataclass(frozen=True)
class Running:
    """A gateway that is up."""

    gateway: Gateway
    port: int
    process: subprocess.Popen[bytes]
    others: Sequence[subprocess.Popen[bytes]]
    begun: float

    def pids(self) -> list[int]:
        """Its own processes, without the servers behind it."""
        roots = [self.process.pid, *(other.pid for other in self.others)]
        return [pid for root in roots for pid in _tree(root) if not _is_downstream(pid)]

    def servers(self) -> list[int]:
        """The processes of the servers behind it."""
        roots = [self.process.pid, *(other.pid for other in self.others)]
        return [pid for root in roots for pid in _tree(root) if _is_downstream(pid)]

    def client(self) -> HttpClient | SseClient:
        """A client of it, not connected yet."""
        kind = SseClient if self.gateway.inbound == "sse" else HttpClient
        return kind(f"http://127.0.0.1:{self.port}{self.gateway.path}", self.gateway.headers)


@contextmanager
def started(gateway: Gateway, behind: Sequence[Behind], folder: Path, *, register: bool = True) -> Iterator[Running]:
    """The gateway with these servers behind it; all that it started is ended at the end."""
    port = _free_port()
    command = gateway.command(behind, port, folder)
    environment = {**os.environ, **gateway.environment, "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    with (folder / f"{gateway.name}.log").open("ab") as log:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder,
            start_new_session=True,
        )  # fmt: skip
    others: list[subprocess.Popen[bytes]] = []
    try:
        _await_port(port, process, START_SECONDS)
        others = gateway.register(behind, port, folder) if register else []
        yield Running(gateway, port, process, others, begun)
    finally:
        tree = [pid for one in (process, *others) for pid in _tree(one.pid)]
        for one in (process, *others):
            stop(one)
        for pid in tree:
            _kill(pid)


def main() -> int:
    """Measure and print."""
    options = _options()
    chosen = [one for one in GATEWAYS if one.name in options.only]
    skipped = dict(_installed(chosen))
    chosen = [one for one in chosen if one.name not in skipped]
    rows: list[Row] = []
    colds: list[Cold] = []
    recoveries: dict[str, float | None] = {}
    memory: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="refdesk-bench-") as temporary:
        folder = Path(temporary)
        if "calls" in options.parts:
            rows = _measure_calls(chosen, options, folder, skipped)
        if "cold" in options.parts:
            colds = [cold for one in chosen if one.aggregates for cold in _measure_cold(one, folder)]
        if "recovery" in options.parts:
            recoveries = {one.name: _measure_recovery(one, folder) for one in chosen if one.name != "relay"}
        refdesk = next((one for one in chosen if one.name == REFDESK), None)
        if "memory" in options.parts and refdesk is not None:
            memory = _measure_memory(refdesk, folder)
    _tell(rows, colds, recoveries, memory, skipped, options)
    return 0


def _installed(chosen: Sequence[Gateway]) -> Iterator[tuple[str, str]]:
    """Those that cannot be had, with the reason."""
    for one in chosen:
        try:
            one.install()
        except CannotInstall as error:
            yield one.name, str(error)


def _measure_calls(
    chosen: Sequence[Gateway], options: argparse.Namespace, folder: Path, skipped: dict[str, str]
) -> list[Row]:
    found: dict[tuple[str, Kind], list[Row]] = {}
    for number in range(options.rounds):
        for kind in options.kinds:
            for one in chosen:
                if kind not in one.kinds or f"{one.name} ({kind})" in skipped:
                    continue
                print(f"round {number + 1} of {options.rounds}: {one.name}, {kind}", file=sys.stderr)
                try:
                    found.setdefault((one.name, kind), []).append(_measure_one(one, kind, options, folder))
                except (CannotInstall, OSError, TimeoutError, RuntimeError, aiohttp.ClientError) as error:
                    skipped[f"{one.name} ({kind})"] = f"{type(error).__name__}: {error}"
    return [_median_row(rows) for rows in found.values()]


def _measure_one(gateway: Gateway, kind: Kind, options: argparse.Namespace, folder: Path) -> Row:
    with ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        behind = Behind("one", command=_stdio(GOOD))
        if kind == "http":
            server = stack.enter_context(running([sys.executable, str(DOWNSTREAM), "http"], here / "http.log", None))
            behind = Behind("one", url=f"http://127.0.0.1:{server.port}/mcp")
        up = stack.enter_context(started(gateway, [behind], here))
        tool = asyncio.run(_await_tool(up))
        _await_quiet(up)
        alone, crowd = (_loaded(up, tool, clients, options.seconds) for clients in (1, 16))
        return Row(
            gateway.name, gateway.what, kind, _cpu_ms(alone), _cpu_ms(crowd), alone.p50_ms, alone.p99_ms, crowd.p50_ms,
            crowd.p99_ms, crowd.calls / crowd.seconds, _rss_mb(up.pids()),
        )  # fmt: skip


def _loaded(up: Running, tool: str, clients: int, seconds: float) -> Measured:
    """The same call again and again, of so many clients with a session each."""
    call = {"name": tool, "arguments": {"text": f"echo-{ID}"}}
    pids = up.pids()
    if up.gateway.inbound == "sse":
        url = f"http://127.0.0.1:{up.port}{up.gateway.path}"
        return asyncio.run(measure_sse(url, call, clients, seconds, pids))
    initialize = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": CLIENT}
    plan = Plan(
        port=up.port,
        headers={**BOTH, "MCP-Protocol-Version": VERSION, **up.gateway.headers},
        body=json.dumps({"jsonrpc": "2.0", "id": int(ID), "method": "tools/call", "params": call}),
        opening=(
            {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
        ),
        concurrency=clients,
        warmup_seconds=min(1.0, seconds),
        seconds=seconds,
        max_calls=1_000_000,
        server_pids=pids,
        path=up.gateway.path,
    )
    return run_load(up.gateway.name, plan, None)


async def _await_tool(up: Running) -> str:
    """The name that the echo tool has here, once it is there."""
    until = time.perf_counter() + START_SECONDS
    while True:
        client = up.client()
        try:
            await client.connect()
            names = await client.tools()
            for name in names:
                if name.endswith("echo"):
                    return name
        except (aiohttp.ClientError, RuntimeError, TimeoutError):
            if up.process.poll() is not None:
                raise RuntimeError("the gateway ended by itself") from None
        finally:
            await client.close()
        if time.perf_counter() > until:
            raise TimeoutError("its tool was never listed")
        await asyncio.sleep(0.2)


def _await_quiet(up: Running) -> None:
    """Until it has done what it does after its start, in the background and for nobody in particular."""
    until = time.monotonic() + QUIET_SECONDS
    spent = cpu_of(up.pids())
    while time.monotonic() < until:
        time.sleep(0.5)
        before, spent = spent, cpu_of(up.pids())
        if spent - before < 0.02:
            return


def _measure_cold(gateway: Gateway, folder: Path) -> Iterator[Cold]:
    """A start with ten good servers, and with one that hangs and one that crashes among them."""
    for scenario, modes in (
        ("10 good", [GOOD] * 10),
        ("8 good, 1 hangs, 1 crashes", [GOOD] * 4 + [HANG, CRASH] + [GOOD] * 4),
    ):
        print(f"cold start: {gateway.name}, {scenario}", file=sys.stderr)
        behind = [Behind(f"s{number}", command=_stdio(mode)) for number, mode in enumerate(modes)]
        with tempfile.TemporaryDirectory(dir=folder) as here:
            try:
                with started(gateway, behind, Path(here)) as up:
                    yield asyncio.run(_watch_start(up, scenario, modes.count(GOOD)))
            except (CannotInstall, OSError, TimeoutError, RuntimeError) as error:
                print(f"{gateway.name}: {error}", file=sys.stderr)
                yield Cold(gateway.name, gateway.what, scenario, None, None, 0, None)


async def _watch_start(up: Running, scenario: str, good: int) -> Cold:
    initialized = listed = everything = None
    first = 0
    while everything is None and time.perf_counter() - up.begun < COLD_SECONDS:
        client = up.client()
        try:
            async with asyncio.timeout(max(0.1, COLD_SECONDS - (time.perf_counter() - up.begun))):
                await client.connect()
                initialized = initialized or time.perf_counter() - up.begun
                tools = [name for name in await client.tools() if name.endswith("echo")]
                if listed is None:
                    listed, first = time.perf_counter() - up.begun, len(tools)
                if len(tools) >= good:
                    everything = time.perf_counter() - up.begun
        except (aiohttp.ClientError, RuntimeError, TimeoutError):
            await asyncio.sleep(0.02)
        finally:
            await client.close()
        await asyncio.sleep(0.02)
    return Cold(up.gateway.name, up.gateway.what, scenario, initialized, listed, first, everything)


def _measure_recovery(gateway: Gateway, folder: Path) -> float | None:
    """Seconds from the death of the server to the next good answer in the same session; None for never."""
    print(f"recovery: {gateway.name}", file=sys.stderr)
    if "stdio" not in gateway.kinds:
        return None
    with tempfile.TemporaryDirectory(dir=folder) as here:
        try:
            with started(gateway, [Behind("one", command=_stdio(GOOD))], Path(here)) as up:
                tool = asyncio.run(_await_tool(up))
                return asyncio.run(_recovered(up, tool))
        except (CannotInstall, OSError, TimeoutError, RuntimeError):
            return None


async def _recovered(up: Running, tool: str) -> float | None:
    client = up.client()
    await client.connect()
    try:
        await client.call(tool, "before")
        for pid in up.servers():
            os.kill(pid, signal.SIGKILL)
        begun = time.perf_counter()
        while time.perf_counter() - begun < 10:
            try:
                async with asyncio.timeout(3):
                    await client.call(tool, "after")
                return time.perf_counter() - begun
            except (aiohttp.ClientError, RuntimeError, TimeoutError):
                await asyncio.sleep(0.01)
        return None
    finally:
        await client.close()


def _engine_memory() -> float:
    used = FOLDER / "refdesk-data"
    return float(subprocess.check_output([sys.executable, "-c", ENGINE_MEMORY, str(used)]))


def _measure_memory(gateway: Gateway, folder: Path) -> dict[str, float]:
    """Megabytes of this product's main process with ten servers and with none, and of what only its engine needs."""
    found: dict[str, float] = {"engine": _engine_memory()}
    for name, count in (("ten servers", 10), ("no servers", 0)):
        behind = [Behind(f"s{number}", command=_stdio(GOOD)) for number in range(count)]
        with tempfile.TemporaryDirectory(dir=folder) as here, started(gateway, behind, Path(here)) as up:
            if behind:
                asyncio.run(_await_tool(up))
            _await_quiet(up)
            found[name] = _rss_mb([up.process.pid])
    return found


def _stdio(mode: str) -> list[str]:
    return [sys.executable, "-S", str(DOWNSTREAM), "stdio", mode]


def _median_row(rows: Sequence[Row]) -> Row:
    values = {name: [asdict(row)[name] for row in rows] for name in asdict(rows[0])}
    fixed = {name: values[name][0] for name in ("name", "what", "kind")}
    return Row(**fixed, **{name: round(median(of), 4) for name, of in values.items() if name not in fixed})


def _cpu_ms(run: Measured) -> float:
    return run.server_cpu_seconds / run.calls * 1000


def _rss_mb(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return total / 1024


def _tree(pid: int) -> list[int]:
    """A process and all that it has started."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text("utf-8").split()]
    except OSError:
        return []
    return [pid, *(below for child in children for below in _tree(child))]


def _is_downstream(pid: int) -> bool:
    """Whether a process is a server behind a gateway, and not a gateway that has one in its arguments."""
    try:
        return os.fsencode(DOWNSTREAM) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _await_port(port: int, process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 0.5).close()
        except OSError:
            if process.poll() is not None:
                raise RuntimeError("the gateway ended by itself") from None
            time.sleep(0.01)
        else:
            return
    raise TimeoutError("its port was never opened")


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _tell(
    rows: Sequence[Row],
    colds: Sequence[Cold],
    recoveries: Mapping[str, float | None],
    memory: Mapping[str, float],
    skipped: Mapping[str, str],
    options: argparse.Namespace,
) -> None:
    if rows:
        print_table(COLUMNS, [row.cells() for row in sorted(rows, key=lambda row: (row.kind, row.cpu_ms_16))])
    if colds:
        print_table(COLD_COLUMNS, [cold.cells() for cold in colds])
    for name, seconds in recoveries.items():
        print(f"after the server died, {name} answered again in: {_seconds(seconds)}")
    for name, reason in skipped.items():
        print(f"skipped {name}: {reason}")
    for kind, target in TARGETS.items():
        ours = next((row.cpu_ms_16 for row in rows if row.name == REFDESK and row.kind == kind), None)
        print_verdict(f"CPU ms per call through Refdesk, {kind}, 16 clients", ours, target, at_most=True)
        others = [row.cpu_ms_16 for row in rows if row.kind == kind and row.name not in (REFDESK, "relay")]
        if ours and others:
            print_verdict(f"the best peer's CPU / ours, {kind}", min(others) / ours, 1, at_most=False)
    if memory:
        of_gateway = memory["ten servers"] - memory["engine"]
        print(", ".join(f"{name} {megabytes:.0f} MB" for name, megabytes in memory.items()))
        print_verdict("RSS with ten servers, without the engine's", of_gateway, 90, at_most=True, unit=" MB")
    config: dict[str, Any] = {"seconds": options.seconds, "rounds": options.rounds}
    cold, recovery = [asdict(cold) for cold in colds], dict(recoveries)
    print_json(
        "gateway",
        config,
        [asdict(row) for row in rows],
        cold=cold,
        recovery=recovery,
        memory=memory,
        skipped=dict(skipped),
    )


def _options() -> argparse.Namespace:
    names = [one.name for one in GATEWAYS]
    parts = ["calls", "cold", "recovery", "memory"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default 3)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each gateway (default 3)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="gateways to measure (default all)")
    parser.add_argument("--kinds", nargs="+", choices=["stdio", "http"], default=["stdio", "http"])
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts, help="what to measure (default all)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
