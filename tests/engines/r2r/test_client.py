"""Requests to R2R when it refuses, fails, is slow, lies, or is gone; and what never leaves the client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from uuid import uuid4

import anyio
import pytest
from pydantic import SecretStr

from refdesk.config.models import CircuitBreakerConfig, R2RConfig
from refdesk.engines.base import Search
from refdesk.engines.r2r.client import R2RClient, build_search_settings, open_client
from refdesk.engines.r2r.http import (
    MAX_BACKOFF_SECONDS,
    MAX_RESPONSE_BYTES,
    R2RRequest,
    RateLimitBackoff,
    extract_message,
    make_refusal,
)
from refdesk.errors import (
    BreakerOpen,
    ConfigError,
    DependencyError,
    EngineError,
    R2RMisconfigured,
    R2RRefused,
    RateLimited,
    RefdeskError,
)
from refdesk.resilience.dependency import Dependency
from refdesk.telemetry.metrics import Metrics
from tests.engines.r2r.scripted import EMAIL, PASSWORD, ScriptedR2R, open_scripted_r2r
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

SEARCH, LOGIN, REFRESH = "/v3/retrieval/search", "/v3/users/login", "/v3/users/refresh-token"
COLLECTION = "05a7300a-081c-4ed4-bb08-f7bec59727f3"
WHERE = build_search_settings(Search("fox"), 10, [COLLECTION])


@pytest.fixture
async def r2r() -> AsyncIterator[ScriptedR2R]:
    async with open_scripted_r2r() as r2r:
        yield r2r


class Behind:
    """The dependency that clients are behind, and the time that it goes by."""

    def __init__(self, **breaker: Any) -> None:
        self.now = 0.0
        settings = CircuitBreakerConfig(**breaker)
        self.dependency = Dependency("r2r", settings, now=lambda: self.now, pause=self._pause, chance=lambda: 0.0)

    async def _pause(self, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()


Connect = Callable[..., AbstractAsyncContextManager[R2RClient]]


@pytest.fixture
def connect(r2r: ScriptedR2R) -> Connect:
    @asynccontextmanager
    async def open_connected_client(behind: Behind | None = None, **given: Any) -> AsyncIterator[R2RClient]:
        settings = {"api_url": r2r.url, "email": EMAIL, "password": SecretStr(PASSWORD), **given}
        dependency = (behind or Behind(failure_threshold=1000)).dependency
        async with open_client(R2RConfig(**settings), dependency, Metrics()) as client:
            yield client

    return open_connected_client


async def search_concurrently(client: R2RClient, callers: int) -> list[Any]:
    """What each of so many callers gets who search at once."""
    return await asyncio.gather(*(client.search(f"fox {n}", WHERE) for n in range(callers)), return_exceptions=True)


# Tokens over the wire


async def test_a_hundred_callers_whose_token_is_taken_back_make_one_refresh_and_all_succeed(
    r2r: ScriptedR2R, connect: Connect
) -> None:
    async with connect() as client:
        await client.search("fox", WHERE)
        r2r.revoke()
        assert await search_concurrently(client, 100) == [[]] * 100
    assert (r2r.count(LOGIN), r2r.count(REFRESH)) == (1, 1)
    assert r2r.count(SEARCH) <= 201


async def test_a_token_that_is_refused_before_its_time_and_a_spent_refresh_token_cost_one_login(
    r2r: ScriptedR2R, connect: Connect
) -> None:
    async with connect() as client:
        await client.search("fox", WHERE)
        r2r.revoke()
        r2r.refresh.clear()
        assert await search_concurrently(client, 100) == [[]] * 100
    assert (r2r.count(LOGIN), r2r.count(REFRESH)) == (2, 1)


async def test_the_login_is_a_form_and_the_refresh_a_bare_string(r2r: ScriptedR2R, connect: Connect) -> None:
    async with connect() as client:
        await client.search("fox", WHERE)
        r2r.revoke()
        await client.search("fox", WHERE)
    login, refresh = (next(s for s in r2r.seen if s.target == path) for path in (LOGIN, REFRESH))
    assert login.form == {"username": EMAIL, "password": PASSWORD}
    assert isinstance(refresh.json, str)
    assert "authorization" not in login.headers


async def test_a_login_that_is_down_is_not_stormed(r2r: ScriptedR2R, connect: Connect) -> None:
    with r2r.fault(LOGIN, status=503, body={"detail": "no"}):
        async with connect() as client:
            answers = await search_concurrently(client, 100)
            answers += await search_concurrently(client, 100)
    assert all(isinstance(answer, DependencyError) and answer.retryable for answer in answers)
    assert {type(answer) for answer in answers[100:]} == {BreakerOpen}
    assert r2r.count(LOGIN) == 1


async def test_a_wrong_password_is_told_as_such_once_it_is_known(r2r: ScriptedR2R, connect: Connect) -> None:
    async with connect(password=SecretStr("wrong")) as client:
        answers = await search_concurrently(client, 100)
    assert all(isinstance(answer, R2RMisconfigured) and not answer.retryable for answer in answers)
    assert r2r.count(LOGIN) == 1


async def test_an_api_key_is_sent_as_it_is_and_a_refused_one_is_told(r2r: ScriptedR2R, connect: Connect) -> None:
    r2r.access.add("key_public.secret")
    async with connect(email=None, password=None, api_key=SecretStr("key_public.secret")) as client:
        assert await client.search("fox", WHERE) == []
        r2r.revoke()
        with pytest.raises(R2RMisconfigured, match=r"r2r\.api_key"):
            await client.search("fox", WHERE)
    assert r2r.count(LOGIN) == 0


async def test_no_account_and_no_key_is_a_problem_of_the_settings(connect: Connect) -> None:
    with pytest.raises(ConfigError, match="api_key"):
        async with connect(email=None, password=None):
            pass


# What R2R says when it refuses


@pytest.mark.parametrize(
    ("status", "answer", "kind", "said"),
    [
        (400, {"message": "Query cannot be empty", "error_type": "R2RException"}, R2RRefused, "Query cannot be empty"),
        (403, {"message": "You do not have access.", "error_type": "R2RException"}, R2RRefused, "access"),
        (404, {"message": "Document not found.", "error_type": "R2RException"}, R2RRefused, "not found"),
        (404, {"detail": "Not Found"}, R2RRefused, "Not Found"),
        (409, {"message": "Collection with this ID already exists"}, R2RRefused, "exists"),
        (
            422,
            {"detail": [{"loc": ["body", "limit"], "msg": "too small", "input": "S3CRET"}]},
            R2RRefused,
            "body.limit",
        ),
        (302, None, R2RMisconfigured, "api_url"),
        (418, "nonsense", R2RRefused, "418"),
    ],
)
def test_every_shape_of_refusal_is_understood(status: int, answer: Any, kind: type[RefdeskError], said: str) -> None:
    error = make_refusal(status, answer)
    assert type(error) is kind
    assert said in error.detail
    assert "S3CRET" not in error.detail


async def test_a_server_that_knows_no_search_is_told_of_in_plain_words(r2r: ScriptedR2R, connect: Connect) -> None:
    async with connect() as client:
        for status, said in ((404, r"r2r\.api_url"), (409, "already")):
            with (
                r2r.fault(SEARCH, status=status, body={"detail": "Not Found"}),
                pytest.raises(R2RRefused, match=said) as error,
            ):
                await client.search("fox", WHERE)
            assert error.value.data["type"] == "R2RRefused"
            assert error.value.status == status


def test_what_r2r_says_is_passed_on_short_and_on_one_line() -> None:
    assert extract_message({"detail": {"message": "An\n error", "error": "secret"}}) == "An error"
    assert len(extract_message({"message": "x" * 10_000})) < 250
    odd: list[Any] = [None, [], {"detail": None}, {"detail": [None]}, {"message": 3}]
    assert not any(map(extract_message, odd))


async def test_a_failure_of_r2r_is_told_counted_and_tried_once_more(r2r: ScriptedR2R, connect: Connect) -> None:
    body = {"detail": {"message": "An error occurred during search_app", "error": "x", "error_type": "KeyError"}}
    async with connect() as client:
        with r2r.fault(SEARCH, status=500, body=body, times=1):
            assert await client.search("fox", WHERE) == []
        with r2r.fault(SEARCH, status=500, body=body), pytest.raises(EngineError, match="search_app"):
            await client.search("fox", WHERE)
    assert r2r.count(SEARCH) == 4


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nnojso",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"results": 3}',
        b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{",
        b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\n<h1>",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
    ids=["no JSON", "no envelope", "wrong type", "short", "gateway", "no HTTP", "bad chunk"],
)
async def test_an_answer_that_is_none_is_an_engine_error(r2r: ScriptedR2R, connect: Connect, raw: bytes) -> None:
    async with connect() as client:
        await client.check()
        with r2r.fault("/v3/collections", raw=raw), pytest.raises(EngineError):
            await client.collections()
        assert await client.collections() == []


async def test_an_answer_without_end_is_not_read_to_its_end(r2r: ScriptedR2R, connect: Connect) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {MAX_RESPONSE_BYTES + 9}\r\n\r\n".encode()
    with r2r.fault("/v3/collections", raw=head + b" " * (MAX_RESPONSE_BYTES + 1)):
        async with connect() as client:
            with pytest.raises(EngineError, match="longer than"):
                await client.collections()


async def test_r2r_has_so_much_time_in_all_and_no_more(r2r: ScriptedR2R, connect: Connect) -> None:
    async with connect(timeout_seconds=0.2) as client:
        await client.check()
        never = r2r.fault(SEARCH, gate=asyncio.Event())
        with never, anyio.fail_after(PATIENCE_SECONDS), pytest.raises(EngineError, match=r"longer than 0\.2 seconds"):
            await client.search("fox", WHERE)


# Limits


def test_patience_after_a_refusal_doubles_up_to_a_minute_and_ends_with_a_success() -> None:
    backoff = RateLimitBackoff()
    now, pauses = 0.0, []
    for _ in range(8):
        pauses.append(backoff.record_refusal(now, None))
        assert backoff.record_refusal(now, None) == pauses[-1], "all who were refused together count once"
        backoff.record_success(now)
        now += pauses[-1]
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    backoff.record_success(now)
    assert backoff.record_refusal(now, 1.5) == 1.5
    assert backoff.record_refusal(now + 2, 1e9) == MAX_BACKOFF_SECONDS


async def test_a_storm_of_429_is_not_answered_with_a_storm_of_requests(r2r: ScriptedR2R, connect: Connect) -> None:
    behind = Behind()
    async with connect(behind) as client:
        await client.check()
        with r2r.fault(SEARCH, status=429, body={"detail": "Per-route per-minute rate limit exceeded"}):
            answers = await search_concurrently(client, 50)
            before = len(r2r.seen)
            answers += await search_concurrently(client, 50)
    assert len(r2r.seen) == before
    assert all(isinstance(answer, RateLimited) and answer.retryable for answer in answers)
    assert all(0 < answer.retry_after <= 60 for answer in answers)
    assert behind.dependency.state == "closed"


# The breaker


async def test_a_dead_r2r_is_asked_little_more_often_than_once_a_caller(r2r: ScriptedR2R, connect: Connect) -> None:
    async with connect() as client:
        await client.check()
        with r2r.fault(SEARCH, drops=True):
            answers = await search_concurrently(client, 200)
    assert all(isinstance(answer, EngineError) for answer in answers)
    assert r2r.count(SEARCH) <= 1.1 * 200 + 10


async def test_after_five_failures_r2r_is_left_alone_and_comes_back_with_two_successes(
    r2r: ScriptedR2R, connect: Connect
) -> None:
    behind = Behind()
    async with connect(behind) as client:
        await client.check()
        with r2r.fault(SEARCH, status=503, body={}):
            for _ in range(5):
                with pytest.raises(EngineError):
                    await client.search("fox", WHERE)
            assert r2r.count(SEARCH) == 10, "each call is retried once"
            for answer in await search_concurrently(client, 100):
                assert isinstance(answer, BreakerOpen)
                assert answer.retry_after == pytest.approx(60, abs=1)
            assert r2r.count(SEARCH) == 10
        behind.now += 61
        gate = asyncio.Event()
        with r2r.fault(SEARCH, gate=gate):
            waiting = asyncio.create_task(search_concurrently(client, 100))
            await r2r.wait_for_requests(SEARCH, 11)
            gate.set()
            answers = await waiting
        assert r2r.count(SEARCH) == 11, "as many as are let through to try"
        assert answers.count([]) == 1
        await client.search("fox", WHERE)
        assert behind.dependency.state == "closed"


async def test_a_trial_that_is_called_off_leaves_the_way_open_for_the_next(r2r: ScriptedR2R, connect: Connect) -> None:
    behind = Behind(failure_threshold=1)
    async with connect(behind) as client:
        await client.check()
        with r2r.fault(SEARCH, status=503, body={}), pytest.raises(EngineError):
            await client.search("fox", WHERE)
        behind.now += 61
        with r2r.fault(SEARCH, gate=asyncio.Event()):
            trial = asyncio.create_task(client.search("fox", WHERE))
            await r2r.wait_for_requests(SEARCH, 2)
            trial.cancel()
            await asyncio.gather(trial, return_exceptions=True)
        assert await client.search("fox", WHERE) == []


async def test_what_the_caller_did_wrong_is_no_failure_of_r2r(r2r: ScriptedR2R, connect: Connect) -> None:
    behind = Behind()
    async with connect(behind) as client:
        with r2r.fault(SEARCH, status=422, body={"detail": []}):
            for _ in range(20):
                with pytest.raises(R2RRefused):
                    await client.search("fox", WHERE)
        assert await client.get_document(str(uuid4())) is None
    assert behind.dependency.state == "closed"


async def test_answers_that_are_slow_open_the_breaker_when_that_is_set(r2r: ScriptedR2R, connect: Connect) -> None:
    behind = Behind(failure_threshold=2, slow_call_seconds=5)
    async with connect(behind) as client:
        await client.check()
        for _ in range(2):
            gate = asyncio.Event()
            with r2r.fault(SEARCH, gate=gate):
                before = r2r.count(SEARCH)
                slow = asyncio.create_task(client.search("fox", WHERE))
                await r2r.wait_for_requests(SEARCH, before + 1)
                behind.now += 6
                gate.set()
                await slow
        with pytest.raises(BreakerOpen):
            await client.search("fox", WHERE)


# What is sent, and what is not


@pytest.mark.parametrize(
    "id", ["..", ".", "../users/me", "%2e%2e%2fusers", "a\0b", "a\\b", "a/b", "a?b#c", "ä", "\ud800"]
)
async def test_an_id_stays_one_segment_of_the_path(r2r: ScriptedR2R, connect: Connect, id: str) -> None:
    async with connect() as client:
        await client.check()
        assert await client.get_document(id) is None
    target = r2r.seen[-1].target
    assert target.count("/") == 3
    assert target.startswith("/v3/documents/")
    assert not {"..", "."} & set(target.split("/"))


async def test_the_collections_stand_where_r2r_heeds_them(r2r: ScriptedR2R, connect: Connect) -> None:
    """At the top of a filter, R2R takes them out again for the owner of the documents: its issue 2114."""
    async with connect() as client:
        await client.search("fox", WHERE)
        await client.answer("fox?", WHERE)
    for seen in r2r.seen:
        if "/retrieval/" in seen.target:
            filters = seen.json["search_settings"]["filters"]
            assert filters == {"$and": [{"collection_ids": {"$overlap": [COLLECTION]}}]}


async def test_of_how_to_write_only_what_is_listed_is_sent(r2r: ScriptedR2R, connect: Connect) -> None:
    async with connect() as client:
        await client.answer("fox?", WHERE, "m", 100, 0.5)
    body = r2r.bodies("/v3/retrieval/rag")[0]
    assert body["rag_generation_config"] == {
        "model": "m", "max_tokens_to_sample": 100, "temperature": 0.5, "stream": False,
    }  # fmt: skip
    assert body["include_web_search"] is False


async def test_a_search_without_a_collection_cannot_be_made() -> None:
    with pytest.raises(AssertionError):
        build_search_settings(Search("fox"), 10, [])


async def test_nothing_secret_is_in_what_the_client_gives_or_raises(r2r: ScriptedR2R, connect: Connect) -> None:
    secret = {"detail": [{"loc": ["body"], "msg": "no", "input": PASSWORD}], "hashed_password": "JDJi"}
    async with connect() as client:
        await client.check()
        r2r.put("32a2211c-48f1-5c7d-b133-0afcf875add2", ["text"], [], {"hashed_password": "x"} | {"title": "T"})
        found = await client.get_document("32a2211c-48f1-5c7d-b133-0afcf875add2")
        assert "summary_embedding" not in repr(found)
        for status in (400, 403, 422, 500):
            with r2r.fault("/v3/collections", status=status, body=secret), pytest.raises(RefdeskError) as error:
                await client.collections()
            told = f"{error.value!r} {error.value.__cause__!r} {error.value.data}"
            assert not any(each in told for each in (PASSWORD, "JDJi", *r2r.access, *r2r.refresh))


def test_a_request_is_counted_without_its_ids() -> None:
    request = R2RRequest("GET", ("collections", str(uuid4()), "documents"), 1)
    assert request.operation == "GET collections/documents"
