"""What is told while somebody looks: documents on their way in, to those alone whose they are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from refdesk.calls import ANONYMOUS
from refdesk.console import feed
from refdesk.policy.keys import FILE_NAME, KeyFile
from tests.conftest import Serve
from tests.console.asking import act, bearer, bring
from tests.console.events import Events, listening

pytestmark = pytest.mark.anyio

KEYS = [
    {"key": "k-acme", "user": "ann", "tenant": "acme"},
    {"key": "k-beta", "user": "bob", "tenant": "beta"},
    {"key": "k-convert", "user": "con", "tenant": "acme", "toolsets": ["convert"]},
]


def told_of(id: str) -> object:
    return lambda events: any(each["id"] == id and each["status"] == "success" for each in events.documents())


async def test_each_tenant_is_told_of_its_own_documents_alone(serve: Serve) -> None:
    async with (
        serve(auth__required=True, auth__keys=KEYS, embedding__source="none") as server,
        AsyncExitStack() as stack,
    ):
        acme, beta, convert = [
            await stack.enter_async_context(listening(server.http, **bearer(key)))
            for key in ("k-acme", "k-beta", "k-convert")
        ]
        first = await bring(server, "# Foxes\n\nThey dig.", "Foxes", key="k-acme", collection_id="animals")
        second = await bring(server, "# Bees\n\nThey hum.", "Bees", key="k-beta", collection_id="insects")
        await acme.until(told_of(first))
        await beta.until(told_of(second))
        await acme.until(lambda events: events.of("collections"))
        assert {each["id"] for each in acme.documents()} == {first}
        assert {each["id"] for each in beta.documents()} == {second}
        assert acme.of("documents")[-1] == acme.of("documents")[-1] | {"queue": 0, "total": 1}
        server.desk.metrics.breaker_changed("r2r", "open")
        assert not convert.of("documents")
        assert not convert.of("collections")
        assert not convert.of("servers")


async def test_a_document_that_is_taken_away_is_told_by_how_many_are_left(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        id = await bring(server, "# Foxes\n\nThey dig.", "Foxes")
        async with listening(server.http) as events:
            await events.until(lambda events: events.of("documents"))
            assert events.of("documents")[0] == {"documents": [], "queue": 0, "total": 1}
            await act(server, "delete_documents", ids=[id])
            await events.until(lambda events: events.of("documents")[-1]["total"] == 0)


async def test_a_revoked_key_ends_its_stream_and_no_other(serve: Serve, tmp_path: Path) -> None:
    async with serve(embedding__source="none") as server:
        made = await act(server, "make_key", name="ann", roles=["admin"])
        async with listening(server.http, **bearer(made["key"])) as events, listening(server.http) as other:
            await events.until(lambda events: events.told)
            KeyFile(tmp_path / "data" / FILE_NAME).remove("ann")  # as another process does it
            await events.ended()
            assert not other.is_over


async def test_a_desk_that_stops_ends_all_streams(serve: Serve) -> None:
    async with serve(embedding__source="none") as server, listening(server.http) as events:
        await events.until(lambda events: events.told)
        server.app.drain()
        await events.ended()


async def test_only_so_many_streams_are_open(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_OF_ONE", 2)
    monkeypatch.setattr(feed, "MOST_OF_ALL", 3)
    async with serve(auth__keys=KEYS, embedding__source="none") as server:
        async with AsyncExitStack() as stack:
            for _ in range(2):
                await stack.enter_async_context(listening(server.http, **bearer("k-acme")))
            one_more = await server.http.get("/api/console/events", headers=bearer("k-acme"))
            assert one_more.status_code == 429
            await stack.enter_async_context(listening(server.http, **bearer("k-beta")))
            full = await server.http.get("/api/console/events")
            assert full.status_code == 503
            assert int(full.headers["retry-after"]) >= 1
        async with asyncio.timeout(30):
            while True:
                async with server.http.stream("GET", "/api/console/events", headers=bearer("k-acme")) as again:
                    if again.status_code == 200:
                        break
                await asyncio.sleep(0.05)


async def test_nobody_asks_the_engine_while_nobody_looks(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(embedding__source="none") as server:
        await bring(server, "# Foxes\n\nThey dig.", "Foxes")
        engine, asked = server.desk.engine, list[str]()
        for name in ("documents", "wait", "waiting"):
            monkeypatch.setattr(engine, name, _counted(getattr(engine, name), name, asked), raising=False)
        activity = server.desk.console._activity  # type: ignore[union-attr]  # to take a sample without waiting for it
        await activity.take()
        await asyncio.sleep(0.3)
        assert asked == []
        async with listening(server.http) as events:
            await events.until(lambda events: events.of("documents"))
            await activity.take()
            # How many there are is another matter: the manual may be on its way in.
            await events.until(
                lambda events: events.of("metrics")[-1:] and events.of("metrics")[-1]["sample"]["queue"] is not None
            )
        assert {"documents", "waiting"} <= set(asked)


def _counted(method: object, name: str, asked: list[str]) -> object:
    def counted(*arguments: object, **more: object) -> object:
        asked.append(name)
        return method(*arguments, **more)  # type: ignore[operator]  # it is one of the engine's

    return counted


async def test_a_browser_that_does_not_read_is_told_the_last_state_and_nothing_is_kept_for_it(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        console = server.desk.console
        assert console is not None
        with console.watched_by(ANONYMOUS) as watch:
            assert await watch.next()
            ids = [await bring(server, f"# Text {n}\n\nWords {n}.", f"Text {n}") for n in range(3)]
            told = Events()
            told.told = [*(await watch.next() or ())]
            assert {each["id"]: each["status"] for each in told.documents()} == dict.fromkeys(ids, "success")
            assert len(told.of("documents")) == 1
