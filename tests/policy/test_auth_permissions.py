"""What roles and the toolsets of a key open, on a real desk's tools, prompts and resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from refdesk.app import Desk, open_desk
from refdesk.calls import ANONYMOUS, LOCAL, WINDOW_METHOD, Call, Caller, TenantId, UserId
from refdesk.config.loading import load
from refdesk.errors import Forbidden, InvalidArguments, UnknownPrompt, UnknownResource, UnknownTool
from refdesk.policy.policies import CONSOLE_RULES, Permissions, TokenCaller, can_administer, can_reach_any
from refdesk.tools.registry import Registry

pytestmark = pytest.mark.anyio

ANN = Caller(user=UserId("ann"), tenant=TenantId("acme"), authenticated=True)
READER = replace(ANN, roles=frozenset({"reader"}))
DOCS = replace(ANN, toolsets=frozenset({"docs"}))
INGEST: dict[str, Any] = {"name": "r2r_ingest_document", "arguments": {"text": "x", "title": "y"}}


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """One desk for all tests here: none changes what another sees."""
    given = {"data_dir": str(tmp_path_factory.mktemp("data")), "embedding.source": "none"}
    async with open_desk(load(None, {}, given)) as desk:
        yield desk


async def ask(desk: Desk, caller: Caller, method: str, toolsets: set[str] | None = None, **params: Any) -> Any:
    asked = frozenset(toolsets) if toolsets is not None else None
    return (await desk.handle(Call(method, params, caller, toolsets=asked))).result


async def tools(desk: Desk, caller: Caller, toolsets: set[str] | None = None) -> set[str]:
    return {tool["name"] for tool in (await ask(desk, caller, "tools/list", toolsets))["tools"]}


async def available(desk: Desk, caller: Caller) -> set[str]:
    result = await ask(desk, caller, "tools/call", name="list_available_tools", arguments={})
    return {tool["name"] for tool in result["structuredContent"]["tools"]}


@pytest.mark.parametrize("roles", [(), ("writer",), ("admin",), ("service",), ("reader", "writer"), ("what", "admin")])
async def test_a_caller_without_roles_or_with_one_for_it_has_every_tool(desk: Desk, roles: tuple[str, ...]) -> None:
    caller = replace(ANN, roles=frozenset(roles))
    assert await tools(desk, caller) == await tools(desk, LOCAL) == set(desk.registry.tools)
    assert await ask(desk, caller, "tools/call", **INGEST)


async def test_a_reader_sees_and_calls_what_only_reads(desk: Desk) -> None:
    reading = {name for name, tool in desk.registry.tools.items() if tool.annotations.read_only}
    assert "r2r_ingest_document" not in reading
    for caller in (READER, replace(ANN, roles=frozenset({"reader", "unknown"}))):
        assert await tools(desk, caller) == reading
        assert await available(desk, caller) == reading
        with pytest.raises(Forbidden, match="r2r_ingest_document changes"):
            await ask(desk, caller, "tools/call", **INGEST)
    assert await ask(desk, READER, "tools/call", name="search_documentation", arguments={"query": "install"})
    assert (await ask(desk, READER, "prompts/list"))["prompts"]
    assert (await ask(desk, READER, "resources/list"))["resources"]


async def test_an_unknown_tool_is_unknown_to_a_reader_too(desk: Desk) -> None:
    with pytest.raises(UnknownTool):
        await ask(desk, READER, "tools/call", name="nothing", arguments={})


@pytest.mark.parametrize("method", ["tools/list", "tools/call", "resources/list", "prompts/list", WINDOW_METHOD])
async def test_roles_that_nobody_knows_open_nothing(desk: Desk, method: str) -> None:
    caller = replace(ANN, roles=frozenset({"raeder"}))
    with pytest.raises(Forbidden, match=r"\(raeder\) grant nothing; known roles are reader"):
        await ask(desk, caller, method, name="search_documentation", arguments={"query": "x"})


async def test_a_key_sees_and_calls_the_tools_of_its_toolsets(desk: Desk) -> None:
    docs = {name for name, tool in desk.registry.tools.items() if tool.toolset == "docs"}
    assert await tools(desk, DOCS) == docs
    with pytest.raises(UnknownTool):
        await ask(desk, DOCS, "tools/call", name="r2r_search", arguments={"query": "x"})
    reader = replace(ANN, toolsets=frozenset({"reader", "docs"}))
    assert await available(desk, reader) == await tools(desk, reader)


async def test_what_a_connection_asks_for_narrows_a_key_and_never_widens_it(desk: Desk) -> None:
    assert await tools(desk, DOCS, {"docs", "r2r"}) == await tools(desk, DOCS)
    assert await tools(desk, DOCS, {"r2r"}) == set()
    with pytest.raises(UnknownTool):
        await ask(desk, DOCS, "tools/call", {"r2r"}, name="r2r_search", arguments={"query": "x"})
    both = replace(ANN, toolsets=frozenset({"docs", "r2r"}))
    assert await tools(desk, both, {"docs"}) == await tools(desk, DOCS)
    with pytest.raises(InvalidArguments, match="nonsense not enabled"):
        await tools(desk, DOCS, {"nonsense"})


async def test_a_key_with_only_a_toolset_that_is_off_opens_nothing(desk: Desk) -> None:
    off = replace(ANN, toolsets=frozenset({"downstream"}))
    assert await tools(desk, off) == set()
    assert (await ask(desk, off, "resources/list"))["resources"] == []


async def test_prompts_and_resources_follow_the_toolsets_too(desk: Desk) -> None:
    prompts = {prompt["name"] for prompt in (await ask(desk, DOCS, "prompts/list"))["prompts"]}
    assert prompts == {name for name, prompt in desk.registry.prompts.items() if prompt.toolset == "docs"}
    foreign = next(name for name, prompt in desk.registry.prompts.items() if prompt.toolset == "r2r")
    with pytest.raises(UnknownPrompt):
        await ask(desk, DOCS, "prompts/get", name=foreign)

    uris = [entry["uri"] for entry in (await ask(desk, DOCS, "resources/list"))["resources"]]
    assert uris
    assert all(uri.startswith("techdoc://") for uri in uris)
    listed = (await ask(desk, DOCS, "resources/templates/list"))["resourceTemplates"]
    assert all(template["uriTemplate"].startswith("techdoc://") for template in listed)
    everything = (await ask(desk, ANN, "resources/templates/list"))["resourceTemplates"]
    foreign_templates = [t["uriTemplate"] for t in everything if not t["uriTemplate"].startswith("techdoc://")]
    assert foreign_templates

    assert await ask(desk, DOCS, "resources/read", uri=uris[0])
    for uri in ("r2r://search/history", "document://x/markdown"):
        with pytest.raises(UnknownResource):
            await ask(desk, DOCS, "resources/read", uri=uri)
    for template in foreign_templates:
        argument = {"name": "collection_id", "value": ""}
        with pytest.raises(UnknownResource):
            await ask(
                desk, DOCS, "completion/complete", ref={"type": "ref/resource", "uri": template}, argument=argument
            )


async def test_every_resource_belongs_to_a_toolset(desk: Desk) -> None:
    """A family of resources that permissions do not know would be open to every key."""
    nothing = replace(ANN, toolsets=frozenset({"downstream"}))
    for method, name in (("resources/list", "resources"), ("resources/templates/list", "resourceTemplates")):
        assert (await ask(desk, ANN, method))[name]
        assert (await ask(desk, nothing, method))[name] == []


async def test_chunk_windows_are_of_the_reader_tools(desk: Desk) -> None:
    with pytest.raises(Forbidden, match="'reader'"):
        await ask(desk, DOCS, WINDOW_METHOD, doc_id="refdesk/index.md", anchor_chunk_id="c1")


async def test_a_caller_that_nobody_has_limited_costs_nothing_and_is_passed_on_as_it_is() -> None:
    seen: list[Call] = []

    async def handler(call: Call) -> Any:
        seen.append(call)
        return answer

    answer = object()
    permissions = Permissions((), Registry().find_tool, {}, {})
    for caller in (ANONYMOUS, LOCAL, ANN):
        call = Call("tools/list", {}, caller)
        assert await permissions(call, handler) is answer
        assert seen[-1] is call


def test_the_administration_is_for_its_role_and_the_owner_of_the_process() -> None:
    assert can_administer(LOCAL)
    assert can_administer(replace(ANN, roles=frozenset({"admin"})))
    for caller in (ANONYMOUS, ANN, READER, replace(ANN, roles=frozenset({"service", "writer"}))):
        assert not can_administer(caller)


async def test_a_token_is_told_the_scopes_that_would_open_a_tool(desk: Desk) -> None:
    permissions = Permissions(
        (), desk.registry.find_tool, {}, {"read": ("reader",), "write": ("writer",), "all": ("admin",)}
    )
    token = TokenCaller(roles=frozenset({"reader"}), scopes=frozenset({"read", "openid"}))
    assert permissions.scopes_for(token, "r2r_ingest_document") == ("openid", "read", "write")
    assert permissions.scopes_for(token, "search_documentation") == ()
    assert permissions.scopes_for(token, "nothing") == ()
    assert permissions.scopes_for(READER, "r2r_ingest_document") == (), "a key has no scopes to ask for"
    assert Permissions((), desk.registry.find_tool, {}, {}).scopes_for(token, "r2r_ingest_document") == ()


async def test_every_method_of_the_console_has_a_rule_and_every_rule_a_method(desk: Desk) -> None:
    methods = {method for method in desk.registry.methods if method.startswith("console/")}
    assert methods == set(CONSOLE_RULES)


async def test_who_administers_is_decided_anew_for_each_call() -> None:
    is_trusted = [True]
    permissions = Permissions(("docs",), Registry().find_tool, {}, {}, lambda: is_trusted[0])
    at_console = replace(ANN, at_console=True)
    assert permissions.may(at_console, "console/keys")
    assert not permissions.may(ANN, "console/keys")
    is_trusted[0] = False
    assert not permissions.may(at_console, "console/keys")
    assert permissions.may(replace(ANN, roles=frozenset({"admin"})), "console/keys")


def test_toolsets_that_are_switched_off_are_closed_in_the_console_too() -> None:
    permissions = Permissions(("docs",), Registry().find_tool, {}, {})
    assert permissions.may(ANN, "console/documents")
    assert not permissions.may(ANN, "console/create_collection")
    assert not permissions.may(ANN, "console/servers")


@pytest.mark.parametrize(
    ("patterns", "server", "is_there"),
    [
        (None, "docs", True),
        (["docs"], "docs", True),
        (["docs"], "docs__internal", False),
        (["do*"], "docs", True),
        (["docs__search"], "docs", True),
        (["docs__search"], "other", False),
        (["a__b__c"], "a__b", True),
        (["a__b__c"], "a", True),
        (["a___c"], "a_", True),
    ],
)
def test_a_server_is_there_for_a_key_that_opens_anything_of_it(
    patterns: list[str] | None, server: str, is_there: bool
) -> None:
    caller = replace(ANN, servers=None if patterns is None else frozenset(patterns))
    assert can_reach_any(caller, server, ()) is is_there
    assert can_reach_any(caller, server, ("acme",)) is is_there
    assert not can_reach_any(caller, server, ("other",))
