"""HTTP transport to R2R with timeouts, size limits, circuit breaker and authentication.

All failures are raised as Refdesk's errors, which never contain request data such as tokens or passwords. R2R's errors
have three formats. Only a short part of their messages is used: validation errors repeat the input, which may have been
a token.


    {"message": …, "error_type": …}          its own errors
    {"detail": [{"msg": …, "loc": …}, …]}    validation errors of its framework
    {"detail": {"message": …, …}}            unexpected errors; `{"detail": "…"}` for limits and routes
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import orjson
from anyio import to_thread
from yarl import URL

from refdesk.config import R2RConfig
from refdesk.engines.r2r.auth import TokenSource
from refdesk.engines.r2r.schemas import is_uuid, make_unusable_error
from refdesk.errors import (
    DependencyError,
    EngineError,
    R2RMisconfigured,
    R2RRefused,
    R2RUnreachable,
    RateLimited,
    RefdeskError,
)
from refdesk.resilience.dependency import Dependency, parse_retry_after
from refdesk.resilience.http_client import CONNECT_ERRORS, open_http_session, read_body, split_login, wrap_body
from refdesk.telemetry import Metrics, outgoing_headers
from refdesk.version import __version__

CONNECT_SECONDS = 3.0
"""Connect timeout in seconds, independent of the request timeout."""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum response size: a thousand of the longest chunks."""

MAX_ERROR_BYTES = 64 * 1024
"""Maximum size of an error response; only its message is used."""

FIRST_BACKOFF_SECONDS = 2.0
"""Delay after a rate limit response, doubled with each further one."""

MAX_BACKOFF_SECONDS = 60.0
"""R2R's limits are per minute."""


@dataclass(frozen=True, slots=True)
class R2RRequest:
    """Request to R2R. Each element of `path` stays one path segment, whatever it contains."""

    method: str
    path: tuple[str, ...]
    seconds: float
    query: tuple[tuple[str, str], ...] = ()
    json: Any = None
    form: Mapping[str, str] | None = None
    retries: int = 0
    """Maximum retries; only for idempotent requests."""
    returns_server_errors: bool = False
    """Whether an error response of R2R itself is returned to the caller instead of counting as an outage."""

    @property
    def operation(self) -> str:
        """Metric label: the path without ids."""
        return f"{self.method} {'/'.join(part for part in self.path if not is_uuid(part))}"


@dataclass(frozen=True, slots=True)
class R2RReply:
    """Response of R2R: status and parsed JSON."""

    status: int
    answer: Any


@dataclass
class RateLimitBackoff:
    """Backoff after rate limit responses, which don't say how long to wait."""

    _until: float = 0.0
    _seconds: float = 0.0

    def get_remaining(self, now: float) -> float:
        """Return the seconds until the next request is allowed."""
        return max(0.0, self._until - now)

    def record_refusal(self, now: float, retry_after: float | None) -> float:
        """Start the backoff and return its remaining seconds. Concurrent refusals count as one."""
        if now >= self._until:
            self._seconds = min(max(self._seconds * 2, FIRST_BACKOFF_SECONDS), MAX_BACKOFF_SECONDS)
            self._until = now + min(retry_after or self._seconds, MAX_BACKOFF_SECONDS)
        return self._until - now

    def record_success(self, now: float) -> None:
        """Reset the backoff. A success during the backoff was already in flight and is ignored."""
        if now >= self._until:
            self._seconds = 0.0


@dataclass(eq=False, repr=False)
class R2RTransport:
    """HTTP transport to one R2R server. Created by `open_r2r_transport`."""

    _session: aiohttp.ClientSession
    _base: str
    _dependency: Dependency
    _metrics: Metrics
    _login: str | None
    """`Authorization` header in place of the token's."""
    _backoff: RateLimitBackoff = field(init=False, default_factory=RateLimitBackoff)

    async def send(self, request: R2RRequest, tokens: TokenSource) -> Any:
        """Send an authenticated request and return the JSON. If the token is rejected, renew it and retry once."""
        token = await tokens.get_token()
        reply = await self.request(request, token)
        if reply.status == 401:
            tokens.mark_rejected(token)
            token = await tokens.get_token()
            reply = await self.request(request, token)
        if reply.status == 401:
            tokens.mark_rejected(token)
        else:
            tokens.mark_accepted(token)
        if reply.status >= 500:
            raise make_server_error(reply.status, reply.answer)
        if reply.status >= 300:
            raise make_refusal(reply.status, reply.answer)
        return reply.answer

    async def request(self, request: R2RRequest, token: str | None = None) -> R2RReply:
        """Send a request and return the reply with any status. Raises if R2R fails."""
        return await self._dependency.run(lambda: self._request(request, token), retries=request.retries)

    async def _request(self, request: R2RRequest, token: str | None) -> R2RReply:
        if remaining := self._backoff.get_remaining(monotonic()):
            raise make_rate_limit_error(remaining)
        authorization = self._login or (f"Bearer {token}" if token else None)
        with self._metrics.asking(self._dependency.name, request.operation):
            try:
                with anyio.move_on_after(request.seconds):
                    # Encoding a long text would block the event loop.
                    body = await to_thread.run_sync(_encode_body, request) if request.form else _encode_body(request)
                    async with self._session.request(
                        request.method,
                        _build_url(self._base, request),
                        data=wrap_body(body),
                        headers=_build_headers(request, authorization),
                        allow_redirects=False,
                    ) as response:
                        return await self._reply(request, response)
            except CONNECT_ERRORS as error:
                raise R2RUnreachable("R2R is unreachable. Check r2r.api_url, or try again later.") from error
            except aiohttp.ClientError as error:
                raise R2RUnreachable("R2R closed the connection. Try again.") from error
            raise R2RUnreachable(f"R2R took longer than {request.seconds:g} seconds. Try again, or raise its timeout.")

    async def _reply(self, request: R2RRequest, response: aiohttp.ClientResponse) -> R2RReply:
        status = response.status
        is_success = 200 <= status < 300
        max_bytes = MAX_RESPONSE_BYTES if is_success else MAX_ERROR_BYTES
        raw = await read_body(
            response, max_bytes, lambda: make_unusable_error(f"it is longer than {max_bytes // 1024:,} kB")
        )
        try:
            answer = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            if is_success:
                raise make_unusable_error("it isn't JSON") from error
            answer = None
        if status == 429:
            retry_after = parse_retry_after(response.headers.get("retry-after"))
            raise make_rate_limit_error(self._backoff.record_refusal(monotonic(), retry_after), answer)
        # An error without a message is a proxy's, not R2R's own.
        if status >= 500 and not (request.returns_server_errors and extract_message(answer)):
            raise make_server_error(status, answer)
        self._backoff.record_success(monotonic())
        return R2RReply(status, answer)


