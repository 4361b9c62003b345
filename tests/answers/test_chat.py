"""The endpoint for answers: what it is sent, what is made of its answers, and every way in which it fails."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from refdesk.answers.chat import REASONING_TOKENS, Chat, open_chat
from refdesk.answers.question import ModelPrompt, Question
from refdesk.config.models import AnswersConfig
from refdesk.errors import BreakerOpen, WriterFailed, WriterMisconfigured
from refdesk.resilience.dependency import SERVICE
from refdesk.telemetry.metrics import Metrics
from tests.answers.endpoint import Endpoint, Script, answer, events, failure, running_endpoint, stream_answer

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"
PROMPT = ModelPrompt("the rules", "the passages")
QUESTION = Question("Which port?", max_tokens=70, temperature=0.3)


def settings(url: str | None, **given: Any) -> AnswersConfig:
    return AnswersConfig.model_validate({"api_url": url, "api_key": KEY, "model": "stub", **given})


@asynccontextmanager
async def chat_with(*answers: bytes | Script, **given: Any) -> AsyncIterator[tuple[Chat, Endpoint]]:
    async with running_endpoint(*answers) as endpoint, open_chat(settings(endpoint.url, **given)) as chat:
        assert chat is not None
        yield chat, endpoint


async def failing(*answers: bytes | Script, **given: Any) -> WriterFailed:
    """The error that such an answer ends in."""
    async with chat_with(*answers, **given) as (chat, _):
        with pytest.raises(WriterFailed) as caught:
            await chat.write(QUESTION, PROMPT)
    assert KEY not in str(caught.value.data)
    return caught.value


async def test_without_an_address_there_is_no_endpoint() -> None:
    async with open_chat(settings(None)) as chat:
        assert chat is None


async def test_a_streamed_answer_arrives_with_the_models_name() -> None:
    async with chat_with(stream_answer("It is ", "5432 [1].")) as (chat, endpoint):
        assert await chat.write(QUESTION, PROMPT) == ("It is 5432 [1].", "stub-1")
    assert endpoint.heads[0].startswith("POST /v1/chat/completions HTTP/1.1\r\n")
    assert f"authorization: bearer {KEY}" in endpoint.heads[0].lower()
    assert endpoint.bodies[0] == {
        "model": "stub",
        "messages": [{"role": "system", "content": "the rules"}, {"role": "user", "content": "the passages"}],
        "stream": True,
        "temperature": 0.3,
        "max_tokens": 70,
    }


async def test_the_model_that_the_caller_wants_is_asked_for() -> None:
    async with chat_with(stream_answer("Yes [1].", model="")) as (chat, endpoint):
        assert await chat.write(Question("?", model="other"), PROMPT) == ("Yes [1].", "other")
    assert endpoint.bodies[0]["model"] == "other"


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    body = json.dumps({"choices": [{"message": {"content": "Yes [1]."}, "finish_reason": "stop"}]}).encode()
    async with chat_with(answer(body, content_type="application/json")) as (chat, _):
        assert await chat.write(QUESTION, PROMPT) == ("Yes [1].", "stub")


async def test_thoughts_are_no_part_of_the_answer() -> None:
    async with chat_with(stream_answer("<think>\nmaybe [7]", "</think>\n\nYes [1].")) as (chat, _):
        assert (await chat.write(QUESTION, PROMPT))[0] == "Yes [1]."


async def test_a_model_that_knows_other_parameters_is_asked_again_without_and_then_always_so() -> None:
    refused = [
        failure("400 Bad Request", {"param": "max_tokens", "message": "use max_completion_tokens"}),
        failure("400 Bad Request", {"message": "Unsupported value: 'temperature' does not support 0.3"}),
    ]
    async with chat_with(*refused, stream_answer("Yes [1].")) as (chat, endpoint):
        await chat.write(QUESTION, PROMPT)
        await chat.write(QUESTION, PROMPT)
    sent = [{"max_tokens", "temperature", "max_completion_tokens"} & body.keys() for body in endpoint.bodies]
    assert sent == [
        {"max_tokens", "temperature"},
        {"max_completion_tokens", "temperature"},
        {"max_completion_tokens"},
        {"max_completion_tokens"},
    ]
    assert endpoint.bodies[-1]["max_completion_tokens"] == 70 + REASONING_TOKENS


async def test_a_parameter_that_is_refused_for_ever_is_not_dropped_for_ever() -> None:
    error = await failing(failure("400 Bad Request", {"param": "max_tokens", "message": "no"}))
    assert isinstance(error, WriterMisconfigured)


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden"])
async def test_a_refused_key_names_the_setting_and_not_the_key(status: str) -> None:
    error = await failing(failure(status, {"message": f"Incorrect API key provided: {KEY}"}))
    assert isinstance(error, WriterMisconfigured)
    assert "answers.api_key" in str(error)
    assert not error.retryable


async def test_an_unknown_model_names_the_settings() -> None:
    error = await failing(failure("404 Not Found", {"message": f"no model 'stub' for {KEY}"}))
    assert "answers.model" in str(error)
    assert "no model 'stub' for ********" in str(error)
    assert not error.retryable


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    async with chat_with(failure("307 Temporary Redirect", location="http://127.0.0.1:9/v1")) as (chat, endpoint):
        with pytest.raises(WriterMisconfigured, match=r"answers\.api_url"):
            await chat.write(QUESTION, PROMPT)
    assert len(endpoint.heads) == 1


@pytest.mark.parametrize(("status", "header", "patience"), [
    ("429 Too Many Requests", "7", 7.0),
    ("503 Service Unavailable", "0.5", 0.5),
    ("429 Too Many Requests", "999999999", 3600.0),
    ("500 Internal Server Error", "tomorrow", None),
])  # fmt: skip
async def test_a_busy_endpoint_can_be_asked_again_when_it_says(
    status: str, header: str, patience: float | None
) -> None:
    error = await failing(failure(status, retry_after=header))
    assert (error.retryable, error.retry_after) == (True, patience)


@pytest.mark.parametrize("body", [
    answer(b"<html>busy</html>", content_type="text/html"),
    answer(b"data: {oops\n\n", content_type="text/event-stream"),
    answer(b"{}", content_type="application/json"),
    answer(b"", content_type="text/event-stream"),
    stream_answer(""),
    stream_answer(" ", finish="length"),
    stream_answer("half of", finish=None, done=False),
    failure("500 Internal Server Error").replace(b"{", b"["),
])  # fmt: skip
async def test_an_answer_that_is_none_is_an_error_that_can_be_tried_again(body: bytes) -> None:
    assert (await failing(body)).retryable


async def test_a_model_that_spent_its_tokens_on_thoughts_says_what_to_raise() -> None:
    assert "max_tokens" in str(await failing(stream_answer("<think>hm</think>", finish="length")))


async def test_a_connection_that_breaks_in_the_middle_is_an_error() -> None:
    async def cut(writer: asyncio.StreamWriter) -> None:
        writer.write(answer(events("half of", finish=None, done=False), content_type="text/event-stream")[:-20])
        await writer.drain()

    assert "closed the connection" in str(await failing(cut))


async def test_an_endpoint_that_does_not_begin_is_given_up() -> None:
    async def silent(writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    error = await failing(silent, timeout_seconds=1)
    assert "longer than 1 second" in str(error)
    assert error.retryable


async def test_an_endpoint_that_drips_is_given_up_when_its_time_is_over() -> None:
    async def dripping(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(b": wait\n")
            await writer.drain()
            await anyio.lowlevel.checkpoint()  # the client reads in the same loop

    assert "longer than" in str(await failing(dripping, timeout_seconds=1))


async def test_an_answer_without_end_is_cut() -> None:
    async def endless(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        while True:
            writer.write(events("more " * 5000, finish=None, done=False))
            await writer.drain()

    assert "larger than" in str(await failing(endless))


async def test_an_error_with_a_huge_body_is_still_told_by_its_status() -> None:
    error = await failing(answer(b"x" * 1_000_000, "500 Internal Server Error"))
    assert "(500)" in str(error)


async def test_an_endpoint_that_is_not_there_names_the_setting() -> None:
    async with running_endpoint() as endpoint:
        url = endpoint.url
    async with open_chat(settings(url)) as chat:
        assert chat is not None
        with pytest.raises(WriterFailed, match=r"answers\.api_url"):
            await chat.write(QUESTION, PROMPT)


async def test_neither_key_nor_password_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running_endpoint(stream_answer("Yes [1].")) as endpoint:
        address = endpoint.url.replace("http://", "http://me:pass-secret@")
        async with open_chat(settings(address, api_key=None)) as chat:
            assert chat is not None
            await chat.write(QUESTION, PROMPT)
        async with open_chat(settings(endpoint.url)) as chat:
            assert chat is not None
            await chat.write(QUESTION, PROMPT)
    assert "authorization: basic" in endpoint.heads[0].lower()
    assert KEY in endpoint.heads[1]
    assert "pass-secret" not in caplog.text
    assert KEY not in caplog.text


async def test_an_endpoint_that_keeps_failing_is_left_alone_for_a_while() -> None:
    async with chat_with(failure("503 Service Unavailable")) as (chat, endpoint):
        for _ in range(SERVICE.failure_threshold):
            with pytest.raises(WriterFailed):
                await chat.write(QUESTION, PROMPT)
        with pytest.raises(BreakerOpen, match="answers") as caught:
            await chat.write(QUESTION, PROMPT)
        assert len(endpoint.heads) == SERVICE.failure_threshold
        assert caught.value.retry_after
        assert (chat.dependency.name, chat.dependency.state) == ("answers", "open")


@pytest.mark.parametrize(
    "status",
    ["400 Bad Request", "401 Unauthorized", "404 Not Found", "429 Too Many Requests", "307 Temporary Redirect"],
)
async def test_callers_whose_requests_are_refused_do_not_take_the_endpoint_from_others(status: str) -> None:
    async with chat_with(*[failure(status)] * 10, stream_answer("Yes [1].")) as (chat, endpoint):
        for _ in range(10):
            with pytest.raises(WriterFailed):
                await chat.write(QUESTION, PROMPT)
        assert (await chat.write(QUESTION, PROMPT))[0] == "Yes [1]."
    assert len(endpoint.heads) == 11


async def test_answers_that_are_used_up_by_thoughts_are_no_fault_of_the_endpoint() -> None:
    async with chat_with(stream_answer("<think>hm</think>", finish="length")) as (chat, _):
        for _ in range(10):
            with pytest.raises(WriterFailed, match="max_tokens"):
                await chat.write(QUESTION, PROMPT)
        assert chat.dependency.describe() == {"state": "closed", "failures": 0}


async def test_an_endpoint_that_is_too_slow_has_failed_and_a_caller_who_leaves_has_not() -> None:
    heard = asyncio.Event()

    async def silent(writer: asyncio.StreamWriter) -> None:
        heard.set()
        await asyncio.Event().wait()

    async with chat_with(silent, timeout_seconds=1) as (chat, _):
        with pytest.raises(WriterFailed, match="longer than"):
            await chat.write(QUESTION, PROMPT)
        assert chat.dependency.describe()["failures"] == 1
    heard.clear()
    async with chat_with(silent) as (chat, _):
        leaver = asyncio.create_task(chat.write(QUESTION, PROMPT))
        await heard.wait()
        leaver.cancel()
        await asyncio.wait([leaver])
        assert leaver.cancelled()
        assert chat.dependency.describe()["failures"] == 0


async def test_every_request_to_the_endpoint_is_counted_by_how_it_ended() -> None:
    metrics = Metrics()
    async with chat_with(answer(b"", "500 Internal Server Error"), stream_answer("Yes [1].")) as (chat, _):
        chat.dependency.watch(metrics)
        with pytest.raises(WriterFailed):
            await chat.write(QUESTION, PROMPT)
        await chat.write(QUESTION, PROMPT)
    counted = metrics.exposition().decode()
    for outcome in ("failed", "ok"):
        series = f'{{dependency="answers",operation="write",outcome="{outcome}"}}'
        assert f"refdesk_dependency_requests_total{series} 1.0" in counted
