"""The chunks around a chunk: from the shelf or the engine here, or from another service that keeps them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import httpx2
import orjson
from anyio import fail_after, to_thread
from pydantic import BaseModel, ConfigDict, ValidationError

from refdesk.calls import TenantId
from refdesk.config import ReaderConfig
from refdesk.documents.conversion_store import HANDLE
from refdesk.engines.base import Engine
from refdesk.errors import DocumentNotFound, EngineError
from refdesk.resilience.dependency import SERVICE, Dependency
from refdesk.resilience.response_body import read_body
from refdesk.resilience.retries import retry_after_seconds
from refdesk.telemetry import outgoing_headers
from refdesk.tools.document_lookup import Shelves
from refdesk.tools.outline import brief_path
from refdesk.validation import shortened

RETRIES = 1
"""Of a request: to read is harmless, and what passes by itself has mostly passed by then."""

PATIENCE_SECONDS = 5.0
"""After which a caller is told to try again, where the service itself says nothing."""

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""The most that another service is listened to."""


class WindowChunk(BaseModel):
    """A chunk as it is handed out, here and between services."""

    model_config = ConfigDict(frozen=True)

    chunk_id: str
    text: str
    section_id: str | None = None
    section: str | None = None
    page: int | None = None


class _Window(BaseModel):
    chunks: list[WindowChunk]


class LocalWindows:
    """Chunks that this desk has."""

    def __init__(self, shelves: Shelves, engine: Engine) -> None:
        self._shelves = shelves
        self._engine = engine

    async def around(
        self, tenant: TenantId, doc_id: str, anchor: str, before: int, after: int, trace_id: str
    ) -> Sequence[WindowChunk]:
        """The chunks around the anchor, in reading order."""
        if not HANDLE.fullmatch(doc_id):
            passages = await self._engine.window(tenant, doc_id, anchor, before=before, after=after)
            if passages is not None:
                return [_chunk(p.chunk_id, p.text, p.section, p.path, p.page) for p in passages]
        async with self._shelves.reading(tenant, doc_id) as shelf:
            chunks = await to_thread.run_sync(shelf.window, anchor, before, after)
        if chunks is None:
            raise DocumentNotFound(
                f"{shortened(doc_id)!r} has no chunk {shortened(anchor)!r}; doc_local_search gives chunk ids."
            )
        return [_chunk(c.id, c.text, c.section, c.path, c.first_page) for c in chunks]


def _chunk(id: str, text: str, section_id: str, path: Sequence[str], page: int | None) -> WindowChunk:
    return WindowChunk(chunk_id=id, text=text, section_id=section_id, section=brief_path(path) or None, page=page)


class RemoteWindows:
    """Chunks that another service has, asked for over HTTP; the tenant is passed on, the caller's headers are not."""

    def __init__(self, client: httpx2.AsyncClient, url: str, key: str | None, timeout_seconds: float) -> None:
        self._client = client
        self._url = url
        self._seconds = timeout_seconds
        self._headers = {"content-type": "application/json"} | ({"x-api-key": key} if key else {})
        self.dependency = Dependency("window", SERVICE)

    async def around(
        self, tenant: TenantId, doc_id: str, anchor: str, before: int, after: int, trace_id: str
    ) -> Sequence[WindowChunk]:
        """The chunks around the anchor, in reading order."""
        asked = {
            "tenant_id": tenant,
            "doc_id": doc_id,
            "anchor_chunk_id": anchor,
            "window_before": before,
            "window_after": after,
            "trace_id": trace_id,
        }
        try:
            window = await self.dependency.run(partial(self._ask, orjson.dumps(asked)), retries=RETRIES)
        except TimeoutError as error:
            raise _down("did not answer in time", PATIENCE_SECONDS) from error
        except EngineError as error:
            raise EngineError(error.detail, retry_after=error.retry_after or PATIENCE_SECONDS) from error
        if isinstance(window, _Window):
            return window.chunks
        if window in (404, 422):
            raise DocumentNotFound(
                f"There is no document {shortened(doc_id)!r} with a chunk {shortened(anchor)!r}; "
                "doc_local_search gives chunk ids."
            )
        raise _down(f"answered with status {window}", PATIENCE_SECONDS)

    async def _ask(self, body: bytes) -> _Window | int:
        """The window; or the status of a refusal, which says nothing against the service and is the same next time."""
        with self.dependency.asking("window"):
            status, retry_after, answer = await self._post(body)
            if status >= 500:
                raise _down(f"answered with status {status}", retry_after)
            if status != 200:
                return status
            try:
                return _Window.model_validate(orjson.loads(answer))
            except (orjson.JSONDecodeError, ValidationError) as error:
                raise _down("gave an answer that is no chunk window") from error

    async def _post(self, body: bytes) -> tuple[int, float | None, bytes]:
        """Status, the patience that is asked for, and body; the time counts to the end of it, and is had only once."""
        headers = {**self._headers, **outgoing_headers()}
        try:
            with fail_after(self._seconds):
                async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                    wait = retry_after_seconds(response.headers.get("retry-after"))
                    return response.status_code, wait, await _received(response)
        except httpx2.TimeoutException as error:
            raise TimeoutError from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _down("cannot be reached") from error


async def _received(response: httpx2.Response) -> bytes:
    return await read_body(response, MAX_ANSWER_BYTES, lambda: _down("gave an answer that is too long"))


def _down(what: str, retry_after: float | None = None) -> EngineError:
    return EngineError(f"The retrieval service {what}; try again in a moment", retry_after=retry_after)


Windows = LocalWindows | RemoteWindows


@asynccontextmanager
async def open_windows(settings: ReaderConfig, local: LocalWindows) -> AsyncIterator[Windows]:
    """Where chunk windows come from: the service that is set, else this desk itself."""
    if settings.retrieval_window_url is None:
        yield local
        return
    key = settings.retrieval_api_key.get_secret_value() if settings.retrieval_api_key else None
    seconds = settings.retrieval_timeout_seconds
    async with httpx2.AsyncClient(timeout=seconds, trust_env=False, follow_redirects=False) as client:
        yield RemoteWindows(client, settings.retrieval_window_url.get_secret_value(), key, seconds)
