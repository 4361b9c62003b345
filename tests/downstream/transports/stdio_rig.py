"""A conversation with the bad server over its standard input and output, and what is left when it is over."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message, Peer
from refdesk.downstream.transports.process import EndTimeouts
from refdesk.downstream.transports.stdio import StdioTransport
from refdesk.errors import RefdeskError
from tests.waiting import PATIENCE_SECONDS, eventually

BAD_SERVER = Path(__file__).parent.parent / "servers" / "bad_stdio.py"

PATIENT = EndTimeouts(input_end=PATIENCE_SECONDS, term=PATIENCE_SECONDS, kill=PATIENCE_SECONDS)
"""For servers that end by themselves or by SIGTERM, on however busy a machine."""

BRISK = EndTimeouts(input_end=0.1, term=0.1, kill=PATIENCE_SECONDS)
"""For servers that only SIGKILL ends."""


@dataclass
class Owner:
    """Owns the connection, and writes down what it is told."""

    has_noticed: asyncio.Event = field(default_factory=asyncio.Event)
    noticed_methods: list[str] = field(default_factory=list)
    losses: list[RefdeskError] = field(default_factory=list)
    is_lost: asyncio.Event = field(default_factory=asyncio.Event)

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to no call."""
        self.noticed_methods.append(method)
        self.has_noticed.set()

    def on_disconnect(self, error: RefdeskError) -> None:
        """The connection is over."""
        self.losses.append(error)
        self.is_lost.set()


@dataclass
class Talk:
    """A greeted server."""

    peer: Peer
    transport: StdioTransport
    owner: Owner
    stderr_seen: list[str]

    async def call(self, tool: str, **arguments: Any) -> str:
        """What a tool answers, as text."""
        result = await self.result(tool, **arguments)
        return str(result["content"][0]["text"])

    async def result(self, tool: str, **arguments: Any) -> Message:
        """The whole result of a call."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.peer.request("tools/call", {"name": tool, "arguments": arguments})

    async def loss(self) -> RefdeskError:
        """Why the connection is over, once it is."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.owner.is_lost.wait()
        return self.owner.losses[0]


def bad(modes: str = "", **settings: Any) -> McpServerConfig:
    """The settings of a bad server."""
    return McpServerConfig(command=sys.executable, args=("-I", "-S", str(BAD_SERVER), modes), **settings)


@asynccontextmanager
async def talk(
    settings: McpServerConfig,
    *,
    initialize: bool = True,
    end_timeouts: EndTimeouts = PATIENT,
    exit_grace_seconds: float = PATIENCE_SECONDS,
) -> AsyncIterator[Talk]:
    """A connection to a server, greeted; whoever leaves this has nothing left of it."""
    owner, stderr_seen = Owner(), list[str]()
    peer = Peer("bad", owner)
    async with StdioTransport(
        "bad",
        settings,
        peer,
        on_stderr_line=stderr_seen.append,
        end_timeouts=end_timeouts,
        exit_grace_seconds=exit_grace_seconds,
    ) as transport:
        peer.transport = transport
        try:
            if initialize:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await peer.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
            yield Talk(peer, transport, owner, stderr_seen)
        finally:
            await peer.close()


def is_running(pid: int) -> bool:
    """Whether there is such a process, one that has ended and waits to be taken away not counted."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def wait_gone(*pids: int) -> None:
    """Wait until none of these processes is running."""
    await eventually(lambda: not any(map(is_running, pids)))


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))
