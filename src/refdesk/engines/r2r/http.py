"""HTTP transport to R2R with timeouts, size limits, circuit breaker and authentication.

All failures are raised as Refdesk's errors, which never contain request data such as tokens or passwords. R2R's errors
have three formats. Only a short part of their messages is used: validation errors repeat the input, which may have been
a token.

Access tokens are of the service account. Concurrent callers share one login or refresh. Lifetimes are computed from the
token's own claims and measured on the local monotonic clock, so that the server's clock doesn't matter. Failed logins
are retried with backoff.


    {"message": …, "error_type": …}          its own errors
    {"detail": [{"msg": …, "loc": …}, …]}    validation errors of its framework
    {"detail": {"message": …, …}}            unexpected errors; `{"detail": "…"}` for limits and routes
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import anyio
import orjson
from anyio import to_thread
from yarl import URL

from refdesk.config.models import R2RConfig
from refdesk.engines.r2r.schemas import is_uuid, make_unusable_error, parse_mapping, parse_text, unwrap_results
from refdesk.errors import (
    BreakerOpen,
    ConfigError,
    DependencyError,
    EngineError,
    R2RMisconfigured,
    R2RRefused,
    R2RUnauthenticated,
    R2RUnreachable,
    RateLimited,
    RefdeskError,
    Refused,
)
from refdesk.resilience.dependency import Dependency, parse_retry_after
from refdesk.resilience.http_client import CONNECT_ERRORS, open_http_session, read_body, split_login, wrap_body
from refdesk.resilience.single_flight import SingleFlight
from refdesk.telemetry.metrics import Metrics
from refdesk.telemetry.traces import outgoing_headers
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
"""Maximum delay: R2R's limits are per minute, and the password may have been fixed meanwhile."""

LOGIN_SECONDS = 15.0
"""Timeout of a login, which takes R2R a third of a second, and several seconds on a busy machine."""

RENEW_EARLY_SECONDS = 300.0
"""Time before expiry when a token is renewed: the longest request should still finish with the old one."""

SHORT_LIFETIME_SHARE = 0.8
"""Share of a short lifetime after which the token is renewed, if five minutes would be most of it."""

FIRST_LOGIN_BACKOFF_SECONDS = 1.0
"""Delay after a failed login, doubled with each further failure."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Tokens of a login or refresh."""

    access: str
    refresh: str


class CredentialsRefused(Exception):
    """The server rejected the account, the password or the refresh token."""


@dataclass(frozen=True, slots=True)
class TokenSession:
    """Token pair with its expiry times on the local clock."""

    tokens: TokenPair
    renew_at: float
    expires_at: float
    refresh_expires_at: float
    is_proven: bool = False
    """Whether a request with it was accepted."""

    @classmethod
    def start(cls, tokens: TokenPair, now: float) -> TokenSession:
        """Create the session of new tokens."""
        lifetime = read_lifetime(tokens.access)
        return cls(
            tokens,
            renew_at=now + max(lifetime - RENEW_EARLY_SECONDS, lifetime * SHORT_LIFETIME_SHARE),
            expires_at=now + lifetime,
            refresh_expires_at=now + read_lifetime(tokens.refresh),
        )


def read_lifetime(token: str) -> float:
    """Return the lifetime of a JWT in seconds, or infinity if it isn't stated."""
    try:
        body = token.split(".")[1]
        claims = orjson.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        seconds = float(claims["exp"]) - float(claims["iat"])
    except (IndexError, KeyError, TypeError, ValueError, NotBase64):
        return math.inf
    return seconds if seconds > 0 else math.inf


@dataclass(eq=False, repr=False)
class TokenManager:
    """Shared access token of one service account.

    `login` returns tokens for the account's password, `refresh` for a refresh token, which can be used once. Both raise
    `CredentialsRefused`, or a `DependencyError` if the issuer is unreachable.
    """

    login: Callable[[], Awaitable[TokenPair]]
    refresh: Callable[[str], Awaitable[TokenPair]]
    now: Callable[[], float] = monotonic
    on_event: Callable[[str], None] = lambda _: None
    """Called with `refreshed`, `login` or `failed`."""
    _session: TokenSession | None = field(default=None, init=False)
    _single_flight: SingleFlight[str, str] = field(default_factory=SingleFlight, init=False)
    _failures: int = field(default=0, init=False)
    _unproven: int = field(default=0, init=False)
    """Consecutive tokens that were rejected at their first use."""
    _not_before: float = field(default=-math.inf, init=False)
    _last_failure: DependencyError | None = field(default=None, init=False)

    async def get_token(self) -> str:
        """Return a valid token. Waits for a new one only if there is none."""
        session, now = self._session, self.now()
        if session is not None and now < session.renew_at:
            return session.tokens.access
        usable = session.tokens.access if session is not None and now < session.expires_at else None
        if now < self._not_before:
            if usable is not None:
                return usable
            # The last failure again: R2R isn't called during the backoff.
            failure = self._last_failure
            assert failure is not None
            raise type(failure)(failure.detail, retry_after=self._not_before - now)
        try:
            return await self._single_flight.run("token", self._renew)
        except (DependencyError, Refused):
            if usable is None:
                raise
            return usable

    def mark_accepted(self, token: str) -> None:
        """Record that a request with this token was accepted."""
        session = self._session
        if session is not None and session.tokens.access == token and not session.is_proven:
            self._session = replace(session, is_proven=True)
            self._failures = self._unproven = 0

    def mark_rejected(self, token: str) -> None:
        """Record that a request with this token was rejected, and invalidate it. Outdated tokens are ignored."""
        session = self._session
        if session is None or session.tokens.access != token or session.expires_at == -math.inf:
            return
        self._session = replace(session, renew_at=-math.inf, expires_at=-math.inf)
        self._unproven += not session.is_proven
        if self._unproven > 1:
            # A server that rejects its own new tokens twice will reject the next one too.
            self._record_failure(R2RUnauthenticated("R2R rejected the token it has just issued."))

    async def _renew(self) -> str:
        session = self._session
        try:
            tokens = await self._fetch_tokens(session)
        except CredentialsRefused as error:
            failure = R2RUnauthenticated("R2R rejected the service account's login. Check r2r.email and r2r.password.")
            self._record_failure(failure)
            raise failure from error
        except BreakerOpen:
            raise  # no request was made
        except DependencyError as error:
            self._record_failure(BreakerOpen(f"{error.detail} Refdesk waits before it tries again."))
            raise
        if self._unproven < 2:
            self._not_before = -math.inf
        self._session = TokenSession.start(tokens, self.now())
        return tokens.access

    async def _fetch_tokens(self, session: TokenSession | None) -> TokenPair:
        if session is not None and self.now() < session.refresh_expires_at:
            try:
                tokens = await self.refresh(session.tokens.refresh)
                self.on_event("refreshed")
                return tokens
            except CredentialsRefused:
                # Used, revoked or expired: don't use it again, even if the login fails.
                self._session = replace(session, refresh_expires_at=-math.inf)
        tokens = await self.login()
        self.on_event("login")
        return tokens

    def _record_failure(self, failure: DependencyError) -> None:
        self.on_event("failed")
        self._failures += 1
        backoff = min(FIRST_LOGIN_BACKOFF_SECONDS * 2.0 ** min(self._failures - 1, 10), MAX_BACKOFF_SECONDS)
        self._not_before = self.now() + backoff
        self._last_failure = failure


