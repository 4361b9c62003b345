"""Connections over HTTP: sessions that are forgotten, credentials that are refused, servers that go and come back."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from refdesk.config.server_model import McpServerConfig
from refdesk.errors import RefdeskError, ServerAway, ServerRefused
from tests.downstream.connecting import call, run_connection
from tests.downstream.loopback import Clock
from tests.downstream.servers import KINDS, Era, Kind, official, running_talkative, talkative
from tests.downstream.servers.bad_http import BadHttp, bad_http

pytestmark = pytest.mark.anyio


def settings(server: BadHttp, path: str = "mcp", **more: Any) -> McpServerConfig:
    return McpServerConfig(type="http", url=server.url(path), **more)


async def test_a_session_that_the_server_has_forgotten_is_begun_anew_and_the_call_made_again() -> None:
    async with bad_http() as server, run_connection(settings(server)) as (connection, watcher):
        await call(connection, "echo", text="warm")
        assert await connection.request("tools/call", {"name": "e404session", "arguments": {}})
        assert len(server.list_posts("initialize")) == 2
        assert watcher.states == ["Starting", "Running", "Starting", "Running"]


async def test_a_credential_that_is_refused_once_is_tried_in_a_new_session() -> None:
    async with bad_http() as server, run_connection(settings(server)) as (connection, _):
        await call(connection, "echo", text="warm")
        assert await connection.request("tools/call", {"name": "e401once", "arguments": {}})
        assert len(server.list_posts("initialize")) == 2


async def test_the_credential_of_one_caller_that_is_refused_costs_the_others_nothing() -> None:
    async with bad_http() as server, run_connection(settings(server, forward_token=True)) as (connection, _):
        await call(connection, "echo", text="warm")
        for _ in range(10):
            with pytest.raises(ServerRefused, match="of this caller \\(401\\)"):
                await connection.request("tools/call", {"name": "e401", "arguments": {}}, token="bad")
        assert await call(connection, "echo", text="fine")
        assert connection.dependency.state == "closed"
        assert len(server.list_posts("initialize")) == 1


async def test_a_server_that_lets_nobody_in_is_an_error_that_says_so() -> None:
    async with (
        bad_http() as server,
        run_connection(settings(server, "init/e401", connect_tries=1)) as (connection, watcher),
    ):
        await watcher.until(lambda: connection.status.state == "Error")
        assert "refused the credentials (401)" in connection.status.message


async def test_a_server_that_asks_to_wait_is_not_given_up() -> None:
    async with bad_http() as server, run_connection(settings(server)) as (connection, watcher):
        await call(connection, "echo", text="warm")
        with pytest.raises(ServerAway) as caught:
            await connection.request("tools/call", {"name": "e503", "arguments": {}})
        assert caught.value.retry_after is not None
        assert await call(connection, "echo", text="fine")
        assert watcher.states == ["Starting", "Running", "Error", "Running"]


@pytest.mark.slow
async def test_a_server_that_goes_and_comes_back_is_met_again_by_itself() -> None:
    async with running_talkative() as running:
        port, clock, is_back = running.port, Clock(), asyncio.Event()

        async def pause(seconds: float) -> None:
            await is_back.wait()
            await clock.pause(seconds)

        given = running.settings("http", idle_seconds=0)
        async with run_connection(given, now=clock.now, pause=pause) as (connection, watcher):
            assert await call(connection, "echo", text="before")
            running.process.kill()
            await running.process.wait()
            with pytest.raises(RefdeskError):
                await call(connection, "echo", text="nobody")
            await watcher.until(lambda: connection.status.state == "Error")
            async with running_talkative(port=port):
                is_back.set()
                await watcher.until(lambda: connection.status.state == "Running")
                assert await call(connection, "echo", text="after")
                assert connection.dependency.state == "closed"


@pytest.mark.parametrize(
    ("kind", "era"), [(kind, "legacy") for kind in KINDS] + [("stdio", "modern"), ("http", "modern")]
)
async def test_every_revision_is_spoken_and_what_changes_is_heard(kind: Kind, era: Era) -> None:
    async with talkative(kind, era=era) as given, run_connection(given) as (connection, watcher):
        before = await connection.list_all("tools")
        assert connection.server_profile is not None
        assert connection.server_profile.is_modern == (era == "modern")
        assert await call(connection, "echo", text="größe") == "größe"
        # What is listened to is asked for beside the calls, and may come a little later than they.
        while not watcher.notifications:
            await call(connection, "grow")
        assert watcher.notifications[0][0] == "notifications/tools/list_changed"
        assert len(await connection.list_all("tools")) > len(before)
        await connection.request("resources/subscribe", {"uri": "talk://document/1"})
        while watcher.notifications[-1][0] != "notifications/resources/updated":
            await call(connection, "touch", uri="talk://document/1")
        assert watcher.notifications[-1][1]["uri"] == "talk://document/1"


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_servers_of_the_official_sdk_are_spoken_to_in_the_newest_revision(kind: Literal["stdio", "http"]) -> None:
    async with official(kind) as given, run_connection(given, protocol_version="2026-07-28") as (connection, watcher):
        tools = await connection.list_all("tools")
        assert {tool["name"] for tool in tools} == {"echo", "steps", "greet"}
        assert connection.server_profile is not None
        assert connection.server_profile.version == "2026-07-28"
        assert await call(connection, "echo", text="größe") == "größe"
        with pytest.raises(ServerRefused):
            await connection.request("no/such")
        assert watcher.states == ["Starting", "Running"]
