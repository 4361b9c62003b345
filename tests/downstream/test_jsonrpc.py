"""The conversation with a server that asks, tells and reads as it likes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from refdesk.downstream.jsonrpc import MAX_UNSENT, Message, Peer, Transport
from refdesk.errors import RefdeskError
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


class Nobody:
    """A host that does not care."""

    def on_notification(self, method: str, params: Any) -> None: ...

    def on_disconnect(self, error: RefdeskError) -> None: ...


class Pipe(Transport):
    """A transport to a server that reads when it is told to."""

    def __init__(self, peer: Peer) -> None:
        super().__init__("it", peer)
        self.is_read = asyncio.Event()
        self.sent: list[Message] = []
        self._moved = asyncio.Event()

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        await self.is_read.wait()
        self.sent.append(message)
        self._moved.set()

    async def has_sent(self, count: int) -> None:
        """Wait for so many messages."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.sent) < count:
                self._moved.clear()
                await self._moved.wait()


class Unwell:
    """A caller that can take nothing of what it is given."""

    key = "one"

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        raise TypeError("Recursion limit reached")

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise TypeError("Recursion limit reached")


async def test_a_server_that_asks_on_and_reads_nothing_is_owed_no_more_than_so_many_answers() -> None:
    peer = Peer("it", Nobody())
    pipe = Pipe(peer)
    peer.transport = pipe
    for number in range(3 * MAX_UNSENT):
        peer.on_message({"jsonrpc": "2.0", "id": number, "method": ("ping", "roots/list", "what")[number % 3]})
    assert len(peer._tasks) == MAX_UNSENT
    assert peer.garbage == 2 * MAX_UNSENT
    pipe.is_read.set()
    await pipe.has_sent(MAX_UNSENT)
    peer.on_message({"jsonrpc": "2.0", "id": "late", "method": "ping"})
    await pipe.has_sent(MAX_UNSENT + 1)
    assert pipe.sent[-1] == {"jsonrpc": "2.0", "id": "late", "result": {}}
    await peer.close()


async def test_what_cannot_be_told_or_asked_costs_the_call_nothing_and_the_server_is_answered() -> None:
    peer = Peer("it", Nobody())
    pipe = Pipe(peer)
    pipe.is_read.set()
    peer.transport = pipe
    asking = asyncio.create_task(peer.request("tools/call", {"name": "x"}, callbacks=Unwell()))
    await pipe.has_sent(1)
    peer.on_message({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "deep"}})
    peer.on_message({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": {}})
    await pipe.has_sent(2)
    assert pipe.sent[1]["error"]["message"] == "This elicitation/create cannot be forwarded"
    peer.on_message({"jsonrpc": "2.0", "id": pipe.sent[0]["id"], "result": {"content": []}})
    assert await asking == {"content": []}
    assert peer.garbage == 2
    await peer.close()


async def test_what_is_asked_while_nobody_calls_is_about_no_call() -> None:
    peer = Peer("it", Nobody())
    pipe = Pipe(peer)
    pipe.is_read.set()
    peer.transport = pipe
    listing = asyncio.create_task(peer.request("tools/list"))
    await pipe.has_sent(1)
    peer.on_message({"jsonrpc": "2.0", "id": "q", "method": "roots/list"})
    await pipe.has_sent(2)
    assert pipe.sent[1] == {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    assert not _asks_anyone(peer)
    calling = asyncio.create_task(peer.request("tools/call", {"name": "x"}, callbacks=Unwell()))
    await pipe.has_sent(3)
    peer.on_message({"jsonrpc": "2.0", "id": "r", "method": "roots/list"})
    assert _asks_anyone(peer)
    for task in (listing, calling):
        task.cancel()
    await asyncio.wait((listing, calling))
    await peer.close()


def _asks_anyone(peer: Peer) -> bool:
    return peer.ambiguous_requests > 0
