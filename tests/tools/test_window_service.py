"""The service that keeps chunks elsewhere: what is made of its answers, its faults and its outages."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import aiohttp
import pytest
from anyio.lowlevel import checkpoint
from yarl import URL

from refdesk.calls import TenantId
from refdesk.config.models import ReaderConfig
from refdesk.errors import BreakerOpen, DocumentNotFound, EngineError
from refdesk.resilience.dependency import SERVICE
from refdesk.telemetry.metrics import Metrics
from refdesk.tools.window_service import (
    DEFAULT_RETRY_AFTER_SECONDS,
    MAX_ANSWER_BYTES,
    RETRIES,
    RemoteWindows,
    WindowChunk,
)
from tests import waiting
from tests.answers.endpoint import Endpoint, Script, answer, running_endpoint

pytestmark = pytest.mark.anyio

WINDOW = answer(json.dumps({"chunks": [{"chunk_id": "c1", "text": "fox"}]}).encode())
BROKEN = answer(b"", "500 Internal Server Error")


@asynccontextmanager
async def windows_of(
    *answers: bytes | Script, timeout_seconds: float = waiting.PATIENCE_SECONDS
) -> AsyncIterator[tuple[RemoteWindows, Endpoint]]:
    settings = ReaderConfig.model_validate(
        {"retrieval_api_key": "the-key", "retrieval_timeout_seconds": timeout_seconds}
    )
    async with running_endpoint(*answers) as service, aiohttp.ClientSession() as session:
        yield RemoteWindows(session, URL(service.url), None, settings), service


async def ask(windows: RemoteWindows) -> Sequence[WindowChunk]:
    return await windows.read_around(TenantId("acme"), "guide", "c1", 1, 2, "trace")


async def test_a_window_is_asked_for_with_the_tenant_and_the_key() -> None:
    async with windows_of(WINDOW) as (windows, service):
        assert await ask(windows) == [WindowChunk(chunk_id="c1", text="fox")]
    assert "x-api-key: the-key" in service.heads[0].lower()
    asked = {"doc_id": "guide", "anchor_chunk_id": "c1", "window_before": 1, "window_after": 2}
    assert service.bodies == [{"tenant_id": "acme", "trace_id": "trace", **asked}]


@pytest.mark.parametrize("fault", [
    BROKEN,
    answer(b"", "503 Service Unavailable", retry_after="0"),
    answer(b"<html>"),
    answer(b"[]"),
])  # fmt: skip
async def test_a_fault_that_passes_is_not_noticed(fault: bytes) -> None:
    async with windows_of(fault, WINDOW) as (windows, _):
        assert [chunk.chunk_id for chunk in await ask(windows)] == ["c1"]


@pytest.mark.parametrize(("fault", "patience"), [
    (BROKEN, DEFAULT_RETRY_AFTER_SECONDS),
    (answer(b"", "503 Service Unavailable", retry_after="60"), 60.0),
    (answer(b"x" * (MAX_ANSWER_BYTES + 1)), DEFAULT_RETRY_AFTER_SECONDS),
])  # fmt: skip
async def test_a_fault_that_stays_says_when_to_try_again(fault: bytes, patience: float) -> None:
    async with windows_of(fault) as (windows, service):
        with pytest.raises(EngineError) as caught:
            await ask(windows)
        assert (caught.value.retryable, caught.value.retry_after) == (True, patience)
        assert len(service.heads) == (1 + RETRIES if patience == DEFAULT_RETRY_AFTER_SECONDS else 1)


async def silent(writer: asyncio.StreamWriter) -> None:
    """Begin an answer and never end it."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
    await asyncio.Event().wait()


async def dripping(writer: asyncio.StreamWriter) -> None:
    """Give an answer byte by byte; it is never silent for long, and never ends."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await checkpoint()


@pytest.mark.parametrize("slow", [silent, dripping])
async def test_a_service_that_is_silent_or_drips_is_given_up_and_not_asked_again(slow: Script) -> None:
    metrics = Metrics()
    async with windows_of(slow, timeout_seconds=0.1) as (windows, _):
        windows.dependency.watch(metrics)
        with pytest.raises(EngineError, match="in time") as caught:
            await ask(windows)
        assert caught.value.retry_after == DEFAULT_RETRY_AFTER_SECONDS
        assert windows.dependency.describe()["failures"] == 1
    requests = re.findall(r"refdesk_dependency_requests_total{.*} ([0-9.]+)", metrics.exposition().decode())
    assert requests == ["1.0"]


async def test_a_service_that_keeps_failing_is_left_alone_for_a_while() -> None:
    async with windows_of(BROKEN) as (windows, service):
        calls = 0
        while windows.dependency.state == "closed":
            with pytest.raises(EngineError):
                await ask(windows)
            calls += 1
        sent = len(service.heads)
        with pytest.raises(BreakerOpen, match="window"):
            await ask(windows)
        assert (calls, len(service.heads)) == (SERVICE.failure_threshold, sent)


async def test_documents_that_do_not_exist_and_keys_that_are_refused_say_nothing_against_the_service() -> None:
    missing, refused = answer(b"", "404 Not Found"), answer(b"", "401 Unauthorized")
    async with windows_of(*[missing] * 10, *[refused] * 10, WINDOW) as (windows, service):
        for _ in range(10):
            with pytest.raises(DocumentNotFound, match="'guide'"):
                await ask(windows)
        for _ in range(10):
            with pytest.raises(EngineError, match="401"):
                await ask(windows)
        assert await ask(windows)
        assert len(service.heads) == 21


async def test_every_request_to_the_service_is_counted_by_how_it_ended() -> None:
    metrics = Metrics()
    async with windows_of(BROKEN, WINDOW) as (windows, _):
        windows.dependency.watch(metrics)
        await ask(windows)
    counted = metrics.exposition().decode()
    for outcome in ("failed", "ok"):
        series = f'{{dependency="window",operation="window",outcome="{outcome}"}}'
        assert f"refdesk_dependency_requests_total{series} 1.0" in counted
