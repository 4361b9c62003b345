"""What conversions cost everybody else: how long a ping takes while the server converts PDFs without a pause.

Pings come at a steady pace on one connection, in three kinds of phases that take turns: nothing else happens; another
process converts the same files, and asks the server as often for one that it has converted already; the server converts
them. The second is what a machine with this many cores gives at best; the ratio of the third to it is what conversion
costs the server's loop.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from processes import running
from quality.corpus import build, samples
from quality.recipes import RECIPES
from report import print_json, print_table, print_verdict

HERE = Path(__file__).resolve().parent
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
PACE_SECONDS = 0.004
PHASES = ("idle", "elsewhere", "here")
ASK = """
import itertools, json, os, sys, urllib.request
from pathlib import Path
def ask(path):
    asked = json.dumps({"file_path": str(path)}).encode()
    url = f"http://127.0.0.1:{sys.argv[1]}/api/tools/convert_pdf"
    request = urllib.request.Request(url, asked, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        converted = json.load(answer)
    if converted.get("isError"):
        raise SystemExit(converted["content"][0]["text"])
    print("done", flush=True)
files = [Path(name) for name in sys.argv[2:]]
"""
ELSEWHERE = f"""
{ASK}
from refdesk.documents.convert import convert
from refdesk.documents.jobs import chunk_and_pack
os.nice(10)
for path in itertools.cycle(files):
    chunk_and_pack(convert(path.read_bytes(), path.name))
    ask(files[0])
"""
"""A worker's work in another process, just as nice; the server is asked as often, but has the answer."""
IN_THE_SERVER = f"""
{ASK}
for number, path in enumerate(itertools.cycle(files)):
    # A few bytes behind the end change nothing but the hash, so that no conversion is found done.
    with path.open("ab") as file:
        file.write(b"\\n%%%d" % number)
    ask(path)
"""
"""Has the server convert one file after the other."""


class Connection:
    """One kept-alive connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ping(self) -> None:
        """Send a ping and read the answer."""
        head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self._writer.write(head % len(PING) + PING)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        await self._reader.readexactly(int(answer.lower().partition(b"content-length:")[2].split()[0]))


async def pings(port: int, seconds: float) -> list[float]:
    """Milliseconds of each ping, sent at a steady pace."""
    connection = await Connection.open(port)
    taken = []
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        await connection.ping()
        taken.append((time.perf_counter() - started) * 1000)
        await asyncio.sleep(max(0.0, PACE_SECONDS - (time.perf_counter() - started)))
    return taken


@asynccontextmanager
async def converting(phase: str, port: int, files: Sequence[Path]) -> AsyncIterator[asyncio.StreamReader | None]:
    """Conversions without a pause until the block ends, each told by a line."""
    if phase == "idle":
        yield None
        return
    script = IN_THE_SERVER if phase == "here" else ELSEWHERE
    command = [sys.executable, "-c", script, str(port), *map(str, files)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            if not await process.stdout.readline():
                raise RuntimeError("the conversions did not start")
        yield process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so many stay below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(port: int, files: Sequence[Path], seconds: float, rounds: int) -> dict[str, list[list[float]]]:
    """All pings by phase and round."""
    taken: dict[str, list[list[float]]] = {phase: [] for phase in PHASES}
    for _ in range(rounds):
        for phase in PHASES:
            async with converting(phase, port, files) as lines:
                taken[phase].append(await pings(port, seconds))
                if lines is not None and not await lines.readline():
                    raise RuntimeError(f"{phase}: the conversions stopped")
    return taken


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each phase in each round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    build(RECIPES["latex"]())
    files = [sample.document for sample in samples("pdf", "dev") if sample.name.startswith("latex")][:12]
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(shutil.copy(path, folder)) for path in files]
        command = [sys.executable, str(HERE / "servers" / "refdesk_echo.py"), str(Path(folder, "data"))]
        with running(command, Path(folder, "log"), None) as server:
            taken = asyncio.run(measure(server.port, files, options.seconds, options.rounds))
    shown = [_shown(phase, rounds) for phase, rounds in taken.items()]
    print_table(
        ["phase", "p50 ms", "p99 ms"], [[row["phase"], f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"] for row in shown]
    )
    ratio = median(
        percentile(here, 0.99) / percentile(elsewhere, 0.99)
        for here, elsewhere in zip(taken["here"], taken["elsewhere"], strict=True)
    )
    print_verdict("ping p99, converting here to converting elsewhere", ratio, 1.5, at_most=True)
    print_json("convert_ping", vars(options), shown, p99_ratio=ratio)
    return 0


def _shown(phase: str, rounds: Sequence[Sequence[float]]) -> dict[str, Any]:
    """A phase's medians over all rounds."""
    return {
        "phase": phase,
        "p50_ms": median(map(median, rounds)),
        "p99_ms": median(percentile(taken, 0.99) for taken in rounds),
    }


if __name__ == "__main__":
    raise SystemExit(main())
