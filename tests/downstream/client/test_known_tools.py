"""The tools of a server, as long as they may be believed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from refdesk.downstream.client.mcp_client import ToolCache
from refdesk.errors import ServerAway, ServerRefused

pytestmark = pytest.mark.anyio


class Server:
    """Counts how often it is asked; `gate` holds its answers back."""

    def __init__(self) -> None:
        self.names = ["a"]
        self.asked = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def tools(self) -> list[dict[str, Any]]:
        self.asked += 1
        names = list(self.names)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [{"name": name} for name in names]


class Clock:
    """A time that is set."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def test_they_are_asked_for_again_when_their_time_is_over() -> None:
    server, clock = Server(), Clock()
    tools = ToolCache(server.tools, 300, clock)
    await tools.all()
    clock.seconds = 299.9
    await tools.all()
    assert server.asked == 1
    clock.seconds = 300.0
    await asyncio.gather(*(tools.all() for _ in range(5)))
    assert server.asked == 2


async def test_a_change_during_the_answer_has_them_asked_for_once_more() -> None:
    server = Server()
    tools = ToolCache(server.tools, 300, Clock())
    server.gate.clear()
    asking = asyncio.create_task(tools.all())
    await wait_all_tasks_blocked()
    server.names.append("b")
    tools.invalidate()
    server.gate.set()
    assert set(await asking) == {"a"}
    assert set(await tools.all()) == {"a", "b"}


async def test_one_that_is_not_known_has_the_server_asked_once_more() -> None:
    server = Server()
    tools = ToolCache(server.tools, 300, Clock())
    assert await tools.find("b") is None
    assert server.asked == 1, "it has only just been asked"
    assert await tools.find("b") is None
    assert server.asked == 2
    server.names.append("b")
    assert await tools.find("b") == {"name": "b"}
    assert await tools.find("a") == {"name": "a"}
    assert server.asked == 3


async def test_whoever_gives_up_waiting_does_not_take_the_answer_from_others() -> None:
    server = Server()
    tools = ToolCache(server.tools, 300, Clock())
    server.gate.clear()
    first, second = asyncio.create_task(tools.all()), asyncio.create_task(tools.all())
    await wait_all_tasks_blocked()
    first.cancel()
    server.gate.set()
    assert set(await second) == {"a"}


async def test_old_ones_stay_while_the_server_cannot_be_asked() -> None:
    server, clock = Server(), Clock()
    tools = ToolCache(server.tools, 300, clock)
    await tools.all()
    clock.seconds = 1000.0
    server.error = ServerAway("away")
    assert set(await tools.all()) == {"a"}
    server.error = ServerRefused("it", -32603, "no")
    with pytest.raises(ServerRefused):
        await tools.all()
    server.error = ServerAway("away")
    tools.clear()
    with pytest.raises(ServerAway):
        await tools.all()
