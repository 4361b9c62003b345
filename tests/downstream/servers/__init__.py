"""Servers to be connected to, as processes of their own: one that can everything, others that do everything wrong."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from refdesk.config.server_model import McpServerConfig

# This package is imported by the servers themselves, whose start must not wait for what only the tests need.

ROOT = Path(__file__).parents[3]
TALKATIVE = ("-m", "tests.downstream.servers.talkative")
OFFICIAL = ("-m", "tests.downstream.servers.official")

Kind = Literal["stdio", "http", "sse", "websocket"]
Era = Literal["both", "legacy", "modern"]

KINDS: tuple[Kind, ...] = ("stdio", "http", "sse", "websocket")


@dataclass(frozen=True)
class Running:
    """A server with its network doors open; the official one has but one, `http`."""

    process: asyncio.subprocess.Process
    port: int

    def url(self, kind: Kind) -> str:
        """Where one of its doors is."""
        scheme, path = {"http": ("http", "/mcp"), "sse": ("http", "/sse"), "websocket": ("ws", "/ws")}[kind]
        return f"{scheme}://127.0.0.1:{self.port}{path}"

    def settings(self, kind: Kind, **more: Any) -> McpServerConfig:
        """What is set for a client of that door."""
        return _settings(type=kind, url=self.url(kind), **more)


@asynccontextmanager
async def running_talkative(*, port: int = 0, era: Era = "both") -> AsyncIterator[Running]:
    """Its process, on a free port unless told; killed at the end."""
    async with _run_server(*TALKATIVE, "http", str(port), era) as running:
        yield running


@asynccontextmanager
async def talkative(kind: Kind = "stdio", *, era: Era = "both", **more: Any) -> AsyncIterator[McpServerConfig]:
    """What is set for a client of the talkative server, which is there meanwhile; `more` are settings."""
    if kind == "stdio":
        yield _settings(command=sys.executable, args=(*TALKATIVE, "stdio", "0", era), cwd=ROOT, **more)
        return
    async with running_talkative(era=era) as running:
        yield running.settings(kind, **more)


@asynccontextmanager
async def official(kind: Literal["stdio", "http"]) -> AsyncIterator[McpServerConfig]:
    """The same for a small server that is made with the official SDK."""
    if kind == "stdio":
        yield _settings(command=sys.executable, args=(*OFFICIAL, "stdio"), cwd=ROOT)
        return
    async with _run_server(*OFFICIAL, "http") as running:
        yield running.settings(kind)


@asynccontextmanager
async def _run_server(*arguments: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            line = await process.stdout.readline()
        assert line, "the server ended before its port was open"
        yield Running(process, int(line))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def _settings(**settings: Any) -> McpServerConfig:
    from refdesk.config.server_model import McpServerConfig

    return McpServerConfig(**settings)
