"""A question of a server reaches its client, whichever revision each of the two speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from refdesk.calls import Caller, InputRequired, UserId
from refdesk.errors import InvalidCall, MissingCapability, Overloaded, ServerTalksNonsense, ServerTooSlow
from refdesk.tools.input_requests import MAX_SUSPENDED_PER_CALLER, SuspendedCall, SuspendedCalls
from tests.gateway.desks import run_out_of_time
from tests.tools.gateways import Desk, Talker, open_test_desk, talkative, text_of
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ANSWERS: dict[str, Any] = {
    "elicitation/create": {"action": "accept", "content": {"name": "Ada"}},
    "sampling/createMessage": {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"},
    "roots/list": {"roots": [{"uri": "file:///home/ada"}]},
}
QUESTIONS = [("elicit", "elicitation/create"), ("sample", "sampling/createMessage"), ("roots", "roots/list")]


def newest(answers: Mapping[str, Any] = ANSWERS) -> Talker:
    return Talker(answers, uses_input_required=True)


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    servers = {"old": talkative("legacy"), "new": talkative("modern")}
    async with open_test_desk(tmp_path_factory.mktemp("eras"), servers) as desk:
        yield desk


async def test_the_two_servers_speak_what_they_are_meant_to(desk: Desk) -> None:
    greetings = {name: server.server_profile for name, server in desk.fleet.servers.items()}
    assert [greeting is not None and greeting.is_modern for greeting in greetings.values()] == [False, True]


@pytest.mark.parametrize(("tool", "method"), QUESTIONS)
@pytest.mark.parametrize("server", ["old", "new"])
async def test_a_client_of_an_older_revision_is_asked_during_its_call(
    desk: Desk, server: str, tool: str, method: str
) -> None:
    client = Talker(ANSWERS)
    result = await desk.call(f"{server}__{tool}", client=client)
    assert result["structuredContent"] == {"answer": ANSWERS[method]}
    assert [asked for asked, _ in client.asked] == [method]
    assert "resultType" not in result


@pytest.mark.parametrize(("tool", "method"), QUESTIONS)
@pytest.mark.parametrize("server", ["old", "new"])
async def test_a_client_of_the_newest_revision_is_asked_by_the_end_of_its_call(
    desk: Desk, server: str, tool: str, method: str
) -> None:
    result, rounds = await desk.call_through(f"{server}__{tool}", newest(), ANSWERS)
    assert result["structuredContent"] == {"answer": ANSWERS[method]}
    assert [[request["method"] for request in asked.values()] for asked in rounds] == [[method]]


@pytest.mark.parametrize("server", ["old", "new"])
async def test_what_a_server_asks_carries_its_name_whatever_the_client_speaks(desk: Desk, server: str) -> None:
    older = Talker(ANSWERS)
    for tool in ("elicit", "sample"):
        await desk.call(f"{server}__{tool}", client=older)
        _, [asked] = await desk.call_through(f"{server}__{tool}", newest(), ANSWERS)
        [request] = asked.values()
        assert request["params"] == older.asked[-1][1]
        if tool == "elicit":
            assert request["params"]["message"] == f"{server} asks: What is your name?"
        else:
            assert request["params"]["systemPrompt"] == f"Request of the MCP server '{server}'.\n\nBe brief"
            assert "includeContext" not in request["params"], "it would hand other servers' contexts over"


@pytest.mark.parametrize("server", ["old", "new"])
@pytest.mark.parametrize("url", ["javascript:alert(1)", "http://127.0.0.1/", "file:///etc/passwd", "", 7])
async def test_an_address_that_is_not_https_is_not_opened(desk: Desk, server: str, url: Any) -> None:
    for client in (older := Talker(ANSWERS), newest()):
        with suppress(ServerTalksNonsense):  # older servers get the error and return it as their result
            result = await desk.call(f"{server}__elicit", {"url": url}, client=client)
            assert "isn't https" in str(result)
    assert older.asked == []
    await desk.call(f"{server}__elicit", {"url": "https://example.com/"}, client=older)
    assert older.asked[0][1]["url"] == "https://example.com/"


async def test_a_client_of_the_newest_revision_hears_progress_of_either(desk: Desk) -> None:
    for server in ("old", "new"):
        client = newest()
        await desk.call(f"{server}__progress", {"steps": 2}, client=client, _meta={"progressToken": 1})
        assert client.heard == [("progress", 1, 2, "step 1"), ("progress", 2, 2, "step 2")]


async def test_a_client_that_cannot_be_asked_is_told_what_it_lacks(desk: Desk) -> None:
    with pytest.raises(MissingCapability, match="elicitation"):
        await desk.call("new__elicit", client=newest({}))
    refused = await desk.call("new__elicit", client=Talker())
    assert refused["isError"] is True
    assert "elicitation/create" in text_of(refused)
    told = await desk.call("old__elicit", client=newest({}))
    assert told["structuredContent"]["answer"]["error"]["code"] == -32601


async def test_the_handle_of_a_waiting_call_is_of_use_to_nobody_else_and_only_once(desk: Desk) -> None:
    with pytest.raises(InputRequired) as asked:
        await desk.call("old__elicit", client=newest())
    given = dict.fromkeys(asked.value.requests, ANSWERS["elicitation/create"])
    again: dict[str, Any] = {"client": newest(), "inputResponses": given, "requestState": asked.value.state}
    other = Caller(user=UserId("mallory"))
    for wrong in ({"caller": other}, {"tool": "old__sample"}, {"requestState": "waiting:made-up"}):
        arguments: dict[str, Any] = {"tool": "old__elicit", **again, **wrong}
        with pytest.raises(InvalidCall, match="has expired, or was another"):
            await desk.call(**arguments)
    result = await desk.call("old__elicit", **again)
    assert result["structuredContent"] == {"answer": ANSWERS["elicitation/create"]}
    with pytest.raises(InvalidCall, match="has expired"):
        await desk.call("old__elicit", **again)


async def test_the_state_of_one_server_is_never_given_to_another(desk: Desk) -> None:
    with pytest.raises(InputRequired) as asked:
        await desk.call("new__elicit", client=newest())
    assert asked.value.state is not None
    forged = asked.value.state.replace("new", "other")
    with pytest.raises(InvalidCall, match="doesn't belong to this call"):
        await desk.call("new__elicit", client=newest(), inputResponses={}, requestState=forged)


async def test_a_call_that_nobody_comes_back_for_is_called_off_at_the_server(desk: Desk) -> None:
    with pytest.raises(InputRequired) as asked:
        await desk.call("old__elicit", client=newest())
    suspended = desk.gateway.downstream.forward.suspended
    [entry] = suspended._entries.values()
    task = entry.suspended._task
    assert task is not None
    run_out_of_time(desk.fleet.servers["old"])
    await asyncio.wait([task])
    given = dict.fromkeys(asked.value.requests, ANSWERS["elicitation/create"])
    with pytest.raises(ServerTooSlow):
        await desk.call("old__elicit", client=newest(), inputResponses=given, requestState=asked.value.state)
    assert len(suspended) == 0


async def test_calling_off_the_second_round_calls_off_the_whole(desk: Desk) -> None:
    with pytest.raises(InputRequired) as asked:
        await desk.call("old__elicit", client=newest())
    # Without answers it is asked again, under another handle.
    with pytest.raises(InputRequired) as again:
        await desk.call("old__elicit", client=newest(), inputResponses={}, requestState=asked.value.state)
    assert again.value.requests == asked.value.requests
    assert again.value.state != asked.value.state
    call = desk.gateway.downstream.forward.suspended.take(
        str(again.value.state).removeprefix("waiting:"), ("default", "anonymous"), ("tools/call", "old__elicit")
    )
    task = call.cancel_request()
    assert task is not None
    await asyncio.wait([task])
    assert task.cancelled()


async def ask_twice_then_thrice(callbacks: SuspendedCall) -> dict[str, Any]:
    """A server that asks two things at a time, and another afterwards."""
    first = await asyncio.gather(
        callbacks.ask("1", "elicitation/create", {"n": 1}), callbacks.ask("1", "roots/list", {})
    )
    last = await callbacks.ask("2", "elicitation/create", {"n": 2})
    return {"answers": [*first, last]}


async def test_several_questions_at_a_time_and_in_turn_are_asked_as_they_come() -> None:
    call = SuspendedCall(newest(), "old")
    with pytest.raises(InputRequired) as both:
        await call.start(ask_twice_then_thrice)
    assert [request["method"] for request in both.value.requests.values()] == ["elicitation/create", "roots/list"]
    one, other = both.value.requests
    with pytest.raises(InputRequired) as rest:
        await call.resume(newest(), {one: {"a": 1}, "nobody asked": {}})
    assert list(rest.value.requests) == [other]
    with pytest.raises(InputRequired) as last:
        await call.resume(newest(), {other: {"a": 2}})
    [name] = last.value.requests
    assert await call.resume(newest(), {name: {"a": 3}}) == {"answers": [{"a": 1}, {"a": 2}, {"a": 3}]}


async def test_an_answer_that_is_no_object_is_an_error_for_the_server() -> None:
    call = SuspendedCall(newest(), "old")
    with pytest.raises(InputRequired) as asked:
        await call.start(lambda callbacks: callbacks.ask("1", "elicitation/create", {}))
    with pytest.raises(InvalidCall, match="must be an object"):
        await call.resume(newest(), dict.fromkeys(asked.value.requests, "yes"))


async def test_one_caller_does_not_take_all_places() -> None:
    suspended = SuspendedCalls()
    try:
        for number in range(MAX_SUSPENDED_PER_CALLER):
            suspended.add(SuspendedCall(newest(), "old"), "one", number, 60)
        with pytest.raises(Overloaded):
            suspended.add(SuspendedCall(newest(), "old"), "one", "more", 60)
        suspended.add(SuspendedCall(newest(), "old"), "other", "more", 60)
    finally:
        await suspended.close()
    assert len(suspended) == 0


async def test_what_waits_too_long_is_given_up() -> None:
    suspended = SuspendedCalls()
    call = SuspendedCall(newest(), "old")
    with pytest.raises(InputRequired):
        await call.start(lambda callbacks: callbacks.ask("1", "elicitation/create", {}))
    suspended.add(call, "one", "it", 0.01)
    await eventually(lambda: len(suspended) == 0)
    task = call.cancel_request()
    assert task is not None
    await asyncio.wait([task])
    assert task.cancelled()