class ApiKeySource:
    """API key in place of an account. It never changes, so a rejected key stays rejected."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def get_token(self) -> str:
        return self._key

    def mark_accepted(self, token: str) -> None:
        pass

    def mark_rejected(self, token: str) -> None:
        raise R2RUnauthenticated("R2R rejected the API key. Check r2r.api_key.")


TokenSource = TokenManager | ApiKeySource


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
    tokens: TokenSource = field(init=False)
    _backoff: RateLimitBackoff = field(init=False, default_factory=RateLimitBackoff)

    async def send(self, request: R2RRequest) -> Any:
        """Send an authenticated request and return the JSON. If the token is rejected, renew it and retry once."""
        tokens = self.tokens
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

    async def request_tokens(self, request: R2RRequest) -> TokenPair:
        """Send a login or refresh. Raises CredentialsRefused if it is rejected."""
        reply = await self.request(request)
        # Unknown account: 404. Wrong password: 401. Locked account: 403. Invalid input: 422.
        if 400 <= reply.status < 500:
            raise CredentialsRefused
        results = parse_mapping(unwrap_results(reply.answer))
        names = ("access_token", "refresh_token")
        access, refresh = (parse_text(parse_mapping(results.get(name)).get("token")) for name in names)
        if not access:
            raise make_unusable_error("it has no access token")
        return TokenPair(access, refresh)

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
        transport = R2RTransport(session, str(base).rstrip("/"), dependency, metrics, login)
        transport.tokens = _open_token_source(settings, transport.request_tokens, dependency, metrics)
        yield transport


def _open_token_source(
    settings: R2RConfig, request: Callable[[R2RRequest], Awaitable[TokenPair]], dependency: Dependency, metrics: Metrics
) -> TokenSource:
    if settings.api_key is not None:
        return ApiKeySource(settings.api_key.get_secret_value())
    if settings.email is None or settings.password is None:
        raise ConfigError(["r2r: set email and password of a service account, or api_key"])
    form = {"username": settings.email, "password": settings.password.get_secret_value()}
    return TokenManager(
        lambda: request(R2RRequest("POST", ("users", "login"), LOGIN_SECONDS, form=form)),
        # R2R expects a bare JSON string.
        lambda token: request(R2RRequest("POST", ("users", "refresh-token"), LOGIN_SECONDS, json=token)),
        on_event=partial(metrics.count_token_refresh, dependency.name),
    )


def _build_url(base: str, request: R2RRequest) -> URL:
    parts = [quote(part, safe="", errors="replace") for part in ("v3", *request.path)]
    path = "/".join(part if part.strip(".") else part.replace(".", "%2E") for part in parts)
    query = urlencode(request.query, errors="replace", quote_via=quote)
    return URL(f"{base}/{path}{f'?{query}' if query else ''}", encoded=True)


def _encode_body(request: R2RRequest) -> bytes | None:
    if request.form is not None:
        return urlencode(request.form, errors="replace", quote_via=quote).encode()
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


@dataclass(frozen=True, slots=True)
class IgnoreStatus:
    """Context manager that suppresses R2RRefused with this status."""

    status: int

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> bool:
        return isinstance(error, R2RRefused) and error.status == self.status


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
    detail = f"R2R failed ({status}{f': {message}' if message else ''}). Try again in a moment."
    return EngineError(detail, data={"status_code": status})


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
            return R2RUnauthenticated("R2R rejected the service account's new token.")
        case 403:
            return R2RRefused(f"R2R denies this to the service account: {message}.", status)
        case _ if 300 <= status < 400:
            detail = "R2R redirects to another address. Set r2r.api_url to that address."
            return R2RMisconfigured(detail, data={"status_code": status})
    return R2RRefused(f"R2R rejected the request ({status}): {message}. Change it and try again.", status)
