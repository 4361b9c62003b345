"""What every way to a server has to keep to is tried with these: a conversation over any of them, and what is left."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message, Peer, Transport
from refdesk.downstream.transports import open_transport
from refdesk.errors import RefdeskError
from tests.processes import children
from tests.waiting import PATIENCE_SECONDS, eventually

VERSION = "2025-11-25"
CAPABILITIES = {"sampling": {}, "elicitation": {"form": {}, "url": {}}, "roots": {"listChanged": False}}


class Owner:
    """Owns the connection; writes down what it is told."""

    def __init__(self) -> None:
        self.noticed_methods: list[str] = []
        self.losses: list[RefdeskError] = []
        self._changed = asyncio.Event()

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to no call."""
        self.noticed_methods.append(method)
        self._changed.set()

    def on_disconnect(self, error: RefdeskError) -> None:
        """The connection is over."""
        self.losses.append(error)
        self._changed.set()

    async def has_noticed(self, method: str) -> None:
        """Wait for a notification."""
        while method not in self.noticed_methods:
            await self._change()

    async def has_lost(self) -> None:
        """Wait for the end of the connection."""
        while not self.losses:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._changed.wait()


@dataclass
class Caller:
    """Made a call: writes down what it is told, and answers what it is asked."""

    answers: dict[str, Mapping[str, Any] | RefdeskError | None] = field(default_factory=dict)
    """By method; None never answers."""
    key: object = "caller"
    told: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    spoken_to: asyncio.Event = field(default_factory=asyncio.Event)
    hushed: asyncio.Event = field(default_factory=asyncio.Event)

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Progress, or a log message."""
        self.told.append((method, params))
        self.spoken_to.set()

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """A question of the server."""
        self.asked.append((method, params))
        self.spoken_to.set()
        answer = self.answers[method]
        if isinstance(answer, RefdeskError):
            raise answer
        if answer is None:
            try:
                await asyncio.Event().wait()
            finally:
                self.hushed.set()
        assert answer is not None
        return answer

    async def is_spoken_to(self) -> None:
        """Wait to be told or asked anything."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.spoken_to.wait()

    async def is_hushed(self) -> None:
        """Wait for a question to be taken back."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self.hushed.wait()


@dataclass(frozen=True)
class Conversation:
    """A server that has been greeted."""

    peer: Peer
    owner: Owner
    initialize_result: Message

    async def call(self, tool: str, caller: Caller | None = None, **arguments: Any) -> Message:
        """The result of a tool; who listens hears of its progress."""
        params: Message = {"name": tool, "arguments": arguments}
        if caller is not None:
            params["_meta"] = {"progressToken": "mine"}
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.peer.request("tools/call", params, callbacks=caller)

    async def begin(self, count: int) -> list[asyncio.Task[Message]]:
        """So many calls that never end, and that the server is known to be working on."""
        callers = [Caller() for _ in range(count)]
        calls = [asyncio.create_task(self.call("cancel_me", caller)) for caller in callers]
        for caller in callers:
            await caller.is_spoken_to()
        return calls

    async def text_of(self, tool: str, **arguments: Any) -> str:
        """The text that a tool results in."""
        text = (await self.call(tool, **arguments))["content"][0]["text"]
        assert isinstance(text, str)
        return text


@asynccontextmanager
async def conversation(settings: McpServerConfig, owner: Owner | None = None) -> AsyncIterator[Conversation]:
    """Connect and greet, as the revisions before 2026-07-28 do."""
    owner = owner or Owner()
    peer = Peer("talkative", owner)
    try:
        async with open_transport("talkative", settings, peer) as transport:
            peer.transport = transport
            yield Conversation(peer, owner, await _initialize(peer, transport))
    finally:
        await peer.close()


async def _initialize(peer: Peer, transport: Transport) -> Message:
    info = {"name": "contract", "version": "1"}
    params = {"protocolVersion": VERSION, "capabilities": CAPABILITIES, "clientInfo": info}
    async with asyncio.timeout(PATIENCE_SECONDS):
        initialize_result = await peer.request("initialize", params)
        transport.set_protocol_version(initialize_result["protocolVersion"])
        await peer.notify("notifications/initialized")
    return initialize_result


class Box:
    """An inbox on its own: keeps what comes."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.garbage: list[str] = []
        self.losses: list[RefdeskError] = []
        self._news = asyncio.Event()

    def on_message(self, message: Message, related: str | None = None) -> None:
        """A message; of a connection that has no streams for single requests."""
        assert related is None
        self.messages.append(message)
        self._news.set()

    def on_garbage(self, what: str) -> None:
        """What is no message."""
        self.garbage.append(what)
        self._news.set()

    def on_close(self, error: RefdeskError) -> None:
        """The end."""
        self.losses.append(error)
        self._news.set()

    async def holds(self, *, messages: int = 0, losses: int = 0) -> None:
        """Wait for so many of each."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.messages) < messages or len(self.losses) < losses:
                self._news.clear()
                await self._news.wait()


@dataclass(frozen=True)
class Belongings:
    """What this process has: open files, running tasks, children."""

    files: dict[str, str]
    tasks: frozenset[asyncio.Task[Any]]
    children: frozenset[str]

    @classmethod
    def now(cls) -> Belongings:
        """As of this moment."""
        return cls(_open_files(), frozenset(asyncio.all_tasks()), frozenset(children()))

    async def are_all(self) -> None:
        """Wait until there is nothing that was not there before; what is left is named if that never comes."""
        left: list[str] = []

        def is_nothing_left() -> bool:
            left[:] = Belongings.now().beside(self)
            return not left

        try:
            await eventually(is_nothing_left)
        except TimeoutError:
            raise AssertionError(f"left behind: {left}") from None

    def beside(self, before: Belongings) -> list[str]:
        """What is here and was not before."""
        files = [f"{number}: {target}" for number, target in self.files.items() - before.files.items()]
        tasks = [repr(task) for task in self.tasks - before.tasks]
        return [*files, *tasks, *(self.children - before.children)]


def _open_files() -> dict[str, str]:
    """By number; one that was closed and is in use again is seen by what it is open on."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = os.readlink(entry)
        except FileNotFoundError:  # the one that lists them
            continue
    return found
