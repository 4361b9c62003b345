"""Chunk windows: the chunks around a chunk, from this desk or another service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import orjson
from anyio import fail_after, to_thread
from pydantic import BaseModel, ConfigDict, ValidationError
from yarl import URL

from refdesk.calls import TenantId
from refdesk.config import ReaderConfig
from refdesk.documents.conversion_store import HANDLE
from refdesk.engines.base import DocumentReader
from refdesk.errors import DocumentNotFound, EngineError
from refdesk.resilience.dependency import SERVICE, Dependency
from refdesk.resilience.http_client import open_http_session, read_body, split_login
from refdesk.resilience.retries import parse_retry_after
from refdesk.telemetry import outgoing_headers
from refdesk.tools.document_lookup import DocumentLookup
from refdesk.tools.places import build_chunk_not_found
from refdesk.tools.previews import format_path
from refdesk.validation import shorten

RETRIES = 1
"""Reads are safe to retry, and most transient failures are over by then."""

DEFAULT_RETRY_AFTER_SECONDS = 5.0
"""Retry delay for callers if the service gives none."""

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Largest response of another service."""


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
    """Chunk windows of documents on this desk."""

    dependency = None

    def __init__(self, documents: DocumentLookup, engine: DocumentReader) -> None:
        self._documents = documents
        self._engine = engine

    async def read_around(
        self, tenant: TenantId, doc_id: str, anchor: str, before: int, after: int, trace_id: str
    ) -> Sequence[WindowChunk]:
        """Return the chunks around the anchor, in reading order."""
        name = anchor.removeprefix(f"{doc_id}#")
        if not HANDLE.fullmatch(doc_id):
            passages = await self._engine.window(tenant, doc_id, f"{doc_id}#{name}", before=before, after=after)
            if passages is not None:
                return [_build_chunk(p.chunk_id, p.text, p.section, p.path, p.page) for p in passages]
        async with self._documents.open_document(tenant, doc_id) as packed:
            chunks = await to_thread.run_sync(packed.window, name, before, after)
            if chunks is None:
                raise build_chunk_not_found(packed, doc_id, name)
        return [_build_chunk(make_chunk_id(doc_id, c.id), c.text, c.section, c.path, c.first_page) for c in chunks]


def make_chunk_id(doc_id: str, name: str) -> str:
    """Return the id of a chunk in results: with the document's id, unless that is a handle."""
    return name if HANDLE.fullmatch(doc_id) else f"{doc_id}#{name}"


def _build_chunk(id: str, text: str, section_id: str, path: Sequence[str], page: int | None) -> WindowChunk:
    return WindowChunk(chunk_id=id, text=text, section_id=section_id, section=format_path(path) or None, page=page)


class RemoteWindows:
    """Chunk windows from another service over HTTP; the tenant is forwarded, the caller's headers are not."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: URL,
        key: str | None,
        timeout_seconds: float,
        login: str | None = None,
    ) -> None:
        self._session = session
        self._url = url
        self._seconds = timeout_seconds
        optional = {"x-api-key": key, "authorization": login}
        self._headers = {"content-type": "application/json", **{k: v for k, v in optional.items() if v}}
        self.dependency = Dependency("window", SERVICE)

    async def read_around(
        self, tenant: TenantId, doc_id: str, anchor: str, before: int, after: int, trace_id: str
    ) -> Sequence[WindowChunk]:
        """Return the chunks around the anchor, in reading order."""
        body = {
            "tenant_id": tenant,
            "doc_id": doc_id,
            "anchor_chunk_id": anchor,
            "window_before": before,
            "window_after": after,
            "trace_id": trace_id,
        }
        try:
            window = await self.dependency.run(partial(self._request_window, orjson.dumps(body)), retries=RETRIES)
        except TimeoutError as error:
            raise _build_error("did not answer in time", DEFAULT_RETRY_AFTER_SECONDS) from error
        except EngineError as error:
            raise EngineError(error.detail, retry_after=error.retry_after or DEFAULT_RETRY_AFTER_SECONDS) from error
        if isinstance(window, _Window):
            return window.chunks
        if window in (404, 422):
            raise DocumentNotFound(
                f"There is no document {shorten(doc_id)!r} with a chunk {shorten(anchor)!r}; "
                "doc_local_search gives chunk ids."
            )
        raise _build_error(f"answered with status {window}", DEFAULT_RETRY_AFTER_SECONDS)

    async def _request_window(self, body: bytes) -> _Window | int:
        """Return the window, or the status of a refusal: it is no failure of the service, and not retried."""
        with self.dependency.asking("window"):
            status, retry_after, answer = await self._post(body)
            if status >= 500:
                raise _build_error(f"answered with status {status}", retry_after)
            if status != 200:
                return status
            try:
                return _Window.model_validate(orjson.loads(answer))
            except (orjson.JSONDecodeError, ValidationError) as error:
                raise _build_error("returned an invalid chunk window") from error

    async def _post(self, body: bytes) -> tuple[int, float | None, bytes]:
        """Return status, retry delay and body, within one timeout."""
        headers = {**self._headers, **outgoing_headers()}
        try:
            with fail_after(self._seconds):
                async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                    retry_after = parse_retry_after(response.headers.get("retry-after"))
                    return (
                        response.status,
                        retry_after,
                        await read_body(
                            response, MAX_ANSWER_BYTES, lambda: _build_error("returned an answer that is too long")
                        ),
                    )
        except aiohttp.ServerTimeoutError as error:
            raise TimeoutError from error
        except aiohttp.ClientError as error:
            raise _build_error("cannot be reached") from error


def _build_error(what: str, retry_after: float | None = None) -> EngineError:
    return EngineError(f"The retrieval service {what}; try again in a moment", retry_after=retry_after)


Windows = LocalWindows | RemoteWindows


@asynccontextmanager
async def open_windows(settings: ReaderConfig, local: LocalWindows) -> AsyncIterator[Windows]:
    """Open the configured window service, or else use this desk."""
    if settings.retrieval_window_url is None:
        yield local
        return
    key = settings.retrieval_api_key.get_secret_value() if settings.retrieval_api_key else None
    seconds = settings.retrieval_timeout_seconds
    url, login = split_login(URL(settings.retrieval_window_url.get_secret_value()))
    async with open_http_session(url, connect_seconds=seconds) as session:
        yield RemoteWindows(session, url, key, seconds, login)
