"""A model behind an OpenAI-compatible `/embeddings` endpoint: a service in the house, or one that is paid for.

Nothing of what it answers is taken on trust: count, order, size and numbers are checked. The key is sent, never told.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import orjson

from refdesk.config import CircuitBreakerConfig
from refdesk.engines.embedded.embedding.base import Vector, Vectors
from refdesk.errors import EngineError, Overloaded, RateLimited
from refdesk.resilience.dependency import Dependency, Pause
from refdesk.resilience.partial_results import fell_short
from refdesk.resilience.response_body import read_body
from refdesk.resilience.retries import LONGEST_PAUSE_SECONDS, retry_after_seconds
from refdesk.telemetry import outgoing_headers

BATCH = 64
"""Texts in a request: what every service takes, and the answer stays near a megabyte."""

RETRIES = 1
"""Of a request: for what passes by itself. Search can do without, and ingestion comes back for its passages."""

QUERY_SECONDS = 3.0
"""The longest that a search waits for its question's vector: then it finds by words. Passages have all of the time that
is set; nobody waits for them."""

QUERY_PAUSE_SECONDS = 0.5
"""The longest pause that a search makes before it asks again."""

BREAKER = CircuitBreakerConfig(failure_threshold=5, timeout_seconds=5, success_threshold=1)
"""Tried again sooner than other services: while it is left alone, search is the worse for it and ingestion waits, and
a trial costs one search three seconds at most."""

CONCURRENCY = 32
"""Requests at a time: for a model that is run in the house these are many."""

PASSING = frozenset({408, 500, 502, 503, 504})
"""Answers that may be another one the next time."""

MAX_ANSWER_BYTES = 64_000_000
"""Of an answer: sixty times what a request's vectors take."""

MAX_TOLD_CHARACTERS = 200
"""Of what a service says about an error."""


@asynccontextmanager
async def open_endpoint(
    url: str,
    key: str | None,
    model: str,
    timeout_seconds: float,
    *,
    query_seconds: float = QUERY_SECONDS,
    pause: Pause = anyio.sleep,
    now: Callable[[], float] = time.monotonic,
) -> AsyncIterator[EndpointEmbedder]:
    """An embedder with one client for its whole life; `url` is the address up to `/embeddings`."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    dependency = Dependency("embedding", BREAKER, concurrency=CONCURRENCY, pause=pause, now=now)
    async with httpx2.AsyncClient(timeout=timeout_seconds, headers=headers, follow_redirects=False) as client:
        yield EndpointEmbedder(
            client, f"{url.rstrip('/')}/embeddings", model, timeout_seconds, dependency, query_seconds
        )


class EndpointEmbedder:
    """Asks the service for vectors, some texts at a time; made by `open_endpoint`."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        model: str,
        timeout_seconds: float,
        dependency: Dependency,
        query_seconds: float,
    ) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._seconds = timeout_seconds
        self._query_seconds = min(timeout_seconds, query_seconds)
        self.dependency = dependency
        self.name = f"endpoint:{model}"
        self.dimensions = 0

    async def embed_query(self, text: str) -> Vector:
        try:
            vectors = await self._embed([text], self._query_seconds, QUERY_PAUSE_SECONDS)
        except EngineError:
            fell_short()
            raise
        vector: Vector = vectors[0]
        return vector

    def embed_query_now(self, text: str) -> Vector | None:
        return None

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        batches = [
            await self._embed(texts[start : start + BATCH], self._seconds, LONGEST_PAUSE_SECONDS)
            for start in range(0, len(texts), BATCH)
        ]
        return np.concatenate(batches) if batches else np.empty((0, self.dimensions), np.float32)

    async def _embed(self, texts: Sequence[str], seconds: float, patience: float) -> Vectors:
        """The vectors, or an `EngineError` whatever was in the way: that is what search does without."""
        ask = partial(self._counted, texts, seconds)
        try:
            vectors = await self.dependency.run(ask, retries=RETRIES, patience=patience)
        except TimeoutError as error:
            raise EngineError("The embedding service did not answer in time") from error
        except (RateLimited, Overloaded) as error:
            raise EngineError(error.detail, retry_after=error.retry_after) from error
        if isinstance(vectors, EngineError):
            raise vectors
        if self.dimensions and vectors.shape[1] != self.dimensions:
            raise _misbehaved(f"vectors of {vectors.shape[1]} numbers after such of {self.dimensions}")
        self.dimensions = vectors.shape[1]
        return vectors

    async def _counted(self, texts: Sequence[str], seconds: float) -> Vectors | EngineError:
        with self.dependency.asking("embed"):
            return await self._ask(texts, seconds)

    async def _ask(self, texts: Sequence[str], seconds: float) -> Vectors | EngineError:
        """Vectors; or a refusal, which is returned: who refuses a request is there, and will refuse it again.

        Raises what may pass. A time-out is not an error that is retried: who waited that long waits no longer.
        """
        body = orjson.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"})
        try:
            with anyio.fail_after(seconds):
                request = self._client.stream("POST", self._url, content=body, headers=outgoing_headers())
                async with request as response:
                    content = await read_body(response, MAX_ANSWER_BYTES, _too_long)
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise EngineError(f"The embedding service cannot be reached ({type(error).__name__})") from error
        if response.status_code == 200:
            return _vectors(content, len(texts))
        if response.status_code == 429:
            raise RateLimited("The embedding service has too many requests", retry_after=_retry_after(response))
        if response.status_code in PASSING:
            raise _refusal(response, content)
        return _refusal(response, content)


