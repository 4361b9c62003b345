"""How long one waits: for `refdesk --help`, and for `refdesk serve` to answer `/health`, beside what cannot be beaten.

Everything takes turns in one run, so that whatever else the machine does hits all alike.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from processes import START_SECONDS, ServerFailed, cpu_seconds, stop
from report import print_json, print_table, print_verdict

HERE = Path(__file__).resolve().parent
REFDESK = str(Path(sys.executable).with_name("refdesk"))
POLL_SECONDS = 0.005
HELP_TARGET_MS = 150.0
READY_TARGET_SECONDS = 2.0


@dataclass(frozen=True)
class Took:
    """What one start took."""

    cpu_ms: float
    wall_ms: float


@dataclass(frozen=True)
class Row:
    """The least and the median of all rounds; the least is what the work itself takes, the rest is the machine."""

    name: str
    what: str
    cpu_ms: float
    cpu_ms_median: float
    cpu_ratio: float
    """To the row that it is compared with: the bare interpreter, or the bare SDK server."""
    wall_ms: float
    wall_ms_median: float

    def cells(self) -> list[str]:
        """As they are printed."""
        numbers = (self.cpu_ms, self.cpu_ms_median, self.wall_ms, self.wall_ms_median)
        cpu, cpu_median, wall, wall_median = (f"{number:.0f}" for number in numbers)
        return [self.what, cpu, cpu_median, f"{self.cpu_ratio:.2f}", wall, wall_median]


COLUMNS = ("", "CPU ms, least", "median", "ratio", "wall ms, least", "median")


def main() -> int:
    """Measure and print."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="refdesk-bench-") as folder:
        starts = _starts(Path(folder))
        for start in (_refdesk_serve(Path(folder) / "kept"), _bare_sdk):
            start()  # the kept data is made, and compiled modules and pages are in memory for all alike
        took: dict[str, list[Took]] = {name: [] for name in starts}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for name, (_, _, start) in starts.items():
                took[name].append(start())
    rows = [_row(name, what, took[name], took[base]) for name, (what, base, _) in starts.items()]
    _tell(rows, options.rounds)
    return 0


def _starts(folder: Path) -> dict[str, tuple[str, str, Callable[[], Took]]]:
    """What is started: its name, what it is, what it is compared with, and how."""

    def fresh() -> Took:
        with tempfile.TemporaryDirectory(dir=folder) as data:
            return _refdesk_serve(Path(data) / "data")()

    return {
        "python": ("python -c pass", "python", lambda: _run(sys.executable, "-c", "pass")),
        "help": ("refdesk --help", "python", lambda: _run(REFDESK, "--help")),
        "sdk": ("bare uvicorn + MCP SDK, ready", "sdk", _bare_sdk),
        "serve": ("refdesk serve, ready", "sdk", _refdesk_serve(folder / "kept")),
        "serve_fresh": ("refdesk serve on a new folder, ready", "sdk", fresh),
    }


def _run(*command: str) -> Took:
    """Run to the end."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise ServerFailed(f"{' '.join(command)} ended with {process.returncode}")
    return Took((usage.ru_utime + usage.ru_stime) * 1000, wall * 1000)


def _refdesk_serve(data: Path) -> Callable[[], Took]:
    return lambda: _until_healthy([REFDESK, "serve", "--data", str(data), "--port"])


def _bare_sdk() -> Took:
    return _until_healthy([sys.executable, str(HERE / "servers" / "sdk_echo.py")])


def _until_healthy(command: Sequence[str]) -> Took:
    """Start a server and ask for `/health` until it says 200."""
    port = _free_port()
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not _is_healthy(port):
            if process.poll() is not None or time.perf_counter() - started > START_SECONDS:
                raise ServerFailed(f"{' '.join(command)} did not start")
            time.sleep(POLL_SECONDS)
        return Took(cpu_seconds(process.pid) * 1000, (time.perf_counter() - started) * 1000)
    finally:
        stop(process)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _row(name: str, what: str, took: Sequence[Took], base: Sequence[Took]) -> Row:
    cpu, wall = [one.cpu_ms for one in took], [one.wall_ms for one in took]
    return Row(
        name=name,
        what=what,
        cpu_ms=round(min(cpu), 1),
        cpu_ms_median=round(median(cpu), 1),
        cpu_ratio=round(min(cpu) / min(one.cpu_ms for one in base), 3),
        wall_ms=round(min(wall), 1),
        wall_ms_median=round(median(wall), 1),
    )


def _tell(rows: Sequence[Row], rounds: int) -> None:
    print_table(COLUMNS, [row.cells() for row in rows])
    print_json("startup", {"rounds": rounds, "poll_seconds": POLL_SECONDS}, [asdict(row) for row in rows])
    row = {row.name: row for row in rows}
    print_verdict("refdesk --help, CPU", row["help"].cpu_ms, HELP_TARGET_MS, at_most=True, unit=" ms")
    for name in ("serve", "serve_fresh"):
        seconds = row[name].wall_ms_median / 1000
        print_verdict(row[name].what, seconds, READY_TARGET_SECONDS, at_most=True, unit=" s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="starts of each (default 10)")
    parser.add_argument("--quick", action="store_true", help="two rounds, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds = 2
    if shutil.which(REFDESK) is None:
        parser.error(f"{REFDESK} is missing; run `uv sync`")
    return options


if __name__ == "__main__":
    sys.exit(main())
