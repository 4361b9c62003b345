"""What servers behind the desk get to know of its clients: subscriptions, log levels; and what they tell on arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from refdesk.app import Desk, open_desk
from refdesk.calls import Caller, LogLevel
from refdesk.config.models import Config
from refdesk.errors import UnknownResource
from refdesk.inbound.http_server import HttpServer, bind, open_http, url_of
from refdesk.inbound.mcp.dispatch import INSTRUCTIONS, MAX_INSTRUCTIONS
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

URI = "notes://today"


class DeskWithMore:
    """A desk with something behind it, which writes down what it is told."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.gateway = self
        self.heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self.words = "Use notes for notes."
        self.arrived: list[Caller] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)

    async def subscribe(self, uri: str, caller: Caller) -> None:
        if uri != URI:
            raise UnknownResource("There is no such resource.", uri)
        self.heard.put_nowait(("subscribe", caller.user))
        await self.is_open.wait()

    def unsubscribe(self, uri: str, caller: Caller) -> None:
        self.heard.put_nowait(("unsubscribe", caller.user))

    def set_level(self, level: LogLevel) -> None:
        self.heard.put_nowait(("level", level))

    def instructions(self, caller: Caller) -> str:
        self.arrived.append(caller)
        return self.words

    async def hears(self, *said: tuple[str, str]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert [await self.heard.get() for _ in said] == list(said)
        assert self.heard.empty()


SUBSCRIBED, UNSUBSCRIBED = ("subscribe", "anonymous"), ("unsubscribe", "anonymous")


@pytest.fixture
async def server_and_desk(settings: Callable[..., Config]) -> AsyncIterator[tuple[str, DeskWithMore]]:
    async with serving(settings()) as server_and_desk:
        yield server_and_desk


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[tuple[str, DeskWithMore]]:
    listener = bind(config.server)
    async with open_desk(config) as desk:
        more: Any = DeskWithMore(desk)
        async with open_http(more, config, listener.getsockname()[1]) as app:
            ready = asyncio.Event()
            server = HttpServer(app, config.server, ready.set)
            running = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                await ready.wait()
                yield f"{url_of(listener)}/mcp", more
            finally:
                server.should_exit = True
                await running


async def subscribe(client: Client, uri: str = URI) -> None:
    request = types.SubscribeRequest(params=types.SubscribeRequestParams(uri=uri))
    await client.session.send_request(request, types.EmptyResult)


async def unsubscribe(client: Client) -> None:
    request = types.UnsubscribeRequest(params=types.UnsubscribeRequestParams(uri=URI))
    await client.session.send_request(request, types.EmptyResult)


async def test_subscriptions_are_told_once_and_given_up_once(server_and_desk: tuple[str, DeskWithMore]) -> None:
    url, desk = server_and_desk
    async with Client(url, mode="legacy") as client:
        for _ in range(2):
            await subscribe(client)
        await desk.hears(SUBSCRIBED)
        for _ in range(2):
            await unsubscribe(client)
        await desk.hears(UNSUBSCRIBED)


async def test_a_client_that_leaves_gives_up_its_subscriptions(server_and_desk: tuple[str, DeskWithMore]) -> None:
    url, desk = server_and_desk
    async with Client(url, mode="legacy") as client:
        await subscribe(client)
    await desk.hears(SUBSCRIBED, UNSUBSCRIBED)


async def test_a_client_that_thinks_better_of_it_meanwhile_is_not_subscribed(
    server_and_desk: tuple[str, DeskWithMore],
) -> None:
    url, desk = server_and_desk
    desk.is_open.clear()
    async with Client(url, mode="legacy") as client:
        subscribing = asyncio.create_task(subscribe(client))
        await desk.hears(SUBSCRIBED)
        await unsubscribe(client)
        desk.is_open.set()
        await subscribing
        await desk.hears(UNSUBSCRIBED)
    assert desk.heard.empty()


async def test_a_subscription_that_is_refused_is_none(server_and_desk: tuple[str, DeskWithMore]) -> None:
    url, desk = server_and_desk
    async with Client(url, mode="legacy") as client:
        for _ in range(2):
            with pytest.raises(MCPError, match="no such resource"):
                await subscribe(client, "notes://never")
    assert desk.heard.empty()


async def test_who_listens_in_the_newest_revision_subscribes_as_long_as_it_does(
    server_and_desk: tuple[str, DeskWithMore],
) -> None:
    url, desk = server_and_desk
    async with Client(url, mode="2026-07-28") as client:
        async with client.listen(resource_subscriptions=[URI, "notes://never"]):
            await desk.hears(SUBSCRIBED)
        await desk.hears(UNSUBSCRIBED)


async def test_a_level_that_a_client_sets_is_told(server_and_desk: tuple[str, DeskWithMore]) -> None:
    url, desk = server_and_desk
    async with Client(url, mode="legacy") as client:
        level = types.SetLevelRequest(params=types.SetLevelRequestParams(level="error"))
        await client.session.send_request(level, types.EmptyResult)
    await desk.hears(("level", "error"))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_what_the_servers_say_of_themselves_follows_our_own_words(
    server_and_desk: tuple[str, DeskWithMore], mode: Any
) -> None:
    url, desk = server_and_desk
    async with Client(url, mode=mode) as client:
        assert client.instructions == f"{INSTRUCTIONS}\n\nUse notes for notes."
    desk.words = "x" * 10 * MAX_INSTRUCTIONS
    async with Client(url, mode=mode) as client:
        assert len(client.instructions or "") == len(INSTRUCTIONS) + 2 + MAX_INSTRUCTIONS
    desk.words = ""
    async with Client(url, mode=mode) as client:
        assert client.instructions == INSTRUCTIONS
    assert {caller.user for caller in desk.arrived} == {"anonymous"}
