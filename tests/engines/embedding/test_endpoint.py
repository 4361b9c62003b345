"""An OpenAI-compatible endpoint: a real little server on loopback, with the faults that services have."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import orjson
import pytest
from pydantic import SecretStr

from refdesk.calls import track_shortfalls
from refdesk.config.models import ConvertConfig, EmbeddingConfig
from refdesk.documents.conversions import open_conversions
from refdesk.engines.base import NewDocument, Search, TextSource
from refdesk.engines.embedded.embedding import open_embedder
from refdesk.engines.embedded.embedding.endpoint import (
    BATCH,
    BREAKER,
    QUERY_PAUSE_SECONDS,
    RETRIES,
    EndpointEmbedder,
    open_endpoint,
)
from refdesk.errors import BreakerOpen, EngineError
from refdesk.telemetry.metrics import Metrics
from tests.connections import closing
from tests.contracts.engine import ACME
from tests.engines.desks import engine_on
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEY = "sk-very-secret"


@dataclass
class Answer:
    """What the server says to one request; without a body, the vectors that were asked for."""

    status: int = 200
    body: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    never: bool = False
    drips: int = 0
    """Bytes of each part of a body that never ends; 0 for a body that does."""


@dataclass
class Service:
    """Answers as it is told, in turn, and then as it should."""

    url: str
    answers: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    time: float = 0.0

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while header := await reader.readuntil(b"\r\n\r\n"):
                lines = dict(line.split(": ", 1) for line in header.decode().split("\r\n")[1:] if line)
                told = {name.lower(): value for name, value in lines.items()}
                asked = orjson.loads(await reader.readexactly(int(told["content-length"])))
                self.requests.append(asked | {"path": header.split()[1].decode()})
                self.keys.append(told.get("authorization", ""))
                answer = self.answers.pop(0) if self.answers else Answer()
                if answer.never:
                    continue
                if answer.drips:
                    return await drip(writer, answer.drips)
                body = vectors_for(asked["input"]) if answer.body is None else answer.body
                more = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
                head = f"HTTP/1.1 {answer.status} X\r\nContent-Length: {len(body)}\r\n{more}\r\n"
                writer.write(head.encode() + body)


async def drip(writer: asyncio.StreamWriter, size: int) -> None:
    """Send a body that never ends, so many bytes at a time."""
    writer.write(b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(f"{size:x}\r\n{' ' * size}\r\n".encode())
        await writer.drain()
        await anyio.lowlevel.checkpoint()  # the client reads in the same loop


def vector_of(text: str) -> list[float]:
    return [float(len(text)), 3.0, 4.0]


def vectors_for(texts: Sequence[str]) -> bytes:
    """Backwards, since only the index says which is whose."""
    data = [{"index": index, "embedding": vector_of(text)} for index, text in enumerate(texts)]
    return orjson.dumps({"data": data[::-1]})


def answer_of(*embeddings: Any) -> Answer:
    return Answer(body=orjson.dumps({"data": [{"embedding": embedding} for embedding in embeddings]}))


@asynccontextmanager
async def service(*answers: Answer) -> AsyncIterator[Service]:
    running = Service("", list(answers))
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(running.answer(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield running
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def embedder_of(
    running: Service, *, timeout_seconds: float = 60, query_seconds: float = 60
) -> AsyncIterator[EndpointEmbedder]:
    async with open_endpoint(
        running.url,
        KEY,
        "some-model",
        timeout_seconds,
        query_seconds=query_seconds,
        pause=running.pause,
        now=lambda: running.time,
    ) as embedder:
        yield embedder


async def test_vectors_come_in_the_order_of_the_texts_and_of_length_one() -> None:
    texts = ["x" * length for length in range(1, BATCH + 6)]
    async with service() as running, embedder_of(running) as embedder:
        assert embedder.dimensions == 0
        vectors = await embedder.embed_passages(texts)
        expected = np.array([vector_of(text) for text in texts])
        assert vectors == pytest.approx(expected / np.linalg.norm(expected, axis=1, keepdims=True), abs=1e-6)
        assert vectors.dtype == np.float32
        assert embedder.dimensions == 3
        assert [len(request["input"]) for request in running.requests] == [BATCH, 5]


async def test_a_question_is_one_text_to_the_model_that_was_set() -> None:
    async with service() as running:
        settings = EmbeddingConfig(
            source="endpoint", api_url=f"{running.url}/", api_key=SecretStr(KEY), api_model="some-model"
        )
        async with open_embedder(settings) as embedder:
            assert embedder is not None
            assert embedder.name == "endpoint:some-model"
            assert embedder.embed_query_sync is None
            assert await embedder.embed_query("x") == pytest.approx(np.array([1, 3, 4]) / 26**0.5)
        (request,) = running.requests
        assert (request["path"], request["model"], request["input"]) == ("/v1/embeddings", "some-model", ["x"])
        assert running.keys == [f"Bearer {KEY}"]


async def test_no_texts_are_no_request() -> None:
    async with service() as running, embedder_of(running) as embedder:
        assert len(await embedder.embed_passages([])) == 0
        assert running.requests == []


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_fault_that_passes_is_waited_out(status: int) -> None:
    async with service(Answer(status)) as running, embedder_of(running) as embedder:
        assert len(await embedder.embed_query("x")) == 3
        assert 0 <= running.pauses[0] <= QUERY_PAUSE_SECONDS
        running.answers[:] = [Answer(status, headers={"Retry-After": "7"})]
        assert len(await embedder.embed_passages(["x"])) == 1
        assert 7 <= running.pauses[1] <= 8


async def test_a_fault_that_stays_is_told_after_a_few_attempts() -> None:
    answers = [Answer(500, orjson.dumps({"error": {"message": "out of order"}}))] * 9
    async with service(*answers) as running, embedder_of(running) as embedder:
        with pytest.raises(EngineError, match="500: out of order"):
            await embedder.embed_query("x")
        assert len(running.requests) == 1 + RETRIES


@pytest.mark.parametrize(("wish", "question"), [("120", False), ("7", True)])
async def test_a_service_that_wants_much_patience_is_left_alone_and_quoted(wish: str, question: bool) -> None:
    async with service(Answer(429, headers={"Retry-After": wish})) as running, embedder_of(running) as embedder:
        with pytest.raises(EngineError) as caught:
            await (embedder.embed_query("x") if question else embedder.embed_passages(["x"]))
        assert caught.value.retry_after == float(wish)
        assert running.pauses == []


async def test_a_service_that_keeps_failing_is_left_alone_and_tried_again_by_itself() -> None:
    attempts = BREAKER.failure_threshold * (1 + RETRIES)
    async with service(*[Answer(500)] * attempts) as running, embedder_of(running) as embedder:
        for _ in range(BREAKER.failure_threshold):
            with pytest.raises(EngineError):
                await embedder.embed_query("x")
        with pytest.raises(BreakerOpen) as caught:
            await embedder.embed_query("x")
        assert len(running.requests) == attempts
        assert (embedder.dependency.name, embedder.dependency.state) == ("embedding", "open")
        assert caught.value.retry_after
        running.time += caught.value.retry_after
        assert len(await embedder.embed_query("x")) == 3
        assert embedder.dependency.state == "closed"


async def test_while_it_is_left_alone_search_finds_by_words_without_asking_it(tmp_path: Path) -> None:
    async with service(*[Answer(500)] * 100) as running, embedder_of(running) as embedder:
        while embedder.dependency.state == "closed":
            with pytest.raises(EngineError):
                await embedder.embed_query("x")
        async with (
            open_conversions(ConvertConfig(), tmp_path, Metrics()) as conversions,
            engine_on(tmp_path / "data", conversions, embedder) as engine,
        ):
            await engine.create_collection(ACME, "animals")
            await engine.ingest(ACME, [NewDocument(TextSource("Foxes", "# Foxes\n\nfox"), "animals")])
            await eventually(lambda: engine.search(ACME, Search("fox", mode="fulltext")))
            hits = await engine.search(ACME, Search("fox", mode="hybrid"))
            assert [hit.document.id for hit in hits] == ["animals/foxes"]
            with pytest.raises(BreakerOpen):
                await engine.search(ACME, Search("fox", mode="semantic"))
        assert len(running.requests) == BREAKER.failure_threshold * (1 + RETRIES)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429])
async def test_a_service_that_refuses_requests_is_there_and_stays_in_use(status: int) -> None:
    answers = [Answer(status, headers={"Retry-After": "60"})] * 10
    async with service(*answers) as running, embedder_of(running) as embedder:
        for _ in answers:
            with pytest.raises(EngineError):
                await embedder.embed_query("x")
        assert len(running.requests) == len(answers)
        assert embedder.dependency.state == "closed"
        assert len(await embedder.embed_query("x")) == 3


async def test_a_refused_key_is_told_at_once_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with service(Answer(401, KEY.encode())) as running, embedder_of(running) as embedder:
        with pytest.raises(EngineError, match=r"embedding\.api_key") as caught:
            await embedder.embed_query("x")
        assert len(running.requests) == 1
        assert KEY not in str(caught.value) + repr(embedder) + caplog.text


async def test_a_wrong_model_is_told_in_the_services_words() -> None:
    answer = Answer(404, orjson.dumps({"error": {"message": "no such model"}}))
    async with service(answer) as running, embedder_of(running) as embedder:
        with pytest.raises(EngineError, match="404: no such model"):
            await embedder.embed_query("x")
        assert len(running.requests) == 1


async def test_a_service_that_never_answers_is_given_up() -> None:
    async with service(Answer(never=True)) as running, embedder_of(running, timeout_seconds=0.05) as embedder:
        with pytest.raises(EngineError, match="in time"):
            await embedder.embed_query("x")
        # A retry would have made a pause. The request itself may not have arrived in so short a time.
        assert running.pauses == []
        assert len(running.requests) <= 1
        assert embedder.dependency.describe()["failures"] == 1


async def test_a_question_waits_less_long_than_passages_do() -> None:
    async with service(Answer(never=True)) as running, embedder_of(running, query_seconds=0.05) as embedder:
        with pytest.raises(EngineError, match="in time"):
            await embedder.embed_query("x")
        running.answers.clear()
        assert len(await embedder.embed_passages(["x"])) == 1


async def test_a_service_that_drips_its_answer_is_given_up_as_well() -> None:
    async with service(Answer(drips=1)) as running, embedder_of(running, timeout_seconds=0.1) as embedder:
        with pytest.raises(EngineError, match="in time"):
            await embedder.embed_query("x")


async def test_an_answer_without_end_is_cut() -> None:
    async with service(*[Answer(drips=1_000_000)] * 2) as running, embedder_of(running) as embedder:
        with pytest.raises(EngineError, match="more than 64 MB"):
            await embedder.embed_passages(["x"])


async def test_a_service_that_is_not_there_is_told() -> None:
    async with service() as running:
        pass
    async with embedder_of(running) as embedder:
        with pytest.raises(EngineError, match="unreachable"):
            await embedder.embed_query("x")


@pytest.mark.parametrize(
    "answer",
    [
        answer_of(),
        answer_of([1, 2], [1, 2], [1, 2]),
        answer_of([1, 2], [1, 2, 3]),
        answer_of([1, 2], ["one", "two"]),
        answer_of([1, 2], "AAAA"),
        answer_of([1, 2], [0, 0]),
        answer_of([], []),
        answer_of([1, 2], [1e300, 1]),
        Answer(body=b'{"data": [{"embedding": [1, 2]}, {"embedding": [NaN, 2]}]}'),
        Answer(body=b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
        Answer(body=b'{"data": [1, 2]}'),
        Answer(body=b"{}"),
        Answer(body=b"<html>"),
    ],
    ids=lambda answer: answer.body.decode()[:60],
)
async def test_an_answer_that_is_not_the_vectors_is_refused(answer: Answer) -> None:
    async with service(*[answer] * (1 + RETRIES)) as running, embedder_of(running) as embedder:
        with pytest.raises(EngineError, match="answered with"):
            await embedder.embed_passages(["one", "two"])
        assert embedder.dependency.describe()["failures"] == 1


async def test_a_model_that_changes_its_size_is_refused() -> None:
    async with service(answer_of([1, 2])) as running, embedder_of(running) as embedder:
        await embedder.embed_query("x")
        with pytest.raises(EngineError, match="3 dimensions, after 2 before"):
            await embedder.embed_query("x")


async def test_a_question_that_gets_no_vector_is_noted_so_that_its_answer_is_not_kept() -> None:
    async with service(*[Answer(500)] * 2) as running, embedder_of(running) as embedder:
        with track_shortfalls() as shortfalls:
            with pytest.raises(EngineError):
                await embedder.embed_query("x")
            assert shortfalls.count == 1
            await embedder.embed_query("x")
            assert shortfalls.count == 1


async def test_every_request_to_the_service_is_counted_by_how_it_ended() -> None:
    metrics = Metrics()
    async with service(Answer(500)) as running, embedder_of(running) as embedder:
        embedder.dependency.watch(metrics)
        await embedder.embed_query("x")
    counted = metrics.exposition().decode()
    for outcome in ("failed", "ok"):
        series = f'{{dependency="embedding",operation="embed",outcome="{outcome}"}}'
        assert f"refdesk_dependency_requests_total{series} 1.0" in counted
