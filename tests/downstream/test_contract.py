"""The contract of all ways to a server, on each of them, against a server that is a process of its own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import pytest

from refdesk.config.server_model import McpServerConfig
from refdesk.errors import (
    ClientCannot,
    DependencyError,
    InvalidCall,
    ServerAway,
    ServerGone,
    ServerRefused,
    ServerTalksNonsense,
)
from tests.downstream.contract import Belongings, Caller, Conversation, Owner, conversation
from tests.downstream.servers import KINDS, Kind, Running, official, running_talkative, talkative
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

NETWORK: tuple[Kind, ...] = ("http", "sse", "websocket")
MEGABYTE = 2**20


@dataclass(frozen=True)
class Way:
    """One way to the server."""

    kind: Kind
    shared: Running

    @asynccontextmanager
    async def open(self, owner: Owner | None = None, **more: Any) -> AsyncIterator[Conversation]:
        """A conversation with the server that all tests share, where it is one that can be shared."""
        async with self.settings(**more) as settings, conversation(settings, owner) as talk:
            yield talk

    @asynccontextmanager
    async def open_alone(self, owner: Owner | None = None) -> AsyncIterator[Conversation]:
        """A conversation with a server of its own, which may be killed."""
        async with talkative(self.kind) as settings, conversation(settings, owner) as talk:
            yield talk

    @asynccontextmanager
    async def settings(self, **more: Any) -> AsyncIterator[McpServerConfig]:
        """What is set for it."""
        if self.kind == "stdio":
            async with talkative("stdio", **more) as settings:
                yield settings
        else:
            yield self.shared.settings(self.kind, **more)


@pytest.fixture(scope="module")
async def shared() -> AsyncIterator[Running]:
    """The network doors of one server, for all tests that leave it as it is."""
    async with running_talkative() as running:
        yield running


@pytest.fixture(params=KINDS)
def way(request: pytest.FixtureRequest, shared: Running) -> Way:
    """Each of the ways in turn."""
    return Way(request.param, shared)


async def test_a_request_gets_its_answer(way: Way) -> None:
    async with way.open() as talk:
        assert talk.initialize_result["serverInfo"]["name"] == "talkative"
        listed = await talk.peer.request("tools/list")
        assert [tool["name"] for tool in listed["tools"]][:2] == ["echo", "sleep_ms"]
        assert listed["nextCursor"] == "from-10"


async def test_text_comes_back_as_it_went(way: Way) -> None:
    texts = ["", "plain", "line\nbreak\r\n", "\u2028 \u0085 \x00", "naïve 漢字 🦉", 'data: {"id": 1}\n\n']
    async with way.open() as talk:
        for text in texts:
            assert await talk.text_of("echo", text=text) == text


async def test_each_of_two_hundred_requests_at_a_time_gets_its_own_answer(way: Way) -> None:
    async with way.open() as talk:
        texts = [f"number {number}" for number in range(200)]
        assert await asyncio.gather(*(talk.text_of("echo", text=text) for text in texts)) == texts
        assert not talk.peer._pending


async def test_a_quick_answer_does_not_wait_for_a_slow_one(way: Way) -> None:
    async with way.open() as talk:
        [slow] = await talk.begin(1)
        assert await talk.text_of("echo", text="quick") == "quick"
        assert not slow.done()
        slow.cancel()
        await asyncio.wait([slow])


async def test_what_is_told_during_a_call_comes_in_order_and_before_its_answer(way: Way) -> None:
    caller = Caller()
    async with way.open() as talk:
        await talk.call("progress", caller, steps=50)
        assert [params["progress"] for _, params in caller.told] == list(range(1, 51))
        await talk.call("log", caller, text="words")
        assert caller.told[-1] == ("notifications/message", {"level": "info", "logger": "talkative", "data": "words"})


async def test_what_is_told_goes_to_whose_call_it_is(way: Way) -> None:
    callers = [Caller(key=number) for number in range(10)]
    async with way.open() as talk:
        await asyncio.gather(*(talk.call("progress", caller, steps=n) for n, caller in enumerate(callers)))
        assert [len(caller.told) for caller in callers] == list(range(10))


@pytest.mark.parametrize(
    ("tool", "method", "answer"),
    [
        ("elicit", "elicitation/create", {"action": "accept", "content": {"name": "Ada"}}),
        ("sample", "sampling/createMessage", {"role": "assistant", "content": {"type": "text", "text": "Hi"}}),
        ("roots", "roots/list", {"roots": [{"uri": "file:///home"}]}),
    ],
)
async def test_a_question_of_the_server_is_answered_by_whose_call_it_is(
    way: Way, tool: str, method: str, answer: dict[str, Any]
) -> None:
    caller = Caller({method: answer})
    async with way.open() as talk:
        result = await talk.call(tool, caller)
        assert result["structuredContent"] == {"answer": answer}
        assert [asked for asked, _ in caller.asked] == [method]


async def test_a_caller_who_cannot_answer_says_so_to_the_server(way: Way) -> None:
    async with way.open() as talk:
        result = await talk.call("elicit", Caller({"elicitation/create": ClientCannot("Nobody is here")}))
        error = result["structuredContent"]["answer"]["error"]
        assert (error["message"], error["data"]["type"]) == ("Nobody is here", "ClientCannot")


async def test_a_question_that_the_server_takes_back_is_no_longer_asked(way: Way) -> None:
    caller = Caller({"elicitation/create": None})
    async with way.open() as talk:
        calling = asyncio.create_task(talk.call("change_mind", caller))
        await caller.is_spoken_to()
        await talk.call("nudge")
        await caller.is_hushed()
        assert not calling.done()
        await talk.call("nudge")
        assert (await calling)["content"][0]["text"] == "never mind"


async def test_the_server_hears_that_a_call_is_called_off(way: Way) -> None:
    async with way.open() as talk:
        ended = (await talk.call("was_cancelled"))["structuredContent"]["cancelled"]
        [calling] = await talk.begin(1)
        calling.cancel()
        await asyncio.wait([calling])
        waited = await talk.call("was_cancelled", at_least=len(ended) + 1, wait_ms=PATIENCE_SECONDS * 1000)
        assert waited["structuredContent"]["cancelled"][len(ended) :] == ["told: The caller no longer waits for it"]
        assert await talk.text_of("echo", text="and on") == "and on"


async def test_errors_keep_their_code_and_data(way: Way) -> None:
    async with way.open() as talk:
        with pytest.raises(ServerRefused, match="The protocol said no") as refused:
            await talk.call("rpc_error")
        assert (refused.value.code, refused.value.given) == (-32050, {"why": "because", "deep": {"list": [1, 2]}})
        with pytest.raises(ServerRefused) as refused:
            await talk.peer.request("no/such/method")
        assert refused.value.code == -32601
        assert (await talk.call("tool_error"))["isError"] is True


async def test_what_cannot_be_sent_concerns_nothing_else(way: Way) -> None:
    async with way.open() as talk:
        with pytest.raises(InvalidCall, match="JSON"):
            await talk.call("echo", text={"a", "set"})
        assert await talk.text_of("echo", text="still here") == "still here"
        result = await talk.peer.request("tools/call", MappingProxyType({"name": "pid"}))
        assert result["content"][0]["text"].isdigit()


async def test_a_notification_outside_of_any_call_reaches_the_owner(way: Way) -> None:
    async with way.open() as talk:
        await talk.call("grow")
        await talk.owner.has_noticed("notifications/tools/list_changed")
        await talk.peer.request("resources/subscribe", {"uri": "talk://document/3"})
        await talk.call("touch", uri="talk://document/3")
        await talk.owner.has_noticed("notifications/resources/updated")


async def test_large_messages_pass_both_ways(way: Way) -> None:
    text = "x" * (3 * MEGABYTE)
    async with way.open() as talk:
        assert await talk.text_of("echo", text=text) == text


async def test_an_answer_over_the_limit_fails_its_call_and_at_most_the_connection(way: Way) -> None:
    async with way.open(max_message_bytes=MEGABYTE) as talk:
        assert len(await talk.text_of("big", n=MEGABYTE // 2)) == MEGABYTE // 2
        with pytest.raises(ServerTalksNonsense, match=str(MEGABYTE)):
            await talk.call("big", n=4 * MEGABYTE)
        if talk.owner.losses:
            assert len(talk.owner.losses) == 1
        else:
            assert await talk.text_of("echo", text="still here") == "still here"


async def test_garbage_is_counted_and_changes_nothing(way: Way) -> None:
    async with way.open() as talk:
        assert await talk.text_of("garbage") == "sorry"
        assert talk.peer.garbage >= 8
        assert await talk.text_of("echo", text="still here") == "still here"
        assert talk.owner.losses == []


async def test_a_server_that_dies_fails_what_is_under_way_at_once(way: Way) -> None:
    async with way.open_alone() as talk:
        calls = await talk.begin(5)
        with pytest.raises(ServerGone):
            await talk.call("die")
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            assert type(failed) is ServerGone
        if way.kind != "http":  # there a server that is gone may come back, and only then knows no session
            await talk.owner.has_lost()
        with pytest.raises(DependencyError):
            await talk.call("echo")
        assert not talk.peer._pending
    assert len(talk.owner.losses) == 1


async def test_over_http_a_server_that_was_started_anew_has_lost_the_session() -> None:
    async with running_talkative() as running, conversation(running.settings("http")) as talk:
        running.process.kill()
        await running.process.wait()
        async with running_talkative(port=running.port):
            with pytest.raises(ServerGone):
                await talk.call("echo")
            await talk.owner.has_lost()
    assert len(talk.owner.losses) == 1


async def test_closing_leaves_nothing_behind(way: Way) -> None:
    async with way.settings() as settings:
        async with conversation(settings):
            pass  # what is only loaded or made once is there now
        before = Belongings.now()
        for _ in range(3):
            async with conversation(settings) as talk:
                await talk.call("progress", Caller())
                assert talk.owner.losses == []
            assert [type(loss) for loss in talk.owner.losses] == [ServerGone]
        await before.are_all()


async def test_closing_fails_what_is_under_way_and_leaves_nothing_behind(way: Way) -> None:
    async with way.settings() as settings:
        async with conversation(settings):
            pass
        before = Belongings.now()
        async with conversation(settings) as talk:
            calls = await talk.begin(5)
        for failed in await asyncio.gather(*calls, return_exceptions=True):
            assert type(failed) is ServerGone
        assert len(talk.owner.losses) == 1
        with pytest.raises(ServerGone):
            await talk.call("echo")
        del calls, failed
        await before.are_all()


async def test_an_owner_who_is_cancelled_leaves_nothing_behind(way: Way) -> None:
    owner, is_open = Owner(), asyncio.Event()

    async def own(settings: McpServerConfig) -> None:
        async with conversation(settings, owner):
            is_open.set()
            await asyncio.Event().wait()

    async with way.settings() as settings:
        async with conversation(settings):
            pass
        before = Belongings.now()
        task = asyncio.create_task(own(settings))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_open.wait()
            task.cancel()
            await asyncio.wait([task])
        assert task.cancelled()
        assert len(owner.losses) == 1
        del task
        await before.are_all()


async def test_a_server_that_is_not_there_is_away(way: Way) -> None:
    async with way.settings() as settings:
        with socket.create_server(("127.0.0.1", 0)) as closed_soon:
            nowhere = Running(way.shared.process, closed_soon.getsockname()[1])
        missing = settings.model_copy(update={"command": "/no/such/program"})
        before = Belongings.now()
        with pytest.raises(ServerAway, match="'talkative'"):
            async with conversation(missing if way.kind == "stdio" else nowhere.settings(way.kind)):
                pytest.fail("there is nobody")
        await before.are_all()


@pytest.mark.parametrize("kind", NETWORK)
async def test_a_server_that_says_nothing_can_be_given_up(kind: Kind) -> None:
    arrived = asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        arrived.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
        scheme = "ws" if kind == "websocket" else "http"
        url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        before = Belongings.now()
        task = asyncio.create_task(_talk_once(McpServerConfig(type=kind, url=url)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await arrived.wait()
            task.cancel()
            await asyncio.wait([task])
        del task
        await before.are_all()


@pytest.mark.parametrize("kind", NETWORK)
async def test_the_headers_that_are_set_reach_the_server(kind: Kind, shared: Running) -> None:
    settings = shared.settings(kind, headers={"Authorization": "Bearer tell-nobody", "X-Team": "desk"})
    async with conversation(settings) as talk:
        headers = (await talk.call("headers"))["structuredContent"]["headers"]
        assert (headers["authorization"], headers["x-team"]) == ("Bearer tell-nobody", "desk")


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_server_of_the_official_sdk_can_be_talked_to(kind: Literal["stdio", "http"]) -> None:
    caller = Caller({"elicitation/create": {"action": "accept", "content": {"name": "Ada"}}})
    async with official(kind) as settings, conversation(settings) as talk:
        assert talk.initialize_result["serverInfo"]["name"] == "official"
        texts = [f"number {number}" for number in range(50)]
        assert await asyncio.gather(*(talk.text_of("echo", text=text) for text in texts)) == texts
        await talk.call("steps", caller, count=5)
        assert [params["progress"] for _, params in caller.told] == [1, 2, 3, 4, 5]
        assert (await talk.call("greet", caller))["content"][0]["text"] == "Hello Ada"
        with pytest.raises(ServerRefused) as refused:
            await talk.peer.request("no/such/method")
        assert refused.value.code == -32601
    assert len(talk.owner.losses) == 1


async def _talk_once(settings: McpServerConfig) -> None:
    async with conversation(settings):
        pytest.fail("nobody answered")
