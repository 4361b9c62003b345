"""R2R goes away, comes back, is slow, is full, or has no models: what callers of a running desk are told meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import anyio
import pytest
from anyio import to_thread

from refdesk.config.models import Config
from refdesk.engines.base import Search
from refdesk.errors import AUTHENTICATION_ERROR, BREAKER_OPEN, ENGINE_ERROR, RATE_LIMITED, RefdeskError
from tests.contracts.engine import ACME, FOXES, HOUNDS, bring, found
from tests.r2r.conftest import OpenEngine
from tests.r2r.lab import Account, Lab
from tests.r2r.lab.proxy import RAG, SEARCH, TOO_MANY, Fault, Proxy
from tests.servers import RunningServer, running_server
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.r2r, pytest.mark.timeout(400)]

FAILURES = 5
"""In a row, after which R2R is left alone: the default."""

COOL_DOWN_SECONDS = 1.0
"""Of the breaker in these tests, so that nobody has to wait for a minute."""

NO_CACHE = {"cache__ttl__search": 0, "cache__ttl__rag": 0, "cache__ttl__list": 0}


@pytest.fixture
def settings_of_desk(way: Proxy, make_config: Callable[..., Config]) -> Config:
    return make_config(way.url, circuit_breaker__timeout_seconds=COOL_DOWN_SECONDS, **NO_CACHE)


@pytest.fixture
async def server(settings_of_desk: Config) -> AsyncIterator[RunningServer]:
    """A desk on R2R with a document in it, of which nothing is kept in a cache."""
    async with running_server(settings_of_desk) as server:
        await ask(server, "r2r_ingest_document", text=FOXES, title="Foxes", collection_id="animals", run_async=False)
        assert (await search(server))["result"]["structuredContent"]["count"] > 0
        yield server


async def ask(server: RunningServer, tool: str, **arguments: Any) -> Any:
    """The answer to a call of a tool, as it is on the wire."""
    return await server.call("tools/call", {"name": tool, "arguments": arguments})


async def search(server: RunningServer, query: str = "fox berries") -> Any:
    return await ask(server, "r2r_search", query=query, collection_id="animals")


async def code_of(server: RunningServer, query: str = "fox berries") -> int:
    """The code of a search's error; zero when it found something."""
    answer = await search(server, query)
    if "error" in answer:
        return int(answer["error"]["code"])
    assert answer["result"]["structuredContent"]["count"] > 0
    return 0


async def codes_until_it_is_left_alone(server: RunningServer) -> list[int]:
    """What searches are told while R2R fails, one after the other."""
    codes = [await code_of(server)]
    while codes[-1] != BREAKER_OPEN:
        codes.append(await code_of(server))
    return codes


async def until_it_works(server: RunningServer) -> None:
    """Search until there is an answer."""

    async def works() -> bool:
        error = (await search(server)).get("error")
        assert error is None or error["code"] in (ENGINE_ERROR, BREAKER_OPEN)
        return error is None

    await eventually(works)


