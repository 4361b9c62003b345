"""Chunk windows, the chunks around a chunk, from another service."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
import orjson
from anyio import fail_after
from pydantic import BaseModel, ValidationError
from yarl import URL

from refdesk.calls import TenantId
from refdesk.config.models import ReaderConfig
from refdesk.errors import DocumentNotFound, EngineError
from refdesk.resilience.dependency import SERVICE, Dependency, parse_retry_after
from refdesk.resilience.http_client import open_http_session, read_body, split_login
from refdesk.telemetry.traces import outgoing_headers
from refdesk.tools.json_schema import ResultItem
from refdesk.validation import shorten

RETRIES = 1
"""Reads are safe to retry, and most transient failures are over by then."""

DEFAULT_RETRY_AFTER_SECONDS = 5.0
"""Retry delay for callers if the service gives none."""

MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""Largest response of another service."""


class WindowChunk(ResultItem):
    """A chunk as it is handed out, here and between services."""

    chunk_id: str
    text: str
    section_id: str | None = None
    section: str | None = None
    page: int | None = None


class _Window(BaseModel):
    chunks: list[WindowChunk]


class RemoteWindows:
    """Chunk windows from another service over HTTP; the tenant is forwarded, the caller's headers are not."""

    def __init__(self, session: aiohttp.ClientSession, url: URL, login: str | None, settings: ReaderConfig) -> None:
        self._session = session
        self._url = url
        self._seconds = settings.retrieval_timeout_seconds
        key = settings.retrieval_api_key.get_secret_value() if settings.retrieval_api_key else None
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
        headers = {**self._headers, **outgoing_headers()}
        with self.dependency.asking("window"):
            try:
                with fail_after(self._seconds):
                    async with self._session.post(
                        self._url, data=body, headers=headers, allow_redirects=False
                    ) as response:
                        answer = await read_body(
                            response, MAX_ANSWER_BYTES, lambda: _build_error("returned an answer that is too long")
                        )
            except aiohttp.ServerTimeoutError as error:
                raise TimeoutError from error
            except aiohttp.ClientError as error:
                raise _build_error("cannot be reached") from error
            if response.status >= 500:
                retry_after = parse_retry_after(response.headers.get("retry-after"))
                raise _build_error(f"answered with status {response.status}", retry_after)
            if response.status != 200:
                return response.status
            try:
                return _Window.model_validate(orjson.loads(answer))
            except (orjson.JSONDecodeError, ValidationError) as error:
                raise _build_error("returned an invalid chunk window") from error


def _build_error(what: str, retry_after: float | None = None) -> EngineError:
    return EngineError(f"The retrieval service {what}; try again in a moment", retry_after=retry_after)


@asynccontextmanager
async def open_windows(settings: ReaderConfig) -> AsyncIterator[RemoteWindows | None]:
    """Open the configured window service; yield None if there is none."""
    if settings.retrieval_window_url is None:
        yield None
        return
    url, login = split_login(URL(settings.retrieval_window_url.get_secret_value()))
    async with open_http_session(url, connect_seconds=settings.retrieval_timeout_seconds) as session:
        yield RemoteWindows(session, url, login, settings)
