"""Calls passed on to a server that does what real ones seldom do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest
from anyio import wait_all_tasks_blocked

from refdesk.calls import SILENT, Call, Client, InputRequired
from refdesk.config.server_model import McpServerConfig
from refdesk.config.types import Url
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.session import ServerProfile
from refdesk.errors import InvalidArguments, ServerTalksNonsense
from refdesk.tools.input_requests import MAX_ROUNDS
from refdesk.tools.proxied import Forwarder
from tests.tools.gateways import Talker

pytestmark = pytest.mark.anyio

ELICIT = {"elicitation/create": {"action": "accept", "content": {}}}
ASKING = {
    "resultType": "input_required",
    "inputRequests": {"a": {"method": "elicitation/create", "params": {"message": "?"}}},
    "requestState": "s",
}


class Server:
    """A connection whose answers are scripted."""

    name = "scripted"
    settings = McpServerConfig(url=Url("http://127.0.0.1/mcp"))

    def __init__(self, answer: Callable[..., Awaitable[dict[str, Any]]], version: str | None = "2025-11-25") -> None:
        self.server_profile = ServerProfile(version, {}) if version is not None else None
        self.requests: list[tuple[Mapping[str, Any], Any]] = []
        self._answer = answer

    async def request(
        self, method: str, params: Mapping[str, Any], *, callbacks: Any, token: Any, capabilities: Any
    ) -> dict[str, Any]:
        self.requests.append((params, capabilities))
        return await self._answer(callbacks)


async def forward_call(forwarder: Forwarder, server: Server, client: Client = SILENT, **params: Any) -> dict[str, Any]:
    call = Call("tools/call", {"name": "tool", **params}, client=client)
    return await forwarder(call, cast(Connection, server), "tools/call", dict(call.params))


def always(answer: dict[str, Any]) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    async def give(callbacks: Any) -> dict[str, Any]:
        return dict(answer)

    return give


async def test_a_server_that_asks_without_end_is_given_up() -> None:
    server = Server(always(ASKING), "2026-07-28")
    client = Talker(ELICIT)
    with pytest.raises(ServerTalksNonsense, match="10 times"):
        await forward_call(Forwarder(), server, client)
    assert len(client.asked) == MAX_ROUNDS
    params, capabilities = server.requests[-1]
    assert params["inputResponses"] == {"a": ELICIT["elicitation/create"]}
    assert params["requestState"] == "s"
    assert capabilities.keys() == {"elicitation"}


async def test_a_server_may_ask_up_to_the_limit() -> None:
    client = Talker(ELICIT)

    async def ask_while_allowed(callbacks: Any) -> dict[str, Any]:
        return dict(ASKING) if len(client.asked) < MAX_ROUNDS else {"content": []}

    assert await forward_call(Forwarder(), Server(ask_while_allowed, "2026-07-28"), client) == {"content": []}
    assert len(client.asked) == MAX_ROUNDS


@pytest.mark.parametrize("requests", [None, [], {"a": 1}, {"a": {"method": 5}}, {"a": {}}])
async def test_a_server_that_asks_for_nothing_in_particular_is_not_understood(requests: Any) -> None:
    server = Server(always({"resultType": "input_required", "inputRequests": requests}), "2026-07-28")
    for client in (Talker(ELICIT), Talker(ELICIT, uses_input_required=True)):
        with pytest.raises(ServerTalksNonsense, match="without saying which"):
            await forward_call(Forwarder(), server, client)


async def test_the_words_of_the_newest_revision_are_for_its_clients_only() -> None:
    server = Server(always({"resultType": "complete", "content": [], "more": 1}), "2026-07-28")
    assert await forward_call(Forwarder(), server) == {"content": [], "more": 1}
    assert "resultType" in await forward_call(Forwarder(), server, Talker(uses_input_required=True))


@pytest.mark.parametrize("does_ask", [True, False])
async def test_a_server_that_was_never_greeted_may_turn_out_to_speak_either(does_ask: bool) -> None:
    async def ask(callbacks: Any) -> dict[str, Any]:
        return {"content": [], "answer": await callbacks.ask("1", "elicitation/create", {})}

    client, forwarder = Talker(ELICIT, uses_input_required=True), Forwarder()
    server = Server(ask if does_ask else always(ASKING), None)
    with pytest.raises(InputRequired) as asked:
        await forward_call(forwarder, server, client)
    assert asked.value.state is not None
    assert asked.value.state.startswith("waiting:" if does_ask else "server:scripted:s")
    await forwarder.suspended.close()


async def test_no_task_is_made_for_a_client_that_cannot_be_asked_by_ending_its_call() -> None:
    tasks: list[Any] = []

    async def note(callbacks: Any) -> dict[str, Any]:
        tasks.append(asyncio.current_task())
        return {}

    own = asyncio.current_task()
    older, newest = Server(note), Server(note, "2026-07-28")
    asked_by_ending, silent_newest = Talker(ELICIT, uses_input_required=True), Talker(uses_input_required=True)
    for server, client in ((older, SILENT), (older, Talker(ELICIT)), (older, silent_newest), (newest, asked_by_ending)):
        await forward_call(Forwarder(), server, client)
    assert tasks == [own] * 4
    await forward_call(Forwarder(), older, asked_by_ending)
    assert tasks[-1] is not own


async def test_nobody_hears_progress_who_has_been_asked_and_is_away() -> None:
    async def tell_and_ask(callbacks: Any) -> dict[str, Any]:
        await callbacks.tell("notifications/progress", {"progress": 1})
        asking = asyncio.ensure_future(callbacks.ask("1", "elicitation/create", {}))
        await was_away.wait()
        await callbacks.tell("notifications/progress", {"progress": 2})
        await asking
        await callbacks.tell("notifications/progress", {"progress": 3})
        await callbacks.tell("notifications/progress", {"progress": "much"})
        await callbacks.tell("notifications/message", {"level": "loud", "data": 1})
        return {}

    was_away = asyncio.Event()
    first, second, forwarder = (
        Talker(ELICIT, uses_input_required=True),
        Talker(ELICIT, uses_input_required=True),
        Forwarder(),
    )
    server = Server(tell_and_ask)
    with pytest.raises(InputRequired) as asked:
        await forward_call(forwarder, server, first)
    was_away.set()
    await wait_all_tasks_blocked()
    given = dict.fromkeys(asked.value.requests, ELICIT["elicitation/create"])
    await forward_call(forwarder, server, second, inputResponses=given, requestState=asked.value.state)
    assert first.heard == [("progress", 1, None, None)]
    assert second.heard == [("progress", 3, None, None), ("log", "info", 1, None)]


@pytest.mark.parametrize(
    "result",
    [
        {"content": None},
        {"content": {"type": "text"}},
        {"content": ["text"]},
        {"content": [{"type": "text"}]},
        {"content": [{"type": "text", "text": 5}]},
        {"content": [], "_meta": [1]},
    ],
)
async def test_a_result_that_would_harm_those_who_look_at_it_goes_no_further(result: dict[str, Any]) -> None:
    with pytest.raises(ServerTalksNonsense, match="malformed"):
        await forward_call(Forwarder(), Server(always(result)))


async def test_the_end_of_the_desk_ends_calls_whose_clients_are_away() -> None:
    ended = asyncio.Event()

    async def ask(callbacks: Any) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await callbacks.ask("1", "elicitation/create", {})
        finally:
            ended.set()
        return answer

    forwarder = Forwarder()
    with pytest.raises(InputRequired):
        await forward_call(forwarder, Server(ask), Talker(ELICIT, uses_input_required=True))
    await forwarder.suspended.close()
    assert ended.is_set()


@pytest.mark.parametrize("meta", [5, None, "progressToken", ["progressToken"]])
@pytest.mark.parametrize("client", [SILENT, Talker()])
async def test_what_stands_beside_the_arguments_has_to_be_an_object(meta: Any, client: Client) -> None:
    server = Server(always({"content": []}))
    with pytest.raises(InvalidArguments, match="_meta"):
        await forward_call(Forwarder(), server, client, _meta=meta)
    assert server.requests == []
