"""What of the servers is there for whom: by tenant, by key, by role and by toolset."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from refdesk.calls import ANONYMOUS, READER, Caller, ResourceUpdated, TenantId, UserId
from refdesk.errors import Forbidden, InvalidArguments, RefdeskError, UnknownPrompt, UnknownResource, UnknownTool
from refdesk.policy.policies import can_reach
from tests.tools.gateways import Desk, open_test_desk, talkative, text_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ACME = Caller(user=UserId("ada"), tenant=TenantId("acme"), authenticated=True)
OTHER = Caller(user=UserId("eve"), tenant=TenantId("other"), authenticated=True)


def with_servers(*servers: str) -> Caller:
    return Caller(authenticated=True, servers=frozenset(servers))


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    servers = {"acme": talkative(tenants=("acme",)), "open": talkative("modern", tools={"deny": ["die"]})}
    async with open_test_desk(tmp_path_factory.mktemp("permissions"), servers) as desk:
        yield desk


async def failure(desk: Desk, method: str, caller: Caller, **params: Any) -> RefdeskError:
    with pytest.raises(RefdeskError) as caught:
        await desk.ask(method, caller, **params)
    return caught.value


async def test_a_server_of_some_tenants_is_there_for_them_alone(desk: Desk) -> None:
    assert "acme__echo" in await desk.names(caller=ACME)
    assert "acme__greet" in await desk.names("prompts", ACME)
    assert text_of(await desk.call("acme__echo", {"text": "hi"}, caller=ACME)) == "hi"
    for caller in (OTHER, ANONYMOUS):
        assert [name for name in await desk.names(caller=caller) if name.startswith("acme")] == []
        assert "open__echo" in await desk.names(caller=caller)
        assert await desk.names("prompts", caller) == ["open__greet", "open__poem"]


async def test_what_is_of_another_tenant_answers_exactly_as_what_does_not_exist(desk: Desk) -> None:
    for method, there, nowhere in [
        ("tools/call", {"name": "acme__change_mind"}, {"name": "acme__change_mint"}),
        ("tools/call", {"name": "acme:change_mind"}, {"name": "acme:change_mint"}),
        ("prompts/get", {"name": "acme__greet"}, {"name": "acme__grett"}),
        ("resources/read", {"uri": "talk://document/1"}, {"uri": "talk://nothing/1"}),
    ]:
        other = OTHER if "name" in there else replace(OTHER, servers=frozenset({"acme"}))
        hidden, missing = await failure(desk, method, other, **there), await failure(desk, method, other, **nowhere)
        assert type(hidden) is type(missing)
        assert isinstance(hidden, (UnknownTool, UnknownPrompt, UnknownResource))
        old, new = there.popitem()[1], nowhere.popitem()[1]
        assert hidden.detail.replace(old, "X") == missing.detail.replace(new, "X")


async def test_of_two_servers_with_the_same_uris_each_caller_has_the_first_that_is_open_to_it(desk: Desk) -> None:
    uri = "talk://document/1"
    completing: dict[str, Any] = {
        "ref": {"type": "ref/resource", "uri": "talk://letter/{name}"},
        "argument": {"name": "name", "value": "A"},
    }
    servers = {name: desk.connection(name) for name in desk.fleet.servers}
    for caller, first in ((ACME, "acme"), (OTHER, "open"), (with_servers("open"), "open")):
        before = {name: len(server.requests) for name, server in servers.items()}
        assert (await desk.names("resources", caller)).count(uri) == 1
        assert (await desk.names("templates", caller)).count("talk://letter/{name}") == 1
        assert (await desk.ask("resources/read", caller, uri=uri))["contents"]
        assert (await desk.ask("completion/complete", caller, **completing))["completion"]["values"]
        asked = {name: [method for method, _ in server.requests[before[name] :]] for name, server in servers.items()}
        assert asked.pop(first) == ["resources/read", "completion/complete"]
        assert not any(asked.values())
    nobody = with_servers("nothing")
    assert uri not in await desk.names("resources", nobody)
    assert isinstance(await failure(desk, "resources/read", nobody, uri=uri), UnknownResource)
    assert isinstance(await failure(desk, "completion/complete", nobody, **completing), UnknownResource)


async def test_a_key_opens_the_servers_and_single_tools_that_it_names(desk: Desk) -> None:
    whole, single, pattern = with_servers("open"), with_servers("open__echo"), with_servers("open__[ep]*")
    assert "open__sample" in await desk.names(caller=whole)
    assert await desk.names(caller=single) == ["open__echo"]
    assert await desk.names("prompts", single) == []
    assert await desk.names("prompts", pattern) == ["open__poem"]
    assert text_of(await desk.call("open__echo", {"text": "hi"}, caller=single)) == "hi"
    with pytest.raises(UnknownTool, match="open__echo"):
        await desk.call("open__ecco", caller=single)
    error = await failure(desk, "tools/call", single, name="open__sample")
    assert isinstance(error, UnknownTool)
    assert "open__sample'" in error.detail
    assert await desk.names(caller=with_servers("nothing")) == []


@pytest.mark.parametrize(
    ("patterns", "server", "name", "is_open"),
    [
        ({"git"}, "git", "log", True),
        ({"git"}, "github", "log", False),
        ({"git*"}, "github", "log", True),
        ({"git__log"}, "git", "log", True),
        ({"git__log"}, "git", "log_all", False),
        ({"git__log*"}, "git", "log_all", True),
        ({"GIT"}, "git", "log", False),
        ({"other", "git__file:*"}, "git", "file:///a", True),
        (set(), "git", "log", False),
        ({"docs__*"}, "docs", "a__b", True),
        ({"docs__*"}, "docs__internal", "search", False),
        ({"docs__internal"}, "docs__internal", "search", False),
        ({"docs__internal__*"}, "docs__internal", "search", True),
        ({"*__search"}, "docs__internal", "search", True),
        ({"*__search"}, "docs", "research", False),
    ],
)
def test_a_pattern_names_a_server_or_something_of_it(patterns: set[str], server: str, name: str, is_open: bool) -> None:
    assert can_reach(with_servers(*patterns), server, name, ()) is is_open


async def test_a_reader_uses_only_tools_that_claim_to_read_and_is_told_of_no_others(desk: Desk) -> None:
    reader = Caller(authenticated=True, roles=frozenset({READER}), tenant=TenantId("acme"))
    assert "open__nudge" in await desk.names()
    assert "open__nudge" not in await desk.names(caller=reader)
    assert "open__sample" in await desk.names(caller=reader)
    assert isinstance(await failure(desk, "tools/call", reader, name="open__nudge"), Forbidden)
    assert isinstance(await failure(desk, "tools/call", reader, name="open:nudge"), Forbidden)
    stranger = Caller(authenticated=True, roles=frozenset({READER}), servers=frozenset({"acme"}))
    assert isinstance(await failure(desk, "tools/call", stranger, name="open__nudge"), UnknownTool)


async def test_toolsets_narrow_what_is_of_servers_as_well(desk: Desk) -> None:
    given: list[dict[str, Any]] = [
        {"toolsets": frozenset({"docs"})},
        {"caller": Caller(toolsets=frozenset({"docs"}))},
    ]
    for toolsets in given:
        assert await desk.names(**toolsets) == []
        assert await desk.names("prompts", **toolsets) == []
    downstream = frozenset({"downstream"})
    assert "open__echo" in await desk.names(toolsets=downstream)
    reading: dict[str, Any] = {"uri": "talk://document/1", "caller": ACME}
    assert (await desk.ask("resources/read", **reading, toolsets=downstream))["contents"]
    assert "talk://document/1" not in await desk.names("resources", ACME, toolsets=frozenset({"docs"}))
    with pytest.raises(UnknownResource):
        await desk.ask("resources/read", **reading, toolsets=frozenset({"docs"}))
    with pytest.raises(InvalidArguments, match="not enabled"):
        await desk.call("open__echo", toolsets=frozenset({"made-up"}))


async def test_only_the_tenants_of_a_server_hear_of_its_resources(desk: Desk) -> None:
    uri = "talk://document/1"
    limited, toolless = replace(ACME, servers=frozenset({"open__*"})), replace(ACME, toolsets=frozenset({"docs"}))
    for stranger in (replace(OTHER, servers=frozenset({"acme"})), toolless):
        await desk.gateway.subscribe(uri, stranger)
        assert not any(server.has_subscribers(uri) for server in desk.fleet.servers.values())
    await desk.gateway.subscribe(uri, ACME)
    desk.gateway.unsubscribe(uri, OTHER)
    desk.events.clear()
    desk.gateway._on_notification("open", "notifications/resources/updated", {"uri": uri})  # which nobody asked it for
    await desk.call("acme__touch", {"uri": uri}, caller=ACME)
    await eventually(lambda: bool(desk.events))
    (event,) = desk.events
    assert event == ResourceUpdated(uri, TenantId("acme"))
    assert [event.is_for(caller) for caller in (ACME, limited, toolless, OTHER)] == [True, False, False, False]
    desk.gateway.unsubscribe(uri, ACME)
    assert not any(server.has_subscribers(uri) for server in desk.fleet.servers.values())


async def test_servers_tell_of_their_use_only_to_callers_that_they_have_something_for(desk: Desk) -> None:
    words = desk.gateway.instructions
    assert "acme: " in words(ACME)
    assert "acme: " not in words(OTHER)
    assert "open: " in words(with_servers("open__echo"))
    assert words(with_servers("open__made_up")) == words(Caller(toolsets=frozenset({"docs"}))) == ""


async def test_other_tenants_hear_of_a_server_when_it_becomes_theirs(desk: Desk) -> None:
    assert "acme__echo" not in await desk.names(caller=OTHER)
    was = {name: server.settings for name, server in desk.fleet.servers.items()}
    await desk.fleet.apply({**was, "acme": was["acme"].model_copy(update={"tenants": ()})})
    await eventually(lambda: desk.fleet._telling is None)
    assert "acme__echo" in await desk.names(caller=OTHER)
    await desk.fleet.apply(was)
    await eventually(lambda: desk.fleet._telling is None)
    assert "acme__echo" not in await desk.names(caller=OTHER)
