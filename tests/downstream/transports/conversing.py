"""A conversation over one transport, with all that is needed to see what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message, Peer, Transport, TransportListener
from refdesk.downstream.session import Session
from refdesk.downstream.transports.streamable import StreamableHttpTransport
from refdesk.errors import RefdeskError
from tests.downstream.servers.bad_http import BadHttp
from tests.waiting import PATIENCE_SECONDS, eventually

Opener = Callable[[str, McpServerConfig, TransportListener], AbstractAsyncContextManager[Transport]]


@dataclass
class RecordingListener:
    """Writes down what belongs to no call."""

    noted: list[str] = field(default_factory=list)
    losses: list[RefdeskError] = field(default_factory=list)
    is_told: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: asyncio.Event = field(default_factory=asyncio.Event)

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        self.noted.append(method)
        self.is_told.set()

    def on_open(self, session: Session) -> None: ...

    def on_lost(self, session: Session, error: RefdeskError) -> None:
        self.losses.append(error)
        self.is_lost.set()

    def on_closed(self, session: Session) -> None: ...


@dataclass
class Caller:
    """A callbacks that writes down what it hears and answers what it is asked."""

    told: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    key: object = "caller"

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        self.told.append(method)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(method)
        return {"action": "accept", "content": {"name": "Ada"}}


@dataclass
class Conversation:
    """One that is under way."""

    peer: Peer
    transport: Transport
    host: RecordingListener
    session: Session | None = None

    async def call(self, tool: str, callbacks: Caller | None = None, **arguments: Any) -> Message:
        """Call a tool, in the words of the session when there is one."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if callbacks is not None:
            params["_meta"] = {"progressToken": 1}
        ask = self.peer.request if self.session is None else self.session.request
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await ask("tools/call", params, callbacks=callbacks)

    async def says(self, tool: str, callbacks: Caller | None = None, **arguments: Any) -> str:
        """The text that a tool answers."""
        return str((await self.call(tool, callbacks, **arguments))["content"][0]["text"])

    def is_reading(self, answers: int = 1) -> bool:
        """Whether the bodies of so many answers over Streamable HTTP are being read."""
        assert isinstance(self.transport, StreamableHttpTransport)
        reading = [response.method for response in self.transport._reading]
        return reading.count("POST") >= answers

    async def is_alive(self) -> bool:
        """Whether a good request still has its answer."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return "protocolVersion" in await self.peer.request("initialize", {"protocolVersion": "2025-11-25"})


async def call_off(
    call: Coroutine[Any, Any, Message], server: BadHttp, is_answering: Callable[[], bool] = lambda: True
) -> None:
    """Cancel a call once the server has got it and, where that is to be waited for, has begun to answer."""
    before = len(server.list_posts("tools/call"))
    calling = asyncio.create_task(call)
    await server.until(lambda: len(server.list_posts("tools/call")) > before)
    await eventually(is_answering)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


@asynccontextmanager
async def conversing(
    open_it: Opener, url: str, *, greeted: bool = True, version: str | None = None, **settings: Any
) -> AsyncIterator[Conversation]:
    """Open the transport and, unless told otherwise, greet the server."""
    host, config = RecordingListener(), McpServerConfig.model_validate({"url": url, **settings})
    session = Session("bad", config, host, host.on_notification, open_it)
    session.is_open = True  # from the beginning, so that the host hears of every loss
    async with open_it("bad", config, session.peer) as transport:
        session.peer.transport = transport
        if greeted:
            await session.negotiate(transport, version)
        yield Conversation(session.peer, transport, host, session if greeted else None)
    await session.peer.close()
