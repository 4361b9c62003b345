"""The desk as a process of its own: `refdesk serve`, or with a tool that counts what the process has."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from tests.gateway.desks import ROOT, Gateway, Settings
from tests.processes import Server, started_server
from tests.tools.knowing import open_indexed_desk
from tests.waiting import PATIENCE_SECONDS, eventually


@dataclass
class Served(Gateway):
    """A desk in another process."""

    pid: int = 0
    server: Server | None = None

    @property
    def log(self) -> list[dict[str, object]]:
        """What it has said so far."""
        return self.server.log if self.server is not None else []

    async def stop(self) -> None:
        """Tell it to stop; it has to, in time and in order."""
        assert self.server is not None
        await self.server.stop()

    def forget_peak(self) -> None:
        """Count the most memory that it has from here on."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    async def has_read_its_manual(self) -> None:
        """Wait until it does nothing but what it is asked to. It has no model, and so leaves embedding to others."""

        async def is_so() -> bool:
            metrics = (await self.http.get("/metrics")).text
            waiting = dict(re.findall(r'refdesk_queue_documents{stage="(\w+)"} ([0-9.]+)', metrics))
            return bool(waiting) and float(waiting["pending"]) == float(waiting["converting"]) == 0

        await eventually(is_so)

    def memory(self, which: str = "VmRSS") -> int:
        """`VmRSS` now, or `VmHWM` at most, in bytes."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(which))


@asynccontextmanager
async def serve_desk(folder: Path, *ready: str, **servers: Settings) -> AsyncIterator[Served]:
    """`refdesk serve` with these servers, of which those named are there; all, when none is named."""
    settings = {
        "server": {"shutdown_grace_seconds": 1},
        "logging": {"level": "debug"},
        "embedding": {"source": "none"},
        "mcpServers": servers,
    }
    (folder / "refdesk.yaml").write_text(json.dumps(settings))
    async with started_server(folder) as server, client_of(server.url) as http:
        desk = Served(http, pid=server.process.pid, server=server)
        await desk.offers(*(ready or servers))
        yield desk


@asynccontextmanager
async def serve_counting_desk(folder: Path, **servers: Settings) -> AsyncIterator[Served]:
    """The same, with the tool `count`. It has the manual read already, and no model to embed it with: all that it does
    is what it is asked to."""
    async with open_indexed_desk(folder / "data"):
        pass
    config = folder / "refdesk.yaml"
    settings = {"logging": {"level": "error"}, "embedding": {"source": "none"}, "mcpServers": servers}
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "tests.gateway.counted", str(config), str(folder / "data")]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            url = (await process.stdout.readline()).decode().strip()
        async with client_of(url) as http:
            desk = Served(http, pid=process.pid)
            await desk.offers(*servers)
            yield desk
    finally:
        process.kill()
        await process.communicate()


def client_of(url: str) -> httpx2.AsyncClient:
    """Who asks it."""
    return httpx2.AsyncClient(base_url=url, verify=False, timeout=PATIENCE_SECONDS)