@asynccontextmanager
async def open_r2r_transport(
    settings: R2RConfig, dependency: Dependency, metrics: Metrics
) -> AsyncIterator[R2RTransport]:
    """Open a transport with a connection pool to the configured server."""
    assert settings.api_url is not None
    url, login = split_login(URL(settings.api_url.get_secret_value()))
    base = url.with_path(url.path.rstrip("/").removesuffix("/v3"))
    async with open_http_session(
        base, connect_seconds=CONNECT_SECONDS, max_connections=settings.max_connections
    ) as session:
        yield R2RTransport(session, str(base).rstrip("/"), dependency, metrics, login)


def _build_url(base: str, request: R2RRequest) -> URL:
    parts = [quote(part, safe="", errors="replace") for part in ("v3", *request.path)]
    path = "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in parts)
    query = _encode_pairs(request.query)
    return URL(f"{base}/{path}{f'?{query}' if query else ''}", encoded=True)


def _encode_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='', errors='replace')}" for name, value in pairs)


def _encode_body(request: R2RRequest) -> bytes | None:
    if request.form is not None:
        return _encode_pairs(request.form.items()).encode()
    return orjson.dumps(request.json) if request.json is not None else None


def _build_headers(request: R2RRequest, authorization: str | None) -> dict[str, str]:
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": f"Refdesk/{__version__}",
        **outgoing_headers(),
    }
    if request.form is not None:
        headers["Content-Type"] = "application/x-www-form-urlencoded"
    elif request.json is not None:
        headers["Content-Type"] = "application/json"
    return {**headers, "Authorization": authorization} if authorization else headers


MAX_MESSAGE = 200
"""Maximum number of characters of R2R's message that are passed on."""

NOT_FOUND = 404
"""Status if it doesn't exist, or isn't visible to the service account."""

CONFLICT = 409
"""Status if it already exists, or is being processed."""


class IgnoreStatus:
    """Context manager that suppresses R2RRefused with this status."""

    def __init__(self, status: int) -> None:
        self._status = status

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, R2RRefused) and error.status == self._status


def extract_message(answer: Any) -> str:
    """Return R2R's error message, shortened to one line and without repeated input."""
    match answer:
        case {"message": str(message)} | {"detail": str(message)} | {"detail": {"message": str(message)}}:
            line = " ".join(message.split())
        case {"detail": [*problems]}:
            problems = [_format_problem(problem) for problem in problems if isinstance(problem, dict)]
            line = " ".join("; ".join(problems).split())
        case _:
            return ""
    return f"{line[:MAX_MESSAGE]}…" if len(line) > MAX_MESSAGE else line


def _format_problem(problem: dict[str, Any]) -> str:
    """Format a validation error without its `input`."""
    place = problem.get("loc")
    where = ".".join(str(part) for part in place) if isinstance(place, list) else "request"
    return f"{where}: {str(problem.get('msg', 'is not valid'))[:MAX_MESSAGE]}"


def make_server_error(status: int, answer: Any) -> DependencyError:
    """Return the error for a failure of R2R."""
    message = extract_message(answer)
    return EngineError(f"R2R failed ({status}{f': {message}' if message else ''}). Try again in a moment.")


def make_rate_limit_error(seconds: float, answer: Any = None) -> RateLimited:
    """Return the error for R2R's rate limit."""
    message = extract_message(answer)
    return RateLimited(
        f"R2R's rate limit for the service account is reached{f' ({message})' if message else ''}. "
        f"Try again in {seconds:.0f} seconds; its administrator sets the limits.",
        retry_after=seconds,
    )


def make_refusal(status: int, answer: Any) -> RefdeskError:
    """Return the error for a status below 500."""
    message = extract_message(answer) or "no reason given"
    match status:
        case 404:
            return R2RRefused(f"R2R did not find it ({message}). Check that r2r.api_url is an R2R server.", status)
        case 409:
            return R2RRefused(f"It already exists in R2R ({message}). Change it and try again.", status)
        case 401:
            return R2RMisconfigured("R2R rejected the service account's new token.")
        case 403:
            return R2RRefused(f"R2R denies this to the service account: {message}.", status)
        case _ if 300 <= status < 400:
            return R2RMisconfigured("R2R redirects to another address. Set r2r.api_url to that address.")
    return R2RRefused(f"R2R rejected the request ({status}): {message}. Change it and try again.", status)
