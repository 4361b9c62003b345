"""Calls to downstream servers through the dispatcher and its policies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from refdesk.calls import ANONYMOUS, Call, Caller, ClientRefused, ListChanged, ResourceUpdated
from refdesk.downstream.connection.connection import Status
from refdesk.errors import (
    InvalidArguments,
    ServerGone,
    ServerRefused,
    ServerTooSlow,
    UnknownPrompt,
    UnknownResource,
    UnknownTool,
)
from refdesk.tools.json_schema import Arguments
from refdesk.tools.registry import Registry, Tool
from tests.downstream.connecting import change_settings
from tests.downstream.servers.talkative_tools import ICONS, META, TOOLS
from tests.tools.gateways import Desk, Talker, open_test_desk, quiet, shy, talkative, text_of
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with open_test_desk(tmp_path_factory.mktemp("gateway"), {"talk": talkative()}) as desk:
        yield desk


@pytest.fixture
async def own_desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """One to be spoiled."""
    async with open_test_desk(tmp_path, {"talk": talkative()}) as desk:
        yield desk


async def test_tools_are_listed_as_the_server_defined_them_under_their_exposed_names(desk: Desk) -> None:
    listed = {tool["name"]: tool for tool in (await desk.ask("tools/list"))["tools"]}
    assert listed.keys() == {f"talk__{name}" for name in TOOLS}
    assert listed["talk__structured"] == {**TOOLS["structured"].definition, "name": "talk__structured"}


async def test_a_list_is_assembled_once_for_all_who_ask(desk: Desk) -> None:
    first, second = await desk.ask("tools/list"), await desk.ask("tools/list")
    assert all(one is other for one, other in zip(first["tools"], second["tools"], strict=True))


async def test_a_result_is_passed_on_as_it_is(desk: Desk) -> None:
    assert await desk.call("talk__structured", {"a": 5}) == {
        "content": [{"type": "text", "text": '{"a": 5}'}],
        "structuredContent": {"a": 5},
        "_meta": {"vendor.example/result": 2},
    }
    picture = (await desk.call("talk__image"))["content"][0]
    assert picture["type"] == "image"
    assert picture["annotations"] == {"priority": 0.5}


async def test_the_meta_of_a_request_reaches_the_server_but_for_what_belongs_to_the_way(desk: Desk) -> None:
    meta = {"vendor.example/x": 1, "traceparent": "00-1", "progressToken": 7, "io.modelcontextprotocol/clientInfo": {}}
    result = await desk.call("talk__meta", {}, _meta=meta)
    assert result["structuredContent"] == {"meta": {"vendor.example/x": 1, "traceparent": "00-1"}}


async def test_arguments_are_left_to_the_server_but_have_to_be_an_object(desk: Desk) -> None:
    assert text_of(await desk.call("talk__echo", {"text": "hi", "unheard": [1]})) == "hi"
    with pytest.raises(InvalidArguments, match="must be an object"):
        await desk.call("talk__echo", [1])


async def test_errors_keep_their_code_message_and_data(desk: Desk) -> None:
    with pytest.raises(ServerRefused, match="The protocol said no") as caught:
        await desk.call("talk__rpc_error")
    assert caught.value.code == -32050
    assert caught.value.data["deep"] == {"list": [1, 2]}
    failed = await desk.call("talk__tool_error")
    assert failed == {"content": [{"type": "text", "text": "The tool said no"}], "isError": True}


async def test_progress_and_log_messages_reach_the_client_in_order_before_the_answer(desk: Desk) -> None:
    client = Talker()
    await desk.call("talk__progress", {"steps": 3}, client=client, _meta={"progressToken": "mine"})
    assert client.heard == [("progress", step, 3, f"step {step}") for step in (1, 2, 3)]
    client.heard.clear()
    await desk.call("talk__log", {"text": "careful", "level": "warning"}, client=client)
    assert client.heard == [("log", "warning", "careful", "talkative")]


async def test_what_a_server_asks_is_answered_by_the_client_of_the_call(desk: Desk) -> None:
    form = {"action": "accept", "content": {"name": "Ada"}}
    sample = {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}
    roots = {"roots": [{"uri": "file:///home/ada"}]}
    client = Talker({"elicitation/create": form, "sampling/createMessage": sample, "roots/list": roots})
    for tool, answer in (("elicit", form), ("sample", sample), ("roots", roots)):
        result = await desk.call(f"talk__{tool}", client=client)
        assert result["structuredContent"] == {"answer": answer}
    assert client.asked[0][1]["message"] == "talk asks: What is your name?"


async def test_a_server_is_told_that_a_client_cannot_be_asked_and_that_it_has_no_roots(desk: Desk) -> None:
    refused = await desk.call("talk__sample", client=Talker())
    assert refused["structuredContent"]["answer"]["error"]["code"] == -32601
    assert (await desk.call("talk__roots", client=Talker()))["structuredContent"] == {"answer": {"roots": []}}


async def test_the_error_that_a_client_answers_with_is_told_to_the_server(desk: Desk) -> None:
    no = ClientRefused("sampling/createMessage", {"code": -1, "message": "User rejected it", "data": {"by": "Ada"}})
    result = await desk.call("talk__sample", client=Talker({"sampling/createMessage": no}))
    error = result["structuredContent"]["answer"]["error"]
    assert error == {"code": -1, "message": "User rejected it", "data": {"by": "Ada"}}


async def test_a_call_that_is_called_off_is_called_off_at_the_server(desk: Desk) -> None:
    client = Talker()
    calling = asyncio.create_task(desk.call("talk__cancel_me", client=client, _meta={"progressToken": 1}))
    with anyio.fail_after(PATIENCE_SECONDS):
        await client.was_told.wait()
    calling.cancel()
    await asyncio.wait([calling])
    ended = await desk.call("talk__was_cancelled", {"wait_ms": 20_000})
    assert ended["structuredContent"]["cancelled"] == ["told: The caller no longer waits for it"]


async def test_a_server_that_is_too_slow_says_so_itself_before_the_deadline(own_desk: Desk) -> None:
    change_settings(own_desk.fleet.servers["talk"], call_timeout_seconds=0.05)
    with pytest.raises(ServerTooSlow, match=r"'talk' did not answer within 0\.05 s"):
        await own_desk.call("talk__sleep_ms", {"ms": 60_000})
    calls: list[tuple[str, dict[str, Any]]] = [
        ("tools/call", {"name": "talk__echo"}),
        ("prompts/get", {"name": "talk__greet"}),
        ("resources/read", {"uri": "talk://letter/Ada"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "talk__greet"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "talk://letter/{name}"}}),
    ]
    for method, params in calls:
        tool = own_desk.registry.find_tool(params["name"]) if method == "tools/call" else None
        assert own_desk.dispatcher.seconds(Call(method, params, tool=tool)) == pytest.approx(5.05), method


async def test_a_server_that_dies_fails_its_call_at_once_and_is_there_for_the_next(own_desk: Desk) -> None:
    before = text_of(await own_desk.call("talk__pid"))
    with pytest.raises(ServerGone):
        await own_desk.call("talk__die")
    with anyio.fail_after(PATIENCE_SECONDS):
        assert text_of(await own_desk.call("talk__pid")) != before


async def test_a_connection_that_was_made_anew_is_used_although_the_list_is_the_same(own_desk: Desk) -> None:
    before = text_of(await own_desk.call("talk__pid"))
    await own_desk.fleet.apply({"talk": talkative(env={"ANOTHER": "1"})})
    await eventually(lambda: "talk__pid" in own_desk.fleet.catalogue.tools)
    assert text_of(await own_desk.call("talk__pid")) != before


async def test_a_tool_that_comes_or_goes_is_one_change_of_the_list(own_desk: Desk) -> None:
    own_desk.events.clear()
    await own_desk.call("talk__grow")
    await eventually(lambda: own_desk.events)
    assert own_desk.events == [ListChanged("tools")]
    assert "talk__grown_1" in await own_desk.names()
    assert text_of(await own_desk.call("talk__grown_1")) == "grown_1"
    await own_desk.call("talk__shrink")
    await eventually(lambda: "talk__grown_1" not in own_desk.registry.tools)
    with pytest.raises(UnknownTool, match="talk__grown_1"):
        await own_desk.call("talk__grown_1")


async def test_what_was_taken_away_is_not_called_even_before_the_lists_say_so(own_desk: Desk) -> None:
    tool, prompt = own_desk.registry.tools["talk__echo"], own_desk.registry.prompts["talk__greet"]
    await own_desk.fleet.apply({})
    with pytest.raises(UnknownTool, match="'talk__echo' no longer exists"):
        await tool({}, Call("tools/call", {"name": "talk__echo"}))
    with pytest.raises(UnknownPrompt, match="'talk__greet' no longer exists"):
        await prompt.get({}, Call("prompts/get", {"name": "talk__greet"}))


async def test_a_tool_answers_to_its_server_and_own_name_as_well(desk: Desk) -> None:
    assert text_of(await desk.call("talk:echo", {"text": "hi"})) == "hi"
    with pytest.raises(UnknownTool):
        await desk.call("talk:nothing")
    with pytest.raises(UnknownTool):
        await desk.call("echo")


async def test_a_tool_of_the_desk_keeps_its_name_whenever_it_comes(tmp_path: Path) -> None:
    async def say(arguments: Arguments, call: Call) -> str:
        return "the desk's own"

    own = Tool("echo", "Echo", "Our echo.", "docs", Arguments, say)
    registry = Registry()
    async with open_test_desk(tmp_path, {"talk": talkative()}, registry=registry, prefix="never") as desk:
        assert text_of(await desk.call("echo", {"text": "theirs"})) == "theirs"
        registry.add_tool(own)
        assert text_of(await desk.call("echo", {})) == "the desk's own"
        await desk.call("grow")
        await eventually(lambda: "grown_1" in registry.tools)
        assert text_of(await desk.call("echo", {})) == "the desk's own"
        assert text_of(await desk.call("talk:echo", {"text": "theirs"})) == "theirs"


async def test_prompts_are_listed_got_and_completed_by_the_server(desk: Desk) -> None:
    assert await desk.names("prompts") == ["talk__greet", "talk__poem"]
    greet = (await desk.ask("prompts/list"))["prompts"][0]
    assert greet["icons"] == ICONS
    assert greet["_meta"] == META
    for name in ("talk__greet", "talk:greet", "greet"):
        got = await desk.ask("prompts/get", name=name, arguments={"name": "Ada"})
        assert got["description"] == "Say hello to Ada"
    completed = await desk.ask(
        "completion/complete",
        ref={"type": "ref/prompt", "name": "talk__greet"},
        argument={"name": "name", "value": "Ad"},
    )
    assert completed == {"completion": {"values": ["Ada", "Adele"], "total": 2, "hasMore": False}}
    with pytest.raises(UnknownPrompt):
        await desk.ask("prompts/get", name="talk__none")


async def test_resources_are_listed_read_and_completed_by_the_server(desk: Desk) -> None:
    assert "talk://document/7" in await desk.names("resources")
    assert "talk://letter/{name}" in await desk.names("templates")
    for uri in ("talk://document/7", "talk://letter/Ada"):
        content = {"uri": uri, "mimeType": "text/plain", "text": f"The text of {uri}", "_meta": META}
        assert await desk.ask("resources/read", uri=uri) == {"contents": [content]}
    completed = await desk.ask(
        "completion/complete",
        ref={"type": "ref/resource", "uri": "talk://letter/{name}"},
        argument={"name": "name", "value": "G"},
    )
    assert completed["completion"]["values"] == ["Grace"]
    for nowhere in ("talk://nowhere", "techdoc://nowhere"):
        with pytest.raises(UnknownResource):
            await desk.ask("resources/read", uri=nowhere)


async def test_a_change_of_a_resource_is_told_as_long_as_anybody_wants_to_know(desk: Desk) -> None:
    uri = "talk://document/1"
    await desk.gateway.subscribe(uri, ANONYMOUS)
    await desk.gateway.subscribe(uri, ANONYMOUS)
    desk.gateway.unsubscribe(uri, ANONYMOUS)
    desk.events.clear()
    await desk.call("talk__touch", {"uri": uri})
    await eventually(lambda: bool(desk.events))
    assert desk.events == [ResourceUpdated(uri)]
    desk.gateway.unsubscribe(uri, ANONYMOUS)
    await eventually(lambda: not desk.connection("talk")._background)
    await desk.call("talk__touch", {"uri": uri})
    await desk.call("talk__echo", {"text": "what was said before this has been heard"})
    assert desk.events == [ResourceUpdated(uri)]


async def test_servers_say_what_they_are_for(desk: Desk) -> None:
    assert desk.gateway.instructions(ANONYMOUS).endswith("talk: Ask it anything; it has a tool for that.")


async def test_lists_that_are_to_be_asked_for_each_time_are_as_they_are_now(tmp_path: Path) -> None:
    async with open_test_desk(tmp_path, {"talk": talkative(cache_ttl_seconds=0)}) as desk:
        server = desk.fleet.servers["talk"]
        await server.request("tools/call", {"name": "grow", "arguments": {}})
        assert "talk__grown_1" in await desk.names()


async def test_a_name_that_no_list_has_is_looked_for_in_refreshed_lists(tmp_path: Path) -> None:
    async with open_test_desk(tmp_path, {"shy": shy(), "talk": talkative()}) as desk:
        for missing in ("shy:later", "shy__later", "later"):
            with pytest.raises(UnknownPrompt):
                await desk.ask("prompts/get", name=missing)
        with pytest.raises(UnknownResource):
            await desk.ask("resources/read", uri="shy://later")
        await desk.call("shy__grow")
        found = await desk.ask("resources/read", uri="shy://later")
        assert found == {"contents": [{"uri": "shy://later", "text": "found"}]}
        for name in ("shy:later", "shy__later", "later"):
            assert (await desk.ask("prompts/get", name=name))["description"] == "later"
        sent = [method for method, _ in desk.connection("talk").requests]
        assert not {"resources/read", "prompts/get"} & set(sent)


async def test_a_held_tool_says_so_and_how_to_approve_it(tmp_path: Path) -> None:
    async with open_test_desk(tmp_path, {"shy": shy(), "talk": talkative()}) as desk:
        await desk.call("shy__grow")
        assert "_meta" not in await desk.ask("tools/list")
        await desk.fleet.refresh_server("shy")
        for name in ("shy__grow", "shy:grow"):
            with pytest.raises(UnknownTool) as caught:
                await desk.call(name)
            assert caught.value.detail == (
                f"Tool {name!r} is held: definition changed. It can be called once it's approved in the console, or "
                "with `refdesk servers approve shy grow`"
            )
        held = {
            "name": "shy__grow",
            "reason": "held: definition changed",
            "approve": "refdesk servers approve shy grow",
        }
        assert (await desk.ask("tools/list"))["_meta"] == {"refdesk/held": [held]}
        stranger = Caller(servers=frozenset({"talk"}))
        assert "_meta" not in await desk.ask("tools/list", stranger)
        with pytest.raises(UnknownTool, match=r"Unknown tool 'shy__grow'; see tools/list"):
            await desk.call("shy__grow", caller=stranger)


async def test_a_denied_tool_is_not_taken_for_one_of_another_server(tmp_path: Path) -> None:
    servers = {"one": talkative(tools={"deny": ["echo"]}), "two": talkative()}
    async with open_test_desk(tmp_path, servers) as desk:
        for name in ("one__echo", "one:echo", "ten__echo"):
            with pytest.raises(UnknownTool, match=f"Unknown tool '{name}'") as caught:
                await desk.call(name)
            assert "two__" not in caught.value.detail
        with pytest.raises(UnknownTool, match="did you mean 'two__echo'"):
            await desk.call("two__ehco")


async def test_clients_may_not_keep_what_they_read_from_a_server(desk: Desk) -> None:
    modern = Talker(uses_input_required=True)
    assert (await desk.ask("resources/read", client=modern, uri="talk://document/7"))["ttlMs"] == 0
    assert "ttlMs" not in await desk.ask("resources/read", uri="talk://document/7")


async def test_a_uri_is_sent_to_no_server_that_does_not_offer_it(tmp_path: Path) -> None:
    async with open_test_desk(tmp_path, {"quiet": quiet(), "talk": talkative()}) as desk:
        stranger = Caller(servers=frozenset({"quiet"}))
        for caller, uri in ((ANONYMOUS, "quiet://1"), (ANONYMOUS, "talk://token-secret"), (stranger, "talk://1")):
            with pytest.raises(UnknownResource):
                await desk.ask("resources/read", caller, uri=uri)
        assert "resources/read" not in [method for method, _ in desk.connection("quiet").requests]
        linked = await desk.call("quiet__link")
        assert linked["content"][0]["uri"] == "quiet://1"
        found = await desk.ask("resources/read", uri="quiet://1")
        assert found == {"contents": [{"uri": "quiet://1", "text": "found"}]}


async def test_subscriptions_outlive_the_death_of_a_server(own_desk: Desk) -> None:
    uri = "talk://document/1"
    await own_desk.gateway.subscribe(uri, ANONYMOUS)
    with pytest.raises(ServerGone):
        await own_desk.call("talk__die")
    own_desk.events.clear()
    with anyio.fail_after(PATIENCE_SECONDS):
        while ResourceUpdated(uri) not in own_desk.events:
            await own_desk.call("talk__touch", {"uri": uri})


async def test_the_least_level_that_any_client_wants_counts_for_every_server(own_desk: Desk) -> None:
    for level in ("error", "info", "warning", "debug"):
        own_desk.gateway.set_level(level)
    await eventually(lambda: not own_desk.connection("talk")._background)
    requests = own_desk.connection("talk").requests
    levels = [params["level"] for method, params in requests if method == "logging/setLevel"]
    assert levels == ["error", "info", "debug"]


async def test_a_subscription_that_the_server_refuses_is_not_counted(own_desk: Desk) -> None:
    own_desk.connection("talk").refusal = ServerGone("The server ended")
    with pytest.raises(ServerGone):
        await own_desk.gateway.subscribe("talk://document/1", ANONYMOUS)
    assert not own_desk.fleet.servers["talk"].has_subscribers("talk://document/1")


async def test_a_list_is_not_for_the_client_to_keep_while_servers_start(own_desk: Desk) -> None:
    assert "ttlMs" not in await own_desk.ask("tools/list")
    server = own_desk.fleet.servers["talk"]
    for server.status in (Status("Running"), Status("Error", "away"), Status("Stopped")):
        assert "ttlMs" not in await own_desk.ask("tools/list")
    server.status = Status("Starting")
    assert (await own_desk.ask("tools/list"))["ttlMs"] == 0
    server.status = Status("Running")
    await own_desk.fleet.apply({"talk": talkative(tools={"deny": ["*"]})})
    assert (await own_desk.ask("tools/list"))["ttlMs"] == 0
    own_desk.gateway.downstream._listing_deadlines[server] = 0.0
    assert "ttlMs" not in await own_desk.ask("tools/list")
