"""Refdesk as the process that users start, and other people's programs beside it; every wait has an end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from platformdirs import user_cache_path

from tests.forked import ForkedProcess, start_refdesk
from tests.waiting import PATIENCE_SECONDS

REFDESK = [sys.executable, "-m", "refdesk"]

BY_WORDS = {"REFDESK__EMBEDDING__SOURCE": "none"}
"""For a desk that finds by words alone. With a new data folder, any other spends some fifteen seconds of processor time
on vectors of its manual, beside whatever a test looks at."""


def environment(home: Path, **more: str) -> dict[str, str]:
    """Only what a program needs, in a home of its own."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), **more}


def children() -> set[str]:
    """The processes that this one has started and that are not gone."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread may end meanwhile, and has no children then
            found |= set((task / "children").read_text().split())
    return found


@dataclass
class Server:
    """A `refdesk serve` that is up."""

    process: ForkedProcess | asyncio.subprocess.Process
    url: str = ""
    log: list[dict[str, Any]] = field(default_factory=list)

    async def calls_of(self, tool: str) -> float:
        """How many calls of a tool have succeeded, as the server's metrics count them."""
        async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
            metrics = (await http.get(f"{self.url}/metrics")).text
        counted = re.findall(rf'refdesk_calls_total{{.*outcome="ok",tool="{tool}".*}} ([0-9.]+)', metrics)
        return sum(map(float, counted))

    async def stop(self) -> None:
        """Tell it to stop; it has to, in time and in order."""
        self.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await self.process.wait() == 0

    def complaints(self) -> list[dict[str, Any]]:
        """What the log holds that an operator would look into."""
        return [line for line in self.log if line["level"] not in ("debug", "info")]

    def note(self, line: bytes) -> None:
        """Take in a line of the log."""
        entry = json.loads(line)
        self.log.append(entry)
        if entry["event"] == "ready":
            self.url = entry["endpoint"].removesuffix("/mcp")


@asynccontextmanager
async def started_server(folder: Path, *arguments: str, **more: str) -> AsyncIterator[Server]:
    """`refdesk serve` in a fork, on a free port, with more arguments and environment; killed at the end.

    It has no embedding model and shares its manual's index with the others, unless the environment says otherwise.
    """
    process = await start_refdesk(*_serve(folder, *arguments), cwd=folder, env=_shared_environment(folder, **more))
    async with _until_ready(process) as server:
        yield server


@asynccontextmanager
async def started_process(folder: Path, *arguments: str, **more: str) -> AsyncIterator[Server]:
    """The same as a new process, as users start it.

    A server with several workers needs one: Prometheus' client decides at its import whether it counts for several.
    """
    process = await asyncio.create_subprocess_exec(
        *REFDESK, *_serve(folder, *arguments),
        cwd=folder, env=_shared_environment(folder, **more), stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with _until_ready(process) as server:
        yield server


def _serve(folder: Path, *arguments: str) -> list[str]:
    return ["serve", "--port", "0", "--data", str(folder / "data"), *arguments]


def _shared_environment(folder: Path, **more: str) -> dict[str, str]:
    return environment(folder, **(BY_WORDS | {"XDG_CACHE_HOME": str(user_cache_path())} | more))


@asynccontextmanager
async def _until_ready(process: ForkedProcess | asyncio.subprocess.Process) -> AsyncIterator[Server]:
    """Wait until a server is ready; kill it at the end if it still runs."""
    assert process.stderr is not None
    server, ready = Server(process), asyncio.Event()
    # Read all the time: a server whose log nobody takes in would stop to write it.
    reading = asyncio.create_task(_read_log(process.stderr, server, ready))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ready.wait()
        assert server.url, "the server ended before it was ready"
        yield server
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await reading


@asynccontextmanager
async def running_server(folder: Path) -> AsyncIterator[Server]:
    """As above; at the end it has to stop in order, and to have had nothing to complain of."""
    async with started_server(folder) as server:
        yield server
        await server.stop()
    assert server.complaints() == [], server.complaints()


async def _read_log(stream: asyncio.StreamReader, server: Server, ready: asyncio.Event) -> None:
    """Keep every line, and say when the server is ready or has ended without being so."""
    try:
        async for line in stream:
            server.note(line)
            if server.url:
                ready.set()
    finally:
        ready.set()


@dataclass(frozen=True)
class Ended:
    """What a program left behind."""

    code: int
    out: str
    err: str


async def run(*command: str | Path, cwd: Path, env: Mapping[str, str], seconds: float = PATIENCE_SECONDS) -> Ended:
    """Run a program to its end, or kill it after so many seconds and raise `TimeoutError`."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=dict(env),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())
