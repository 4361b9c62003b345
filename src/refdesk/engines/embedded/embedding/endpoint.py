"""A model behind an OpenAI-compatible `/embeddings` endpoint: a service in the house, or one that is paid for.

Nothing of what it answers is taken on trust: count, order, size and numbers are checked. The key is sent, never told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import orjson

from refdesk.engines.embedded.embedding.port import Vector, Vectors
from refdesk.errors import EngineError

BATCH = 64
"""Texts in a request: what every service takes, and the answer stays near a megabyte."""

ATTEMPTS = 3
"""Of a request. Whoever waits for a search has had enough after that, and ingestion comes back by itself."""

FIRST_PAUSE_SECONDS = 0.5
"""Before the second attempt; twice as long before the next."""

LONGEST_PAUSE_SECONDS = 10.0
"""A service that asks for more patience is left alone, and its wish passed on to the caller."""

PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Answers that may be another one the next time."""

MAX_TOLD_CHARACTERS = 200
"""Of what a service says about an error."""

Pause = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def open_endpoint(
    url: str, key: str | None, model: str, timeout_seconds: float, *, pause: Pause = anyio.sleep
) -> AsyncIterator[EndpointEmbedder]:
    """An embedder with one client for its whole life; `url` is the address up to `/embeddings`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx2.AsyncClient(timeout=timeout_seconds, headers=headers, follow_redirects=False) as client:
        yield EndpointEmbedder(client, f"{url.rstrip('/')}/embeddings", model, pause)


class EndpointEmbedder:
    """Asks the service for vectors, some texts at a time, again when it was busy."""

    def __init__(self, client: httpx2.AsyncClient, url: str, model: str, pause: Pause) -> None:
        self._client = client
        self._url = url
        self._model = model
        self._pause = pause
        self.name = f"endpoint:{model}"
        self.dimensions = 0

    async def embed_query(self, text: str) -> Vector:
        vector: Vector = (await self._embed([text]))[0]
        return vector

    def embed_query_now(self, text: str) -> Vector | None:
        return None

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        batches = [await self._embed(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]
        return np.concatenate(batches) if batches else np.empty((0, self.dimensions), np.float32)

    async def _embed(self, texts: Sequence[str]) -> Vectors:
        answer = await self._ask({"model": self._model, "input": list(texts), "encoding_format": "float"})
        vectors = _vectors(answer, len(texts))
        if self.dimensions and vectors.shape[1] != self.dimensions:
            raise _misbehaved(f"vectors of {vectors.shape[1]} numbers after such of {self.dimensions}")
        self.dimensions = vectors.shape[1]
        return vectors

    async def _ask(self, body: dict[str, Any]) -> bytes:
        """The answer's body; what may pass is tried again, a bounded number of times."""
        content = orjson.dumps(body)
        for attempt in range(1, ATTEMPTS + 1):
            outcome = await self._attempt(content)
            if isinstance(outcome, bytes):
                return outcome
            wait = FIRST_PAUSE_SECONDS * 2 ** (attempt - 1) if outcome.retry_after is None else outcome.retry_after
            if attempt == ATTEMPTS or wait > LONGEST_PAUSE_SECONDS:
                raise outcome
            await self._pause(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, content: bytes) -> bytes | EngineError:
        """An answer, or an error that may pass; raises those that will not."""
        try:
            response = await self._client.post(self._url, content=content, headers={"Content-Type": "application/json"})
        except httpx2.TimeoutException:
            return EngineError("The embedding service did not answer in time")
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return EngineError(f"The embedding service cannot be reached ({type(error).__name__})")
        if response.status_code == 200:
            return response.content
        if response.status_code in PASSING:
            return _refusal(response)
        raise _refusal(response)


def _refusal(response: httpx2.Response) -> EngineError:
    match response.status_code:
        case 401 | 403:
            return EngineError("The embedding service refuses the key; check embedding.api_key")
        case 429:
            return EngineError("The embedding service has too many requests", retry_after=_retry_after(response))
    told = f": {said}" if (said := _message(response)) else ""
    return EngineError(
        f"The embedding service answered {response.status_code}{told}", retry_after=_retry_after(response)
    )


def _retry_after(response: httpx2.Response) -> float | None:
    """The seconds that the service asks for; a date, which the header may also be, is not worth understanding."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 else None


def _message(response: httpx2.Response) -> str:
    """What an OpenAI-compatible service says was wrong, such as the model's name."""
    try:
        match orjson.loads(response.content):
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


def _misbehaved(what: str) -> EngineError:
    return EngineError(f"The embedding service answered with {what}; check embedding.api_url and embedding.api_model")