def _refusal(response: httpx2.Response, content: bytes) -> EngineError:
    if response.status_code in (401, 403):
        return EngineError("The embedding service refuses the key; check embedding.api_key")
    told = f": {said}" if (said := _message(content)) else ""
    return EngineError(
        f"The embedding service answered {response.status_code}{told}", retry_after=_retry_after(response)
    )


def _retry_after(response: httpx2.Response) -> float | None:
    return retry_after_seconds(response.headers.get("retry-after"))


def _message(content: bytes) -> str:
    """What an OpenAI-compatible service says was wrong, such as the model's name."""
    try:
        match orjson.loads(content):
            case {"error": {"message": str() as message}} | {"error": str() as message} | {"message": str() as message}:
                return message[:MAX_TOLD_CHARACTERS]
    except orjson.JSONDecodeError:
        return ""
    return ""


def _vectors(answer: bytes, count: int) -> Vectors:
    """The vectors in the order of the texts, each of length one."""
    import numpy as np

    rows = _rows(answer)
    if sorted(rows) != list(range(count)):
        raise _misbehaved(f"{len(rows)} vectors for {count} texts")
    try:
        vectors = np.array([rows[index] for index in range(count)], np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise _misbehaved("vectors that are not rows of numbers of one length") from error
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.isfinite(lengths).all() or not lengths.all():
        raise _misbehaved("vectors that are empty, zero or not of finite numbers")
    normal: Vectors = (vectors / lengths).astype(np.float32)
    return normal


def _rows(answer: bytes) -> dict[int, Any]:
    """Each vector by the place of its text; services that leave the places out answer in order."""
    try:
        parsed = orjson.loads(answer)
    except orjson.JSONDecodeError as error:
        raise _misbehaved("something that is not JSON") from error
    match parsed:
        case {"data": [*data]}:
            return dict(_row(place, item) for place, item in enumerate(data))
    raise _misbehaved("no list of vectors")


def _row(place: int, item: Any) -> tuple[int, Any]:
    match item:
        case {"index": int() as index, "embedding": [*numbers]}:
            return index, numbers
        case {"embedding": [*numbers]}:
            return place, numbers
    raise _misbehaved("an item that is no vector")


def _too_long() -> EngineError:
    return _misbehaved(f"more than {MAX_ANSWER_BYTES // 1_000_000} MB")


def _misbehaved(what: str) -> EngineError:
    return EngineError(f"The embedding service answered with {what}; check embedding.api_url and embedding.api_model")
