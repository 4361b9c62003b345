"""Questions to clients: to a session over the stream of its call, in the newest revision by ending it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from refdesk.calls import Call, ClientRefused, InputRequired
from refdesk.errors import ClientCannot
from tests.conftest import Serve
from tests.inbound.streaming import (
    ANN,
    ELICIT,
    META,
    REVISIONS,
    SAMPLE,
    RawStream,
    ask_name,
    calling,
    newest_headers,
    offer,
    open_session,
    text_of,
)
from tests.servers import RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(server: RunningServer) -> RunningServer:
    offer(server, "ask", ask_name)
    return server


# Asking in a session


@pytest.mark.parametrize("revision", REVISIONS)
async def test_a_session_is_asked_on_the_stream_and_answers_by_a_request(server: RunningServer, revision: str) -> None:
    session = await open_session(server, revision)
    async with session.stream(calling("ask")) as stream:
        question = await stream.next()
        assert (question["method"], question["params"]) == ("elicitation/create", ELICIT)
        accepted = await session.reply(question["id"], result=ANN)
        assert (accepted.status_code, accepted.content) == (202, b"")
        assert [text_of(message) for message in await stream.rest()] == ["Hello Ann"]


async def test_calls_of_two_sessions_with_the_same_ids_do_not_cross(server: RunningServer) -> None:
    ann, bob = await open_session(server), await open_session(server)
    async with ann.stream(calling("ask")) as to_ann, bob.stream(calling("ask")) as to_bob:
        ask_ann, ask_bob = await to_ann.next(), await to_bob.next()
        # Each says first what it was not asked: nothing happens by that.
        await ann.reply(ask_bob["id"], result={"action": "accept", "content": {"name": "Mallory"}})
        await bob.reply(ask_ann["id"], result={"action": "accept", "content": {"name": "Mallory"}})
        await bob.reply(ask_bob["id"], result={"action": "accept", "content": {"name": "Bob"}})
        await ann.reply(ask_ann["id"], result=ANN)
        assert text_of(await to_bob.next()) == "Hello Bob"
        assert text_of(await to_ann.next()) == "Hello Ann"


async def test_nobody_answers_in_the_session_of_another_key(serve: Serve) -> None:
    keys = [{"key": "key-of-ann", "tenant": "a"}, {"key": "key-of-eve", "tenant": "e"}]
    async with serve(auth__required=True, auth__keys=keys) as server:
        offer(server, "ask", ask_name)
        session = await open_session(server, x_api_key="key-of-ann")
        async with session.stream(calling("ask")) as stream:
            id = (await stream.next())["id"]
            eve = {**session.headers, "x-api-key": "key-of-eve"}
            forged = await server.http.post("/mcp", json={"jsonrpc": "2.0", "id": id, "result": {}}, headers=eve)
            assert forged.status_code == 404
            await session.reply(id, result=ANN)
            assert text_of(await stream.next()) == "Hello Ann"


async def test_what_a_client_declares_is_what_it_can_be_asked(server: RunningServer) -> None:
    async def ask_all(call: Call) -> str:
        able = [
            name for name in ("sampling/createMessage", "elicitation/create", "roots/list") if call.client.can(name)
        ]
        for method, params in (
            ("sampling/createMessage", {**SAMPLE, "tools": [{}]}),
            ("elicitation/create", {"mode": "url"}),
            ("roots/list", {}),
            ("tasks/list", {}),
        ):
            with pytest.raises(ClientCannot):
                await call.client.ask("it", method, params)
        return " ".join(able)

    offer(server, "ask_all", ask_all)
    session = await open_session(server, capabilities={"sampling": {}, "elicitation": {}})
    assert text_of((await session.post(calling("ask_all"))).json()) == "sampling/createMessage elicitation/create"
    nothing = await open_session(server, capabilities={})
    assert text_of((await nothing.post(calling("ask_all"))).json()) == ""


async def test_the_clients_own_error_can_be_passed_on(server: RunningServer) -> None:
    async def forward_error(call: Call) -> str:
        with pytest.raises(ClientRefused) as refused:
            await call.client.ask("it", "sampling/createMessage", SAMPLE)
        return repr(refused.value.error)

    offer(server, "forward_error", forward_error)
    session = await open_session(server)
    error = {"code": -1, "message": "User rejected", "data": {"by": "Ann"}}
    async with session.stream(calling("forward_error")) as stream:
        await session.reply((await stream.next())["id"], error=error)
        assert text_of(await stream.next()) == repr(error)


@pytest.mark.parametrize("answer", [{"result": 5}, {"result": {"action": "maybe"}}, {"error": "no"}])
async def test_an_answer_that_is_none_is_told_to_the_tool(server: RunningServer, answer: dict[str, Any]) -> None:
    session = await open_session(server)
    async with session.stream(calling("ask")) as stream:
        await session.reply((await stream.next())["id"], **answer)
        assert "no usable answer" in text_of(await stream.next())


async def test_a_question_is_withdrawn_when_nobody_waits_for_it_any_more(server: RunningServer) -> None:
    asked = asyncio.Event()

    async def leave(call: Call) -> str:
        """One question is given up while the call goes on, another as it ends."""
        first, second = (
            asyncio.create_task(call.client.ask(name, "elicitation/create", ELICIT)) for name in ("first", "second")
        )
        await asked.wait()
        first.cancel()
        await asyncio.wait([first])
        second.cancel()
        return "left"

    offer(server, "leave", leave)
    session = await open_session(server)
    async with session.stream(calling("leave")) as stream:
        first, second = await stream.next(), await stream.next()
        asked.set()
        withdrawn = [await stream.next() for _ in range(2)]
        assert [note["method"] for note in withdrawn] == ["notifications/cancelled"] * 2
        assert [note["params"]["requestId"] for note in withdrawn] == [first["id"], second["id"]]
        assert text_of(await stream.next()) == "left"
    late = await session.reply(second["id"], result=ANN)
    assert late.status_code == 202, "as any answer that nobody waits for"


async def test_a_question_that_outlasts_its_call_can_be_answered_and_withdrawn(server: RunningServer) -> None:
    """A server behind the desk may have asked about another call of the same client."""
    asking: list[asyncio.Task[Any]] = []
    asked = asyncio.Event()

    async def leave(call: Call) -> str:
        asking.extend(
            asyncio.create_task(call.client.ask(name, "elicitation/create", ELICIT)) for name in ("first", "second")
        )
        await asked.wait()
        return "left"

    offer(server, "leave", leave)
    session = await open_session(server)
    async with session.http.stream("GET", "/mcp", headers=session.headers) as listening:
        async with session.stream(calling("leave")) as stream:
            first, second = await stream.next(), await stream.next()
            asked.set()
            assert text_of(await stream.next()) == "left"
        await session.reply(first["id"], result=ANN)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await asking[0] == ANN
        asking[1].cancel()
        notes = RawStream(listening)
        while (note := await notes.next())["method"] == "notifications/tools/list_changed":
            pass  # of the tool that this test adds
        assert (note["method"], note["params"]["requestId"]) == ("notifications/cancelled", second["id"])


async def test_a_session_that_ends_leaves_no_question_open(server: RunningServer) -> None:
    session = await open_session(server)
    async with session.stream(calling("ask")) as stream:
        await stream.next()
        assert (await server.http.delete("/mcp", headers=session.headers)).status_code == 200
        assert "session ended" in text_of((await stream.rest())[-1])


@pytest.mark.parametrize("revision", ["2025-03-26", "2025-11-25"])
async def test_a_session_is_not_asked_to_call_again(server: RunningServer, revision: str) -> None:
    async def end(call: Call) -> str:
        raise InputRequired({"name": {"method": "elicitation/create", "params": ELICIT}})

    offer(server, "end", end)
    answer = await (await open_session(server, revision)).post(calling("end"))
    assert "elicitation/create" in answer.text
    assert "cannot be asked that way" in answer.text


# Asking in the newest revision


async def test_the_newest_revision_is_asked_by_ending_and_its_state_is_sealed(server: RunningServer) -> None:
    async def resume(call: Call) -> str:
        assert call.client.uses_input_required
        state = call.params.get("requestState")
        if state is None:
            raise InputRequired({"name": {"method": "elicitation/create", "params": ELICIT}}, "page 7")
        return f"{state}, {call.params['inputResponses']['name']['content']['name']}"

    offer(server, "resume", resume)
    headers = newest_headers("resume")
    asked = (await server.http.post("/mcp", json=calling("resume", **META), headers=headers)).json()["result"]
    assert asked["inputRequests"]["name"]["params"] == ELICIT
    assert "page 7" not in asked["requestState"]
    again = calling("resume", **META)
    again["params"] |= {"requestState": asked["requestState"], "inputResponses": {"name": ANN}}
    answered = (await server.http.post("/mcp", json=again, headers=headers)).json()
    assert text_of(answered) == "page 7, Ann"
    again["params"]["arguments"] = {"other": 1}
    assert (await server.http.post("/mcp", json=again, headers=headers)).json()["error"]["code"] == -32602


async def test_the_state_of_one_caller_is_worth_nothing_to_another(serve: Serve) -> None:
    async def resume(call: Call) -> str:
        if "requestState" not in call.params:
            raise InputRequired({}, "mine")
        return str(call.params["requestState"])

    keys = [{"key": "key-of-ann", "tenant": "a"}, {"key": "key-of-eve", "tenant": "e"}]
    async with serve(auth__required=True, auth__keys=keys) as server:
        offer(server, "resume", resume)
        ann, eve = ({**newest_headers("resume"), "x-api-key": f"key-of-{name}"} for name in ("ann", "eve"))
        message = calling("resume", **META)
        asked = await server.http.post("/mcp", json=message, headers=ann)
        message["params"]["requestState"] = asked.json()["result"]["requestState"]
        assert (await server.http.post("/mcp", json=message, headers=eve)).json()["error"]["code"] == -32602
        assert text_of((await server.http.post("/mcp", json=message, headers=ann)).json()) == "mine"


async def test_the_newest_revision_is_not_asked_what_it_does_not_declare(server: RunningServer) -> None:
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    answer = await server.http.post("/mcp", json=calling("ask", **meta), headers=newest_headers("ask"))
    assert answer.json()["error"]["data"]["requiredCapabilities"] == {"elicitation": {}}
