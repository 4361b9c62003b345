"""Subscriptions and the log level of a connection, which outlive its session, and listening in the newest revision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message
from tests.downstream.connecting import run_connection
from tests.downstream.loopback import Clock, Loopback
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_a_resource_is_subscribed_once_for_all_subscribers() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.subscribe("a:1", "Ann")
        await connection.subscribe("a:1", "Ann")
        await connection.subscribe("a:1", "Ben")
        assert not connection.unsubscribe("a:1", "Cas")
        assert connection.unsubscribe("a:1", "Ann")
        assert connection.unsubscribe("a:1", "Ben")
        assert connection.has_subscribers("a:1")
        assert connection.unsubscribe("a:1", "Ann")
        await eventually(lambda: "resources/unsubscribe" in server.methods)
        assert not connection.has_subscribers("a:1")
    assert [method for method in server.methods if "subscribe" in method] == [
        "resources/subscribe",
        "resources/unsubscribe",
    ]


async def test_a_subscription_made_right_after_the_last_one_ended_is_not_cancelled() -> None:
    server = Loopback()
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.subscribe("a:1", "Ann")
        connection.unsubscribe("a:1", "Ann")
        await connection.subscribe("a:1", "Ben")
        await connection.request("x/y")
        assert connection.has_subscribers("a:1")
    assert "resources/unsubscribe" not in server.methods


async def test_the_level_of_logging_is_sent_only_to_servers_that_log() -> None:
    expected: dict[str, int] = {"tools": 0, "logging": 2}
    for capability, count in expected.items():
        server = Loopback(capabilities={capability: {}})
        async with run_connection(open_transport=server.open) as (connection, _):
            connection.set_level("info")
            await connection.request("x/y")
            connection.set_level("debug")
            await eventually(lambda: server.methods.count("logging/setLevel") == count)  # noqa: B023
            await connection.request("x/y")
        assert server.methods.count("logging/setLevel") == count


async def test_subscriptions_and_the_level_of_logging_outlive_the_session() -> None:
    server = Loopback(capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}})
    async with run_connection(open_transport=server.open) as (connection, _):
        await connection.request("resources/subscribe", {"uri": "a:1"})
        await connection.request("resources/subscribe", {"uri": "a:2"})
        await connection.request("resources/unsubscribe", {"uri": "a:1"})
        await connection.request("logging/setLevel", {"level": "info"})
        server.received.clear()
        server.die()
        await connection.request("x/y")
        await eventually(lambda: "resources/subscribe" in server.methods)
        asked = [
            (m["method"], m["params"])
            for m in server.received
            if m["method"] in ("resources/subscribe", "logging/setLevel")
        ]
        assert asked == [("logging/setLevel", {"level": "info"}), ("resources/subscribe", {"uri": "a:2"})]


async def test_a_server_of_the_newest_revision_is_listened_to_as_long_as_it_is_connected() -> None:
    server = Loopback("2026-07-28", {"tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True}})
    server.hangs.add("subscriptions/listen")
    async with run_connection(open_transport=server.open) as (connection, watcher):
        await connection.request("x/y")
        await eventually(lambda: "subscriptions/listen" in server.methods)
        asked = [message for message in server.received if message["method"] == "subscriptions/listen"]
        assert asked[0]["params"]["notifications"] == {"toolsListChanged": True}
        id = asked[0]["id"]
        server.say({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {}}, id)
        server.say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}}, id)
        assert watcher.notifications == [("notifications/tools/list_changed", {})]
        assert await connection.request("resources/subscribe", {"uri": "a:1"}) == {}
        await eventually(lambda: server.methods.count("subscriptions/listen") >= 2)
        assert server.received[-1]["params"]["notifications"] == {
            "toolsListChanged": True,
            "resourceSubscriptions": ["a:1"],
        }


async def test_listening_that_the_server_ends_is_taken_up_again_and_what_was_missed_is_told() -> None:
    server, clock = Loopback("2026-07-28"), Clock()
    ends = asyncio.Event()

    async def end(message: Message) -> Message | None:
        if ends.is_set():
            return None
        ends.set()
        return {"result": {"resultType": "complete"}}

    server.answers["subscriptions/listen"] = end
    settings = McpServerConfig(command="loopback", idle_seconds=0)
    options: dict[str, Any] = {"now": clock.now, "pause": clock.pause, "jitter": lambda: 1.0}
    async with run_connection(settings, **options, open_transport=server.open) as (_, watcher):
        await watcher.until(lambda: watcher.notifications == [("notifications/tools/list_changed", {})])
        await eventually(lambda: server.methods.count("subscriptions/listen") >= 2)


async def test_a_server_that_will_not_be_listened_to_is_not_pressed() -> None:
    server = Loopback("2026-07-28")

    async def refuse(message: Message) -> Message:
        return {"error": {"code": -32601, "message": "no"}}

    server.answers["subscriptions/listen"] = refuse
    async with run_connection(open_transport=server.open) as (connection, _):
        for _ in range(5):
            await connection.request("x/y")
        assert server.methods.count("subscriptions/listen") == 1
