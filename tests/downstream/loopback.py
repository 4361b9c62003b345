"""A server in this process, and the way to it: for what would take a real one minutes, or a lot of luck, to show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from anyio.lowlevel import checkpoint

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message, Transport, TransportListener
from refdesk.errors import RefdeskError, ServerAway, ServerGone

Answer = Callable[[Message], Awaitable[Message | None]]


class Loopback:
    """A server; `answers` are by method, everything else is echoed. Nothing is answered while it `hangs`."""

    def __init__(self, version: str = "2025-11-25", capabilities: Mapping[str, Any] | None = None) -> None:
        self.version = version
        self.capabilities = dict(capabilities or {"tools": {"listChanged": True}})
        self.answers: dict[str, Answer] = {}
        self.received: list[Message] = []
        self.headers: list[Mapping[str, str] | None] = []
        self.spoken: list[str] = []
        self.open_count = self.close_count = 0
        self.away: str | None = None
        self.hangs: set[str] = set()
        self.listeners: list[TransportListener] = []

    @property
    def methods(self) -> list[str]:
        """What was received, in order."""
        return [message.get("method", "(answer)") for message in self.received]

    def die(self, error: RefdeskError | None = None) -> None:
        """End the connections at once."""
        listeners, self.listeners = self.listeners, []
        for listener in listeners:
            listener.on_close(error or ServerGone("The server ended"))

    def say(self, message: Message, related: str | None = None) -> None:
        """Send a message to whoever is connected."""
        for listener in list(self.listeners):
            listener.on_message(message, related)

    @asynccontextmanager
    async def open(self, name: str, settings: McpServerConfig, listener: TransportListener) -> AsyncIterator[_Way]:
        """The way to it."""
        self.open_count += 1
        if self.away is not None:
            raise ServerAway(self.away)
        self.listeners.append(listener)
        try:
            yield _Way(self, listener)
        finally:
            self.close_count += 1
            if listener in self.listeners:
                self.listeners.remove(listener)
            listener.on_close(ServerGone("The connection was closed"))

    async def answer(self, message: Message, listener: TransportListener) -> None:
        """Have a request answered, by what is set for it."""
        method = message["method"]
        if method in self.hangs or "*" in self.hangs:
            return
        if method in self.answers:
            body = await self.answers[method](message)
        elif method == "initialize" and self.version >= "2026":
            body = {"error": {"code": -32022, "message": "Not spoken", "data": {"supported": [self.version]}}}
        elif method == "initialize":
            info = {"name": "loopback", "version": "1"}
            body = {"result": {"protocolVersion": self.version, "capabilities": self.capabilities, "serverInfo": info}}
        elif method == "server/discover" and self.version >= "2026":
            body = {
                "result": {
                    "supportedVersions": [self.version],
                    "capabilities": self.capabilities,
                    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "loopback", "version": "1"}},
                }
            }
        elif method == "server/discover":
            body = {"error": {"code": -32601, "message": "Unknown method"}}
        else:
            body = {"result": {"echo": message.get("params")}}
        if body is not None and listener in self.listeners:
            listener.on_message({"jsonrpc": "2.0", "id": message["id"], **body})


class _Way(Transport):
    def __init__(self, server: Loopback, listener: TransportListener) -> None:
        super().__init__("loopback", listener)
        self._server = server

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        if self._listener not in self._server.listeners:
            raise ServerGone("The connection is closed")
        self._server.received.append(message)
        self._server.headers.append(headers)
        await checkpoint()
        if "id" in message and "method" in message:
            await self._server.answer(message, self._listener)

    def set_protocol_version(self, version: str) -> None:
        self._server.spoken.append(version)


class Clock:
    """A time that passes only while somebody pauses; it is told what he waits for."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.pauses: list[float] = []
        self.stopped = False

    def now(self) -> float:
        return self.time

    async def pause(self, seconds: float) -> None:
        """Let that time pass at once, unless the clock is stopped."""
        await checkpoint()
        if self.stopped:
            await asyncio.Event().wait()
        self.pauses.append(seconds)
        self.time += seconds
