"""A server that asks its clients without saying which: each is asked only what his own call is about."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from refdesk.downstream.connection import leases
from refdesk.downstream.connection.connection import Connection
from refdesk.errors import ServerGone
from tests.downstream.connecting import call, run_connection
from tests.downstream.servers import talkative
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


class Person:
    """A client with a name, who answers only when everybody has been asked."""

    def __init__(self, name: str, everybody: asyncio.Barrier | None = None) -> None:
        self.key = name
        self.asked = 0
        self._everybody = everybody

    async def tell(self, method: str, params: Mapping[str, Any]) -> None: ...

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked += 1
        if self._everybody is not None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._everybody.wait()
        return {"action": "accept", "content": {"name": self.key}}


async def name_by(connection: Connection, person: Person) -> str:
    result = await connection.request("tools/call", {"name": "elicit", "arguments": {}}, callbacks=person)
    return str(result["structuredContent"]["answer"]["content"]["name"])


async def test_clients_at_a_time_are_each_asked_their_own() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, watcher):
        assert await name_by(connection, Person("first")) == "first"
        everybody = asyncio.Barrier(3)
        people = [Person(name, everybody) for name in ("Ann", "Ben", "Cas")]
        assert await asyncio.gather(*(name_by(connection, person) for person in people)) == ["Ann", "Ben", "Cas"]
        assert [person.asked for person in people] == [1, 1, 1]
        assert connection.describe()["sessions"] == 3
        assert connection.describe()["restarts"] == 0
        assert watcher.states == ["Starting", "Running"]


async def test_more_clients_than_sessions_have_their_turn() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        await name_by(connection, Person("first"))
        names = [f"client {number}" for number in range(12)]
        assert await asyncio.gather(*(name_by(connection, Person(name)) for name in names)) == names
        assert connection.describe()["sessions"] <= leases.MAX_SESSIONS


async def test_clients_are_asked_while_the_first_question_is_open_and_whoever_is_not_asked_is_served() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        everybody = asyncio.Barrier(leases.MAX_SESSIONS)
        echo = {"name": "echo", "arguments": {"text": "here"}}
        await connection.request("tools/call", echo, callbacks=Person("passer-by"))
        first = Person("first", everybody)
        held = [asyncio.create_task(name_by(connection, first))]
        await eventually(lambda: first.asked)
        names = [str(number) for number in range(12)]
        assert await asyncio.gather(*(name_by(connection, Person(name)) for name in names)) == names
        held += [asyncio.create_task(name_by(connection, Person(name, everybody))) for name in ("second", "third")]
        await eventually(lambda: everybody.n_waiting == leases.MAX_SESSIONS - 1)
        queued = asyncio.create_task(name_by(connection, Person("queued")))
        calls = (connection.request("tools/call", echo, callbacks=Person(name)) for name in names)
        for result in await asyncio.gather(*calls):
            assert result["content"][0]["text"] == "here"
        assert not queued.done()
        await everybody.wait()
        assert await asyncio.gather(*held, queued) == ["first", "second", "third", "queued"]


async def test_the_calls_of_one_client_share_a_session() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        person = Person("Ann")
        await name_by(connection, person)
        assert await asyncio.gather(*(name_by(connection, person) for _ in range(20))) == ["Ann"] * 20
        assert connection.describe()["sessions"] == 1


async def test_a_server_that_never_asks_has_one_session_for_all() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        people = [Person(str(number)) for number in range(10)]
        await asyncio.gather(
            *(
                connection.request("tools/call", {"name": "echo", "arguments": {}}, callbacks=person)
                for person in people
            )
        )
        assert connection.describe()["sessions"] == 1


async def test_a_server_that_says_whose_call_it_asks_about_has_one_session_too() -> None:
    async with talkative("http", era="legacy") as settings, run_connection(settings) as (connection, _):
        everybody = asyncio.Barrier(3)
        people = [Person(name, everybody) for name in ("Ann", "Ben", "Cas")]
        assert await asyncio.gather(*(name_by(connection, person) for person in people)) == ["Ann", "Ben", "Cas"]
        assert connection.describe()["sessions"] == 1


async def test_a_client_that_waits_for_his_turn_can_be_called_off() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        await name_by(connection, Person("first"))
        everybody = asyncio.Barrier(leases.MAX_SESSIONS)
        people = [Person(str(number), everybody) for number in range(leases.MAX_SESSIONS - 1)]
        answers = [asyncio.create_task(name_by(connection, person)) for person in people]
        await eventually(lambda: everybody.n_waiting == leases.MAX_SESSIONS - 1)
        late = asyncio.create_task(name_by(connection, Person("late")))
        later = asyncio.create_task(name_by(connection, Person("later")))
        await wait_all_tasks_blocked()
        late.cancel()
        await everybody.wait()
        assert await asyncio.gather(*answers) == [person.key for person in people]
        assert await later == "later"
        assert late.cancelled()


async def test_all_sessions_are_replaced_when_they_die() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        await name_by(connection, Person("first"))
        everybody = asyncio.Barrier(4)
        people = [Person(name, everybody) for name in ("Ann", "Ben", "Cas")]
        asking = [asyncio.create_task(name_by(connection, person)) for person in people]
        await eventually(lambda: everybody.n_waiting == 3)
        for session_task in list(connection.sessions):
            session_task.peer.on_close(ServerGone("killed"))
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert all(isinstance(result, ServerGone) for result in results)
        assert await name_by(connection, Person("again")) == "again"
        assert await call(connection, "echo", text="x")


async def test_a_session_that_nobody_needs_is_closed() -> None:
    async with (
        talkative("stdio", era="legacy") as settings,
        run_connection(settings, extra_session_seconds=0.05) as (connection, _),
    ):
        await name_by(connection, Person("first"))
        everybody = asyncio.Barrier(2)
        await asyncio.gather(*(name_by(connection, Person(name, everybody)) for name in ("Ann", "Ben")))
        await eventually(lambda: len(connection.sessions) == 1)
        assert await name_by(connection, Person("after")) == "after"


class Slow(Person):
    """Answers when he is told to."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.may_answer = asyncio.Event()

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked += 1
        await self.may_answer.wait()
        return {"action": "accept", "content": {"name": self.key}}


async def test_what_one_call_asks_outlives_another_call_of_the_same_client() -> None:
    async with talkative("stdio", era="legacy") as settings, run_connection(settings) as (connection, _):
        person = Slow("Ann")
        asking = asyncio.create_task(name_by(connection, person))
        hanging = asyncio.create_task(
            connection.request("tools/call", {"name": "cancel_me", "arguments": {}}, callbacks=person)
        )
        await eventually(lambda: person.asked == 1)
        hanging.cancel()
        await asyncio.wait({hanging})
        person.may_answer.set()
        assert await asking == "Ann"