async def wait_until_settled(server: RunningServer, document: str) -> Any:
    """The state of a document, once nothing more is done about it."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            answer = await ask(server, "r2r_monitor_task", document_id=document, wait_seconds=5)
            state = answer["result"]["structuredContent"]
            if state["ingestion_status"] in ("success", "failed"):
                return state


async def test_r2r_is_killed_and_started_again_under_a_running_desk(r2r: Lab, server: RunningServer) -> None:
    r2r.kill()
    try:
        codes = await codes_until_it_is_left_alone(server)
        assert set(codes[:-1]) == {ENGINE_ERROR}
        ready, parts = await server.desk.readiness()
        assert not ready, parts
        taken = await ask(server, "r2r_ingest_document", text=HOUNDS, title="Hounds", collection_id="animals")
    finally:
        await to_thread.run_sync(r2r.restart)
    await until_it_works(server)
    assert (await server.desk.readiness())[0]
    state = await wait_until_settled(server, taken["result"]["structuredContent"]["document_id"])
    assert state["ingestion_status"] == "success"


async def test_while_r2r_is_left_alone_nobody_touches_the_network_and_everybody_is_told_when_to_come_back(
    way: Proxy, make_config: Callable[..., Config]
) -> None:
    async with running_server(make_config(way.url, **NO_CACHE)) as server:
        await ask(server, "r2r_ingest_document", text=FOXES, title="Foxes", collection_id="animals", run_async=False)
        refused: list[dict[str, Any]] = []

        async def one(number: int) -> None:
            refused.append((await search(server, f"fox {number}"))["error"])

        before = len(way.seen)
        with way.fault(Fault(is_reset=True)):
            codes = await codes_until_it_is_left_alone(server)
        assert codes[:-1] == [ENGINE_ERROR] * FAILURES
        seen = len(way.seen)
        assert seen - before == FAILURES * 2, "each search is retried once"
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, number)
        assert len(way.seen) == seen
        assert {error["code"] for error in refused} == {BREAKER_OPEN}
        assert all(0 < error["data"]["retry_after"] <= 60 for error in refused)
        assert all(error["data"]["retryable"] for error in refused)


async def test_a_connection_that_breaks_off_is_tried_again_and_nobody_notices(
    way: Proxy, server: RunningServer
) -> None:
    with way.fault(Fault(SEARCH, is_reset=True, times=1)):
        assert await code_of(server) == 0


async def test_r2r_behind_a_gateway_that_fails_is_an_engine_error_that_may_pass(
    way: Proxy, server: RunningServer
) -> None:
    with way.fault(Fault(SEARCH, status=503)):
        error = (await search(server))["error"]
    assert (error["code"], error["data"]["retryable"], error["data"]["status_code"]) == (ENGINE_ERROR, True, 503)
    await until_it_works(server)


async def test_a_model_that_writes_no_answer_is_told_while_search_goes_on(
    r2r: Lab, way: Proxy, open_engine: OpenEngine
) -> None:
    asked = "What does a fox eat?"
    async with open_engine(way.url) as engine:
        await bring(engine, "Foxes", FOXES)
        with r2r.provider.failing(chat=500):
            with pytest.raises(RefdeskError):
                await engine.writer.answer(ACME, asked, Search(asked))
            assert await found(engine, asked)
        answer = await engine.writer.answer(ACME, asked, Search(asked))
        assert "berries" in answer.text
        assert "[1]" in answer.text
        assert {hit.document.id for hit in answer.hits} == {"animals/foxes"}
        assert way.count(RAG) >= 2


async def test_nobody_waits_longer_than_is_set_for_r2r_to_answer(
    way: Proxy, make_config: Callable[..., Config]
) -> None:
    async with running_server(make_config(way.url, r2r__timeout_seconds=0.5, **NO_CACHE)) as server:
        await ask(server, "r2r_ingest_document", text=FOXES, title="Foxes", collection_id="animals", run_async=False)
        with way.fault(Fault(SEARCH, hangs=True)):
            error = (await search(server))["error"]
    assert (error["code"], error["data"]["retryable"]) == (ENGINE_ERROR, True)


async def test_models_that_fail_are_told_and_forgotten_once_they_work(r2r: Lab, server: RunningServer) -> None:
    asked = {"question": "What does a fox eat?", "collection_id": "animals"}
    with r2r.provider.failing(chat=401):
        refused = await ask(server, "r2r_rag_query", **asked)
    assert "error" in refused or refused["result"].get("isError")
    with r2r.provider.failing(embeddings=401):
        assert (await search(server))["error"]["code"] == ENGINE_ERROR
    await until_it_works(server)
    answer = (await ask(server, "r2r_rag_query", **asked))["result"]["structuredContent"]
    assert "berries" in answer["answer"]


async def test_a_document_that_the_models_fail_on_fails_with_its_cause_and_comes_in_later(
    r2r: Lab, server: RunningServer
) -> None:
    given = {"text": HOUNDS, "title": "Hounds", "collection_id": "animals"}
    with r2r.provider.failing(embeddings=401):
        taken = await ask(server, "r2r_ingest_document", **given)
        document = taken["result"]["structuredContent"]["document_id"]
        failed = await wait_until_settled(server, document)
    assert failed["ingestion_status"] == "failed"
    assert failed["error"]
    again = await ask(server, "r2r_ingest_document", **given)
    assert again["result"]["structuredContent"]["document_id"] == document
    assert (await wait_until_settled(server, document))["ingestion_status"] == "success"


async def test_a_storm_of_refusals_is_not_answered_with_a_storm_of_requests(way: Proxy, server: RunningServer) -> None:
    answers: list[Any] = []
    numbers = count()

    async def one() -> None:
        answers.append((await search(server, f"fox {next(numbers)}")).get("error"))

    before = way.count(SEARCH)
    with way.fault(Fault(SEARCH, status=429, body=TOO_MANY)):
        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(one)
    assert {answer["code"] for answer in answers} == {RATE_LIMITED}
    assert all(0 < answer["data"]["retry_after"] <= 60 for answer in answers)
    assert way.count(SEARCH) - before <= 120


async def test_an_account_that_r2r_limits_is_told_when_to_come_back(
    r2r: Lab, way: Proxy, make_config: Callable[..., Config]
) -> None:
    limited = r2r.account(limits={"global_per_min": 8})
    config = make_config(way.url, r2r__email=limited.email, r2r__password=limited.password, **NO_CACHE)
    async with running_server(config) as server:
        await ask(server, "r2r_ingest_document", text=FOXES, title="Foxes", collection_id="animals", run_async=False)
        answers = [await search(server)]
        while "result" in answers[-1]:
            answers.append(await search(server))
    assert len(answers) > 1
    error = answers[-1]["error"]
    assert (error["code"], error["data"]["retryable"]) == (RATE_LIMITED, True)
    assert 0 < error["data"]["retry_after"] <= 60


async def test_readiness_follows_r2r(way: Proxy, server: RunningServer) -> None:
    with way.fault(Fault(status=503)):
        ready, parts = await server.desk.readiness()
        assert not ready
        assert parts["engine"]["state"] == "down"
    await until_it_works(server)
    assert (await server.desk.readiness())[0]


async def test_a_wrong_password_is_an_authentication_error_that_does_not_pass(
    way: Proxy, make_config: Callable[..., Config]
) -> None:
    async with running_server(make_config(way.url, r2r__password="wrong")) as server:
        for _ in range(2):
            error = (await search(server))["error"]
            assert (error["code"], error["data"]["retryable"]) == (AUTHENTICATION_ERROR, False)
            assert error["data"]["type"] == "R2RUnauthenticated"
        ready, parts = await server.desk.readiness()
        assert not ready, parts


async def test_documents_are_queued_while_r2r_is_down_at_the_first_start(
    way: Proxy, settings_of_desk: Config, r2r: Lab, account: Account
) -> None:
    with way.fault(Fault(is_reset=True)):
        async with running_server(settings_of_desk) as server:
            ready, parts = await server.desk.readiness()
            assert not ready, parts
            for title, text in (("Foxes", FOXES), ("Hounds", HOUNDS)):
                taken = await ask(server, "r2r_ingest_document", text=text, title=title, collection_id="animals")
                assert taken["result"]["structuredContent"]["status"] == "pending", taken
            id = taken["result"]["structuredContent"]["document_id"]
            state = await ask(server, "r2r_monitor_task", document_id=id)
            assert state["result"]["structuredContent"]["ingestion_status"] == "pending"
            assert (await code_of(server)) in (ENGINE_ERROR, BREAKER_OPEN)
            listed = await ask(server, "r2r_list_documents", collection_id="animals")
            assert listed["result"]["structuredContent"]["total"] == 2
    async with running_server(settings_of_desk) as server:
        assert (await wait_until_settled(server, id))["ingestion_status"] == "success"
        assert (await search(server))["result"]["structuredContent"]["count"] > 0
        assert (await server.desk.readiness())[0]
    assert [one["name"] for one in r2r.ask(account, "GET", "/collections") if one["name"] == "animals"] == ["animals"]
