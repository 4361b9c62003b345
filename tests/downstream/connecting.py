"""Connections under test: run, watched, and gone at the end without a trace."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.jsonrpc import Message
from tests.waiting import PATIENCE_SECONDS

BAD_STDIO = Path(__file__).parent / "servers" / "bad_stdio.py"

LOOPED = McpServerConfig(command="loopback")


def bad_stdio(*modes: str, **more: Any) -> McpServerConfig:
    """What is set for the server that does everything wrong."""
    return McpServerConfig(command=sys.executable, args=("-I", "-S", str(BAD_STDIO), ",".join(modes)), **more)


class Watcher:
    """Hears what belongs to no call, and sees every status."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.notifications: list[tuple[str, Mapping[str, Any]]] = []
        self._moved = asyncio.Event()

    def on_notification(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        self.notifications.append((method, params))
        self._moved.set()

    def on_status(self, connection: Connection) -> None:
        self.states.append(connection.status.state)
        self._moved.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something that is true after a status or a notification."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                self._moved.clear()
                await self._moved.wait()


@asynccontextmanager
async def run_connection(settings: McpServerConfig = LOOPED, **more: Any) -> AsyncIterator[tuple[Connection, Watcher]]:
    """A connection that runs; at the end no task of it is left."""
    before = asyncio.all_tasks()
    watcher = Watcher()
    connection = Connection(
        "it", settings, on_notification=watcher.on_notification, on_status=watcher.on_status, **more
    )
    running = asyncio.create_task(connection.run())
    try:
        yield connection, watcher
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    left = asyncio.all_tasks() - before
    if left:
        await asyncio.wait(left, timeout=PATIENCE_SECONDS)
    assert not asyncio.all_tasks() - before
    assert connection.status.state == "Stopped"


def change_settings(connection: Connection, **changed: Any) -> None:
    """Change settings that need no new connection."""
    connection.settings = connection.settings.model_copy(update=changed)


async def call(connection: Connection, tool: str, **arguments: Any) -> str:
    """The text that a tool gives."""
    result: Message = await connection.request("tools/call", {"name": tool, "arguments": arguments})
    return str(result["content"][0]["text"])


def is_alive(pid: int) -> bool:
    """Whether there is such a process, a dead one that nobody has looked after included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
