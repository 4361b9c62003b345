"""`search_tools` and `call_tool` in place of the tools themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from refdesk.calls import ANONYMOUS, READER, Call, Caller, ListChanged, TenantId
from refdesk.engines.analyzer import extract_index_terms
from refdesk.errors import EngineError, Forbidden, InvalidArguments, ServerRefused, UnknownTool
from refdesk.tools.tool_search import ToolIndex, ToolVectors, describe_tool
from tests.tools.gateways import Desk, Talker, open_test_desk, talkative, text_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ACME = Caller(tenant=TenantId("acme"))


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    servers = {"talk": talkative(), "acme": talkative("modern", tenants=("acme",), tools={"allow": ["echo", "elicit"]})}
    async with open_test_desk(tmp_path_factory.mktemp("search"), servers, tool_search=True) as desk:
        await until_found(desk, "echo", "talk__echo")
        await until_found(desk, "echo", "acme__echo", ACME)
        yield desk


async def search(desk: Desk, query: str, caller: Caller = ANONYMOUS, **arguments: Any) -> list[str]:
    result = await desk.call("search_tools", {"query": query, **arguments}, caller=caller)
    return [tool["name"] for tool in result["structuredContent"]["tools"]]


async def until_found(desk: Desk, query: str, name: str, caller: Caller = ANONYMOUS) -> None:
    """Wait until a tool is indexed. The index is built in the background."""

    async def is_found() -> bool:
        return name in await search(desk, query, caller)

    await eventually(is_found)


async def test_only_the_two_tools_are_listed_and_the_others_can_still_be_called(desk: Desk) -> None:
    assert await desk.names() == ["search_tools", "call_tool"]
    assert text_of(await desk.call("talk__echo", {"text": "hi"})) == "hi"


async def test_a_tool_is_found_by_what_it_does_with_what_it_takes_to_call_it(desk: Desk) -> None:
    result = await desk.call("search_tools", {"query": "get a picture", "limit": 3})
    [best, *_] = result["structuredContent"]["tools"]
    assert best["name"] == "talk__image"
    assert best["inputSchema"] == {"type": "object", "properties": {}}
    assert best["description"] == "A picture."
    assert '"name":"talk__image"' in text_of(result)
    assert (await search(desk, "elicit the user's name"))[0] == "talk__elicit"
    assert (await search(desk, "talk__echo"))[0] == "talk__echo"
    assert await search(desk, "zebra quantum") == []


async def test_what_is_not_open_to_the_caller_is_not_found(desk: Desk) -> None:
    assert [name for name in await search(desk, "echo", limit=20) if name.startswith("acme")] == []
    assert "acme__echo" in await search(desk, "echo", ACME)
    assert await search(desk, "echo", ACME, server="acme") == ["acme__echo"]
    with pytest.raises(InvalidArguments, match="there is no server 'acme'"):
        await search(desk, "echo", server="acme")


async def test_a_call_is_as_if_the_tool_itself_were_called(desk: Desk) -> None:
    client = Talker({"elicitation/create": {"action": "decline"}})
    direct = await desk.call("talk__elicit", {}, client=client)
    assert await desk.call("call_tool", {"name": "talk__elicit"}, client=client) == direct
    told = Talker()
    called = {"name": "talk__progress", "arguments": {"steps": 2}}
    await desk.call("call_tool", called, client=told, _meta={"progressToken": 1})
    assert len(told.heard) == 2
    with pytest.raises(ServerRefused, match="The protocol said no") as refused:
        await desk.call("call_tool", {"name": "talk__rpc_error"})
    assert refused.value.code == -32050
    for unknown in ("acme__echo", "talk__none"):
        with pytest.raises(UnknownTool, match=unknown):
            await desk.call("call_tool", {"name": unknown})
    for itself in ("call_tool", "search_tools"):
        with pytest.raises(InvalidArguments, match="name: must be a tool that search_tools found"):
            await desk.call("call_tool", {"name": itself, "arguments": {}})


@pytest.mark.parametrize("tool", ["talk__elicit", "acme__elicit"])
async def test_a_client_of_the_newest_revision_is_asked_through_it_too(desk: Desk, tool: str) -> None:
    answers = {"elicitation/create": {"action": "accept", "content": {"name": "Ada"}}}
    client = Talker(answers, uses_input_required=True)
    result, rounds = await desk.call_through("call_tool", client, answers, arguments={"name": tool}, caller=ACME)
    assert result["structuredContent"] == {"answer": answers["elicitation/create"]}
    assert len(rounds) == 1


async def test_a_reader_calls_through_it_only_what_reads(desk: Desk) -> None:
    reader = Caller(roles=frozenset({READER}))
    assert await desk.names(caller=reader) == ["search_tools", "call_tool"]
    assert text_of(await desk.call("call_tool", {"name": "talk__echo", "arguments": {"text": "hi"}}, caller=reader))
    with pytest.raises(Forbidden, match="talk__nudge"):
        await desk.call("call_tool", {"name": "talk__nudge"}, caller=reader)
    assert "talk__nudge" not in await search(desk, "let change_mind go on", reader)
    assert "talk__nudge" in await search(desk, "let change_mind go on")
    listed = (await desk.ask("tools/list"))["tools"][1]
    assert listed["annotations"] == {
        "readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True,
    }  # fmt: skip


async def test_it_may_take_as_long_as_the_tool_it_calls(desk: Desk) -> None:
    tool = desk.registry.find_tool("call_tool")
    call = Call("tools/call", {"name": "call_tool", "arguments": {"name": "talk__echo"}}, tool=tool)
    assert desk.dispatcher.seconds(call) == desk.fleet.servers["talk"].settings.call_timeout_seconds + 5
    assert desk.dispatcher.seconds(Call("tools/call", {"name": "call_tool", "arguments": [1]}, tool=tool)) is None


async def test_a_tool_that_is_new_is_found_and_no_list_has_changed(desk: Desk) -> None:
    desk.events.clear()
    await desk.call("talk__grow")
    await eventually(lambda: "talk__grown_1" in desk.registry.tools)
    await until_found(desk, "grown while you watched", "talk__grown_1")
    assert ListChanged("tools") not in desk.events
    await desk.call("talk__shrink")
    await eventually(lambda: "talk__grown_1" not in desk.registry.tools)
    assert "talk__grown_1" not in await search(desk, "grown while you watched")


def tool(name: str, description: str) -> Any:
    return describe_tool(name, {"inputSchema": {"type": "object"}, "description": description})


class Meaning:
    """Texts about the same thing have the same vector."""

    def __init__(self, *groups: str) -> None:
        self.groups = [set(extract_index_terms(group)) for group in groups]
        self.asked: list[str] = []

    async def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        vectors = [[float(bool(group & set(extract_index_terms(text)))) for group in self.groups] for text in texts]
        return np.array(vectors, dtype=np.float32)


async def test_meaning_finds_what_words_do_not_and_only_new_tools_are_embedded() -> None:
    meaning = Meaning("weather forecast rain umbrella", "mail letter post")
    vectors = ToolVectors(meaning)
    tools = [tool("forecast", "The weather of tomorrow."), tool("send_mail", "Send a letter.")]
    by_words = ToolIndex(tools)
    found = await vectors.embed_tools(tools)
    assert found is not None
    query = "do I need an umbrella"
    assert by_words.search(query, await vectors.embed_query(query), [0, 1], 1) == []
    by_words.vectors = found
    assert by_words.search(query, await vectors.embed_query(query), [0, 1], 1) == [0]
    meaning.asked.clear()
    await vectors.embed_tools([*tools, tool("third", "Another.")])
    assert len(meaning.asked) == 1


async def test_words_alone_find_until_the_meaning_can_be_had(tmp_path: Path) -> None:
    meaning, is_away = Meaning("image umbrella"), True

    async def embed(texts: Sequence[str]) -> NDArray[np.float32]:
        if is_away:
            raise EngineError("The model is away")
        return await meaning(texts)

    async with open_test_desk(tmp_path, {"talk": talkative()}, tool_search=True, embed=embed) as desk:
        assert (await search(desk, "a picture"))[0] == "talk__image"
        assert await search(desk, "umbrella") == []
        is_away = False
        await until_found(desk, "umbrella", "talk__image")
