"""The greeting of a server, in whichever revision it speaks, and lists that may be anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Message
from refdesk.downstream.request_meta import RESERVED_PREFIX
from refdesk.downstream.session import MAX_LIST_BYTES, MAX_LIST_ENTRIES, MAX_LIST_PAGES, ServerProfile, Session
from refdesk.errors import RefdeskError, ServerRefused, ServerTalksNonsense
from tests.downstream.loopback import Loopback
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

OLD, NEW = "2025-11-25", "2026-07-28"


class Nobody:
    """An owner that does not care."""

    def on_open(self, session: Session) -> None: ...

    def on_lost(self, session: Session, error: RefdeskError) -> None: ...

    def on_closed(self, session: Session) -> None: ...


@asynccontextmanager
async def open_test_session(
    server: Loopback, wanted: str | None = None, probe_seconds: float = PATIENCE_SECONDS
) -> AsyncIterator[Session]:
    settings = McpServerConfig(command="it")
    session = Session("it", settings, Nobody(), lambda method, params: None, server.open)
    async with server.open("it", settings, session.peer) as transport:
        await session.negotiate(transport, wanted, probe_seconds=probe_seconds)
        yield session
    await session.peer.close()


async def test_the_handshake_is_initialize_then_initialized_and_the_transport_is_told_in_between() -> None:
    server = Loopback()
    async with open_test_session(server) as session:
        assert server.methods == ["initialize", "notifications/initialized"]
        assert server.spoken == [OLD]
        params = server.received[0]["params"]
        assert params["protocolVersion"] == OLD
        assert params["capabilities"] == {
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
            "roots": {"listChanged": True},
        }
        assert session.server_profile.info == {"name": "loopback", "version": "1"}
        assert not session.server_profile.is_modern


@pytest.mark.parametrize("code", [-32022, -32601, -32600])
async def test_a_server_without_a_handshake_is_discovered(code: int) -> None:
    server = Loopback(NEW)

    async def refuse(message: Message) -> Message:
        return {"error": {"code": code, "message": "no"}}

    server.answers["initialize"] = refuse
    async with open_test_session(server) as session:
        assert server.methods == ["initialize", "server/discover"]
        assert session.server_profile.version == NEW
        assert session.server_profile.is_modern
        assert session.server_profile.info["name"] == "loopback"
        assert server.headers[1] == {"mcp-protocol-version": NEW, "mcp-method": "server/discover"}


async def test_the_newest_revision_is_found_at_once_when_it_is_wanted() -> None:
    server = Loopback(NEW)
    async with open_test_session(server, NEW) as session:
        assert server.methods == ["server/discover"]
        assert session.server_profile.is_modern


async def test_when_the_newest_revision_is_wanted_and_not_spoken_the_handshake_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = Loopback()
    async with open_test_session(server, NEW) as session:
        assert server.methods == ["server/discover", "initialize", "notifications/initialized"]
        assert session.server_profile.version == OLD
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        "downstream.version_mismatch"
    ]


async def test_a_server_that_says_nothing_to_a_probe_is_greeted_by_handshake() -> None:
    server = Loopback()
    server.hangs.add("server/discover")
    async with open_test_session(server, NEW, probe_seconds=0.01) as session:
        assert session.server_profile.version == OLD


async def test_a_discovery_that_offers_only_old_revisions_leads_to_the_handshake() -> None:
    server = Loopback()

    async def discover(message: Message) -> Message:
        return {"result": {"supportedVersions": [OLD], "capabilities": {}}}

    server.answers["server/discover"] = discover
    async with open_test_session(server, NEW) as session:
        assert session.server_profile.version == OLD


async def test_an_older_revision_is_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with open_test_session(Loopback("2024-11-05"), "2025-06-18") as session:
        assert session.server_profile.version == "2024-11-05"
    assert "downstream.version_mismatch" in caplog.text


async def test_a_refusal_of_both_ways_to_greet_is_the_first_one() -> None:
    server = Loopback()

    async def refuse(message: Message) -> Message:
        return {"error": {"code": -32000, "message": "closed on Mondays"}}

    server.answers["initialize"] = refuse
    with pytest.raises(ServerRefused, match="closed on Mondays"):
        async with open_test_session(server):
            pass


@pytest.mark.parametrize(
    "result", [{}, {"protocolVersion": 3, "capabilities": {}}, {"protocolVersion": OLD, "capabilities": []}]
)
async def test_a_greeting_that_says_nothing_is_nonsense(result: Message) -> None:
    server = Loopback()

    async def answer(message: Message) -> Message:
        return {"result": result}

    server.answers["initialize"] = answer
    with pytest.raises(ServerTalksNonsense):
        async with open_test_session(server):
            pass
    assert "notifications/initialized" not in server.methods


async def test_a_hostile_server_cannot_keep_us_greeting() -> None:
    server = Loopback()

    async def modern(message: Message) -> Message:
        return {"result": {"protocolVersion": NEW, "capabilities": {}, "supportedVersions": [OLD]}}

    server.answers["initialize"] = server.answers["server/discover"] = modern
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with open_test_session(server):
            assert len(server.received) < 5


def test_capabilities_are_asked_for_by_dotted_names() -> None:
    profile = ServerProfile(OLD, {"tools": {"listChanged": True}, "prompts": {"listChanged": False}, "logging": {}})
    has = {name: profile.has(name) for name in ("tools", "tools.listChanged", "prompts", "logging", "resources")}
    assert has == {"tools": True, "tools.listChanged": True, "prompts": True, "logging": True, "resources": False}
    assert not profile.has("prompts.listChanged")
    assert not profile.has("logging.deep.down")


async def test_a_request_of_the_newest_revision_carries_envelope_and_headers() -> None:
    server = Loopback(NEW)
    async with open_test_session(server, NEW) as session:
        await session.request("tools/call", {"name": "größe", "_meta": {"x": 1}}, token="t0ken")
        assert server.received[-1]["params"]["_meta"].keys() == {
            "x",
            f"{RESERVED_PREFIX}protocolVersion",
            f"{RESERVED_PREFIX}clientInfo",
            f"{RESERVED_PREFIX}clientCapabilities",
        }
        assert server.headers[-1] == {
            "mcp-protocol-version": NEW,
            "mcp-method": "tools/call",
            "mcp-name": "=?base64?Z3LDtsOfZQ==?=",
            "authorization": "Bearer t0ken",
        }


async def test_a_request_after_a_handshake_carries_neither() -> None:
    server = Loopback()
    async with open_test_session(server) as session:
        await session.request("tools/call", {"name": "a", "_meta": {f"{RESERVED_PREFIX}clientInfo": {}, "x": 1}})
        assert server.received[-1]["params"] == {"name": "a", "_meta": {"x": 1}}
        assert server.headers[-1] is None


async def test_arguments_are_repeated_in_headers_as_the_list_of_tools_says() -> None:
    server = Loopback(NEW)
    good = {"name": "t", "inputSchema": {"properties": {"r": {"type": "string", "x-mcp-header": "Region"}}}}
    bad = {"name": "u", "inputSchema": {"properties": {"r": {"type": "number", "x-mcp-header": "Region"}}}}

    async def tools(message: Message) -> Message:
        return {"result": {"tools": [good, bad]}}

    server.answers["tools/list"] = tools
    async with open_test_session(server, NEW) as session:
        assert await session.list_all("tools") == [good]
        await session.request("tools/call", {"name": "t", "arguments": {"r": "eu"}})
        headers = server.headers[-1]
        assert headers is not None
        assert headers["mcp-param-region"] == "eu"
        good = {"name": "v"}
        assert await session.list_all("tools") == [good]
        assert session.mirrored == {}


async def test_a_list_is_taken_page_by_page() -> None:
    server = Loopback()

    async def page(message: Message) -> Message:
        number = int((message.get("params") or {}).get("cursor", 0))
        result: Message = {"tools": [{"name": f"t{number}"}]}
        return {"result": {**result, "nextCursor": str(number + 1)} if number < 4 else result}

    server.answers["tools/list"] = page
    async with open_test_session(server) as session:
        assert [tool["name"] for tool in await session.list_all("tools")] == [
            "t0",
            "t1",
            "t2",
            "t3",
            "t4",
        ]


@pytest.mark.parametrize("is_repeated", [True, False])
async def test_a_list_without_end_is_taken_as_far_as_it_is_bearable(
    is_repeated: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server = Loopback()
    pages = 0

    async def page(message: Message) -> Message:
        nonlocal pages
        pages += 1
        tools = [{"name": f"{pages}-{number}"} for number in range(100)]
        return {"result": {"tools": tools, "nextCursor": "x" if is_repeated else str(pages)}}

    server.answers["tools/list"] = page
    async with open_test_session(server) as session:
        tools = await session.list_all("tools")
    assert len(tools) == (200 if is_repeated else MAX_LIST_ENTRIES)
    assert "downstream.endless_list" in caplog.text


@pytest.mark.parametrize("is_deep", [True, False])
async def test_a_list_is_taken_no_further_than_can_be_held(is_deep: bool, caplog: pytest.LogCaptureFixture) -> None:
    server = Loopback()
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]

    async def page(message: Message) -> Message:
        number = int((message.get("params") or {}).get("cursor", "0"))
        tool = {"name": str(number), "_meta": deep if is_deep else "x" * (MAX_LIST_BYTES // 4)}
        return {"result": {"tools": [tool], "nextCursor": str(number + 1)}}

    server.answers["tools/list"] = page
    async with open_test_session(server) as session:
        tools = await session.list_all("tools")
    assert len(tools) == (1 if is_deep else 4)
    assert "downstream.endless_list" in caplog.text


@pytest.mark.parametrize("version", ["", "x" * 1000, "2025-11-25\r\nx-evil: 1", 3, None])
async def test_a_revision_that_no_header_could_carry_is_nonsense(version: Any) -> None:
    server = Loopback()

    async def initialize(message: Message) -> Message:
        return {"result": {"protocolVersion": version, "capabilities": {}}}

    server.answers["initialize"] = initialize
    with pytest.raises(ServerTalksNonsense, match="protocol version"):
        async with open_test_session(server):
            raise AssertionError


async def test_pages_without_entries_have_an_end_too(caplog: pytest.LogCaptureFixture) -> None:
    server = Loopback()
    pages = 0

    async def page(message: Message) -> Message:
        nonlocal pages
        pages += 1
        return {"result": {"prompts": [], "nextCursor": str(pages)}}

    server.answers["prompts/list"] = page
    async with open_test_session(server) as session:
        assert await session.list_all("prompts") == []
    assert pages == MAX_LIST_PAGES


async def test_entries_that_nobody_could_use_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    server = Loopback()

    async def page(message: Message) -> Message:
        return {"result": {"resources": [{"uri": "a:b"}, {"name": "no uri"}, 3, None, {"uri": 4}]}}

    server.answers["resources/list"] = page
    async with open_test_session(server) as session:
        assert await session.list_all("resources") == [{"uri": "a:b"}]
    (dropped,) = [record for record in caplog.records if record.message == "downstream.entries_dropped"]
    assert vars(dropped)["fields"]["dropped"] == 4


@pytest.mark.parametrize("given", [None, {}, "text", 3])
async def test_a_list_that_is_none_is_nonsense(given: Any) -> None:
    server = Loopback()

    async def page(message: Message) -> Message:
        return {"result": {"tools": given}}

    server.answers["tools/list"] = page
    async with open_test_session(server) as session:
        with pytest.raises(ServerTalksNonsense):
            await session.list_all("tools")


async def test_lists_and_their_answers_are_traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = Loopback()

    async def page(message: Message) -> Message:
        return {"result": {"tools": [{"name": "a"}]}}

    server.answers["tools/list"] = page
    async with open_test_session(server) as session:
        await session.list_all("tools")
    traced = [(record.message, vars(record)["fields"]) for record in caplog.records if "list" in record.message]
    assert traced == [
        ("downstream.list_asked", {"server": "it", "method": "tools/list"}),
        ("downstream.listed", {"server": "it", "method": "tools/list", "entries": 1}),
    ]
