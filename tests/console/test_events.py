"""What is told while somebody looks: documents on their way in, to those alone whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from refdesk.calls import ANONYMOUS, CONSOLE, DEFAULT_TENANT, Caller, TenantId, UserId
from refdesk.console.feed import MAX_STREAMS, MAX_STREAMS_PER_CALLER, DocumentTracker, Feed
from refdesk.engines.base import CollectionInfo, DocumentStatus, Engine, Listing
from refdesk.policy.keys import FILE_NAME, KeyFile
from refdesk.telemetry.metric_history import History
from tests.conftest import Serve
from tests.console.asking import act, bearer, bring
from tests.console.events import Events, listening
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEYS = [
    {"key": "k-acme", "user": "ann", "tenant": "acme"},
    {"key": "k-beta", "user": "bob", "tenant": "beta"},
    {"key": "k-convert", "user": "con", "tenant": "acme", "toolsets": ["convert"]},
]


def includes_document(id: str) -> object:
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
        for events in (acme, beta):
            await events.until(lambda events: events.of("documents"))  # a document that is in before isn't told of
        first = await bring(server, "# Foxes\n\nThey dig.", "Foxes", key="k-acme", collection_id="animals")
        second = await bring(server, "# Bees\n\nThey hum.", "Bees", key="k-beta", collection_id="insects")
        await acme.until(includes_document(first))
        await beta.until(includes_document(second))
        await acme.until(lambda events: events.of("collections"))
        assert {each["id"] for each in acme.documents()} == {first}
        assert {each["id"] for each in beta.documents()} == {second}
        assert acme.of("documents")[-1] == acme.of("documents")[-1] | {"queue": 0, "total": 1}
        server.desk.metrics.on_breaker_change("r2r", "open")
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
            await events.until(lambda events: events.received)
            KeyFile(tmp_path / "data" / FILE_NAME).remove("ann")  # as another process does it
            await events.wait_for_end()
            assert not other.is_over


async def test_a_desk_that_stops_ends_all_streams(serve: Serve) -> None:
    async with serve(embedding__source="none") as server, listening(server.http) as events:
        await events.until(lambda events: events.received)
        server.app.drain()
        await events.wait_for_end()


async def test_only_so_many_streams_are_open(serve: Serve) -> None:
    async with serve(auth__keys=KEYS, embedding__source="none") as server:
        console = server.desk.console
        assert console is not None
        ann = Caller(user=UserId("ann"), tenant=TenantId("acme"))

        async def status(key: str) -> int:
            async with server.http.stream("GET", "/api/console/events", headers=bearer(key)) as answer:
                return answer.status_code

        async def can_open() -> bool:
            return await status("k-acme") == 200

        with ExitStack() as watches:
            for number in range(MAX_STREAMS):
                watches.enter_context(console.feed.open_feed_subscription(Caller(user=UserId(f"user {number}"))))
            full = await server.http.get("/api/console/events")
            assert full.status_code == 503
            assert int(full.headers["retry-after"]) >= 1
        with ExitStack() as watches:
            for _ in range(MAX_STREAMS_PER_CALLER - 1):
                watches.enter_context(console.feed.open_feed_subscription(ann))
            async with listening(server.http, **bearer("k-acme")):
                assert await status("k-acme") == 429
                assert await status("k-beta") == 200
            # The server notices that a client has left once it has read so from the socket.
            await eventually(can_open)


async def test_nobody_asks_the_engine_while_nobody_looks(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        console = server.desk.console
        assert console is not None
        engine = CountedEngine(server.desk.engine)
        port = cast(Engine, engine)
        history = History(server.desk.metrics, leave_out=CONSOLE)
        feed = Feed(port, console.servers, console.rights, history, lambda caller, tool: True, lambda data: data)
        await feed.sample()
        await bring(server, "# Foxes\n\nThey dig.", "Foxes")
        assert engine.asked == {"listen"}
        with feed.open_feed_subscription(ANONYMOUS) as watch:
            told = Events()
            told.received = [*(await watch.next() or ())]
            assert told.of("documents")
            await feed.sample()
            told.received = [*(await watch.next() or ())]
            # How many there are is another matter: the manual may be on its way in.
            assert told.of("metrics")[-1]["sample"]["queue"] is not None
        assert {"documents", "waiting"} <= engine.asked


class CountedEngine:
    """An engine that notes which of its methods are looked up."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._engine, name)


class OneDocument:
    """An engine with one document whose status the test sets."""

    def __init__(self, status: DocumentStatus) -> None:
        self.status = status

    async def documents(self, tenant: TenantId, listing: Listing) -> tuple[Sequence[DocumentStatus], int]:
        is_listed = not listing.statuses or self.status.status in listing.statuses
        return ([self.status], 1) if is_listed else ([], 0)

    async def wait(self, tenant: TenantId, document_ids: Sequence[str], *, seconds: float) -> Sequence[DocumentStatus]:
        return [self.status]

    def cached_collections(self, tenant: TenantId) -> Sequence[CollectionInfo]:
        return []


async def test_every_step_of_a_document_is_told_until_it_is_in() -> None:
    now = datetime.now(UTC)
    start = DocumentStatus("plant/long.md", "plant", "Long", "embedding", 0.5, now, now, chunks=9)
    engine = OneDocument(start)
    arrivals = DocumentTracker(cast(Engine, engine), DEFAULT_TENANT)
    told = [await arrivals.poll(), await arrivals.poll_progress()]
    engine.status = replace(start, embedded=4)
    told.append(await arrivals.poll_progress())
    engine.status = replace(start, status="success", embedded=9)
    told += [await arrivals.poll_progress(), await arrivals.poll_progress()]
    seen = [each and (each["queue"], each["documents"][0]["status"], each["documents"][0]["embedded"]) for each in told]
    assert seen == [(1, "embedding", 0), None, (1, "embedding", 4), (0, "success", 9), None]


async def test_a_browser_that_does_not_read_is_told_the_last_state_and_nothing_is_kept_for_it(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        console = server.desk.console
        assert console is not None
        with console.feed.open_feed_subscription(ANONYMOUS) as watch:
            assert await watch.next()
            ids = [await bring(server, f"# Text {n}\n\nWords {n}.", f"Text {n}") for n in range(3)]
            told = Events()
            told.received = [*(await watch.next() or ())]
            assert {each["id"]: each["status"] for each in told.documents()} == dict.fromkeys(ids, "success")
            assert len(told.of("documents")) == 1
