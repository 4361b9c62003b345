"""Client of an OpenAI-compatible `/embeddings` endpoint.

Responses are validated: count, order, size and numbers. The API key never appears in errors.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import anyio
import orjson
from yarl import URL

from refdesk.calls import mark_partial_result
from refdesk.config.models import CircuitBreakerConfig
from refdesk.engines.embedded.embedding import Vector, Vectors
from refdesk.errors import EngineError, Overloaded, RateLimited
from refdesk.resilience.dependency import LONGEST_PAUSE_SECONDS, Dependency, Pause, parse_retry_after
from refdesk.resilience.http_client import open_http_session, read_body, split_login, wrap_body
from refdesk.telemetry.traces import outgoing_headers

BATCH = 64
"""Texts per request: accepted by every service, and the response stays near a megabyte."""

RETRIES = 1
"""Retries of a transient failure. Search can fall back, and ingestion retries later."""

QUERY_SECONDS = 3.0
"""Maximum time a search waits for its query vector before it falls back to lexical search. Passages use the whole
configured timeout."""

QUERY_PAUSE_SECONDS = 0.5
"""Maximum pause before a search retries."""

BREAKER = CircuitBreakerConfig(failure_threshold=5, timeout_seconds=5, success_threshold=1)
"""Shorter than for other services: while the breaker is open, search is worse and ingestion waits, and a trial costs
one search three seconds at most."""

CONCURRENCY = 32
"""Concurrent requests. That is a lot for a self-hosted model."""

TRANSIENT_STATUSES = frozenset({408, 500, 502, 503, 504})
"""Statuses worth a retry."""

MAX_RESPONSE_BYTES = 64_000_000
"""Maximum response size: sixty times what the vectors of a request take."""

MAX_MESSAGE_CHARACTERS = 200
"""Maximum length of the service's error message."""


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
    """Open an embedder with one HTTP client. `url` is the base URL, without `/embeddings`."""
    address, login = split_login(URL(f"{url.rstrip('/')}/embeddings"))
    authorization = login or (f"Bearer {key}" if key else None)
    headers = {"Content-Type": "application/json"} | ({"Authorization": authorization} if authorization else {})
    dependency = Dependency("embedding", BREAKER, concurrency=CONCURRENCY, pause=pause, now=now)
    async with open_http_session(address, connect_seconds=timeout_seconds, uses_proxy=True) as session:
        query_seconds = min(timeout_seconds, query_seconds)
        yield EndpointEmbedder(session, address, headers, model, timeout_seconds, query_seconds, dependency)


@dataclass(eq=False, repr=False)
class EndpointEmbedder:
    """Embedder that requests vectors in batches. Created by `open_endpoint`."""

    _session: aiohttp.ClientSession
    _url: URL
    _headers: Mapping[str, str]
    _model: str
    _seconds: float
    _query_seconds: float
    dependency: Dependency
    dimensions: int = 0
    embed_query_sync: None = None

    @property
    def name(self) -> str:
        return f"endpoint:{self._model}"

    async def embed_query(self, text: str) -> Vector:
        try:
            vectors = await self._embed([text], self._query_seconds, QUERY_PAUSE_SECONDS)
        except EngineError:
            mark_partial_result()
            raise
        vector: Vector = vectors[0]
        return vector

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        batches = [
            await self._embed(texts[start : start + BATCH], self._seconds, LONGEST_PAUSE_SECONDS)
            for start in range(0, len(texts), BATCH)
        ]
        return np.concatenate(batches) if batches else np.empty((0, self.dimensions), np.float32)

    async def _embed(self, texts: Sequence[str], seconds: float, max_pause: float) -> Vectors:
        """Return the vectors, or raise EngineError for any failure, so that search can fall back."""
        request = partial(self._request, texts, seconds)
        try:
            vectors = await self.dependency.run(request, retries=RETRIES, patience=max_pause)
        except TimeoutError as error:
            raise EngineError("The embedding service did not respond in time") from error
        except (RateLimited, Overloaded) as error:
            raise EngineError(error.detail, retry_after=error.retry_after) from error
        if isinstance(vectors, EngineError):
            raise vectors
        if self.dimensions and vectors.shape[1] != self.dimensions:
            raise _make_protocol_error(f"vectors of {vectors.shape[1]} dimensions, after {self.dimensions} before")
        self.dimensions = vectors.shape[1]
        return vectors

    async def _request(self, texts: Sequence[str], seconds: float) -> Vectors | EngineError:
        """Return vectors, or the error if the service rejects the request.

        A rejection is returned because the service is up and would reject a retry. Transient errors are raised. A
        timeout isn't retried: the caller has waited long enough.
        """
        body = orjson.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"})
        headers = {**self._headers, **outgoing_headers()}
        too_long = partial(_make_protocol_error, f"more than {MAX_RESPONSE_BYTES // 1_000_000} MB")
        with self.dependency.asking("embed"):
            try:
                with anyio.fail_after(seconds):
                    async with self._session.post(
                        self._url, data=wrap_body(body), headers=headers, allow_redirects=False
                    ) as response:
                        content = await read_body(response, MAX_RESPONSE_BYTES, too_long)
            except aiohttp.ServerTimeoutError as error:
                raise TimeoutError from error
            except aiohttp.ClientError as error:
                raise EngineError(f"The embedding service is unreachable ({type(error).__name__})") from error
            if response.status == 200:
                return _parse_vectors(content, len(texts))
            retry_after = parse_retry_after(response.headers.get("retry-after"))
            if response.status == 429:
                raise RateLimited("The embedding service's rate limit is reached", retry_after=retry_after)
            if response.status in (401, 403):
                return EngineError("The embedding service rejected the key; check embedding.api_key")
            suffix = f": {message}" if (message := _parse_message(content)) else ""
            refusal = EngineError(f"The embedding service answered {response.status}{suffix}", retry_after=retry_after)
            if response.status in TRANSIENT_STATUSES:
                raise refusal
            return refusal


def _parse_message(content: bytes) -> str:
    try:
        match orjson.loads(content):
            case {"error": {"message": str() as message}} | {"error": str() as message} | {"message": str() as message}:
                return message[:MAX_MESSAGE_CHARACTERS]
    except orjson.JSONDecodeError:
        return ""
    return ""


def _parse_vectors(body: bytes, count: int) -> Vectors:
    """Return the normalized vectors in the order of the texts. Services that omit the index answer in order."""
    import numpy as np

    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise _make_protocol_error("a body that isn't JSON") from error
    if not isinstance(parsed, dict) or not isinstance(parsed.get("data"), list):
        raise _make_protocol_error("no list of vectors")
    rows: dict[int, list[Any]] = {}
    for place, item in enumerate(parsed["data"]):
        match item:
            case {"index": int() as index, "embedding": [*numbers]}:
                rows[index] = numbers
            case {"embedding": [*numbers]}:
                rows[place] = numbers
            case _:
                raise _make_protocol_error("an item that isn't a vector")
    if sorted(rows) != list(range(count)):
        raise _make_protocol_error(f"{len(rows)} vectors for {count} texts")
    try:
        vectors = np.array([rows[index] for index in range(count)], np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise _make_protocol_error("vectors of different lengths or without numbers") from error
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    if vectors.ndim != 2 or not np.isfinite(lengths).all() or not lengths.all():
        raise _make_protocol_error("vectors that are empty, zero or not finite")
    normal: Vectors = (vectors / lengths).astype(np.float32)
    return normal


def _make_protocol_error(what: str) -> EngineError:
    return EngineError(f"The embedding service answered with {what}; check embedding.api_url and embedding.api_model")
