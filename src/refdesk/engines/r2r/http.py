"""One request to R2R and its answer: bounded in time and size, within the breaker, with a token that is let in.

Every way in which it can fail becomes an error of ours here. Nothing of what is sent, a token or a password among it,
is part of one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import anyio
import httpx2
import orjson
from anyio import to_thread

from refdesk.config import R2RConfig
from refdesk.engines.r2r.auth import TokenSource
from refdesk.engines.r2r.failures import broken, is_of_r2r, refusal, too_many
from refdesk.engines.r2r.naming import is_uuid
from refdesk.engines.r2r.schemas import unusable
from refdesk.errors import R2RUnreachable
from refdesk.resilience.dependency import Dependency
from refdesk.resilience.response_body import read_body
from refdesk.resilience.retries import retry_after_seconds
from refdesk.telemetry import Metrics, outgoing_headers
from refdesk.version import __version__

CONNECT_SECONDS = 3.0
"""A server that does not even pick up by then is down, however long its answers may take."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""The most that R2R is listened to: a thousand of the longest chunks there are."""

MAX_ERROR_BYTES = 64 * 1024
"""Of an error's body; only its message is of use."""

FIRST_HOLD_SECONDS = 2.0
"""Before R2R is asked again after it said that there were too many requests; each further refusal doubles it."""

LONGEST_HOLD_SECONDS = 60.0
"""Its limits are counted by the minute."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of R2R. The path's segments are names of ours or ids; each stays one segment, whatever is in it."""

    method: str
    path: tuple[str, ...]
    seconds: float
    query: tuple[tuple[str, str], ...] = ()
    json: Any = None
    form: Mapping[str, str] | None = None
    retries: int = 0
    """How often it may be repeated; only for what does no harm when it is done twice."""
    tells_failures: bool = False
    """Whether a failure that R2R tells of itself is the caller's to understand, and no sign that R2R is down."""

    @property
    def operation(self) -> str:
        """What it is counted as: its path without ids."""
        return f"{self.method} {'/'.join(part for part in self.path if not is_uuid(part))}"


@dataclass(frozen=True, slots=True)
class Reply:
    """R2R's answer: its status, and the JSON in it."""

    status: int
    answer: Any


class Hold:
    """Our own patience after R2R said that there were too many requests, since it does not say how long to wait."""

    def __init__(self) -> None:
        self._until = 0.0
        self._seconds = 0.0

    def left(self, now: float) -> float:
        """The seconds until R2R may be asked again."""
        return max(0.0, self._until - now)

    def refused(self, now: float, asked_for: float | None) -> float:
        """Too many: from now on nobody asks for a while. All who were refused together count as one refusal."""
        if now >= self._until:
            self._seconds = min(max(self._seconds * 2, FIRST_HOLD_SECONDS), LONGEST_HOLD_SECONDS)
            self._until = now + min(asked_for or self._seconds, LONGEST_HOLD_SECONDS)
        return self._until - now

    def passed(self, now: float) -> None:
        """A request was taken; one that was still under way when others were refused proves nothing."""
        if now >= self._until:
            self._seconds = 0.0


class Wire:
    """Requests to one R2R server; made by `open_wire`."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        base: httpx2.URL,
        dependency: Dependency,
        metrics: Metrics,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._base = base
        self._dependency = dependency
        self._metrics = metrics
        self._now = now
        self._hold = Hold()

    async def send(self, request: Request, tokens: TokenSource) -> Any:
        """The JSON that R2R answers with. A token that is refused is replaced, and the request made once more."""
        token = await tokens.token()
        reply = await self.ask(request, token)
        if reply.status == 401:
            tokens.rejected(token)
            token = await tokens.token()
            reply = await self.ask(request, token)
        if reply.status == 401:
            tokens.rejected(token)
        else:
            tokens.accepted(token)
        return _answer_in(reply)

    async def ask(self, request: Request, token: str | None = None) -> Reply:
        """R2R's reply, whatever it is, unless R2R fails to give one."""
        return await self._dependency.run(lambda: self._ask(request, token), retries=request.retries)

    async def _ask(self, request: Request, token: str | None) -> Reply:
        if held := self._hold.left(self._now()):
            raise too_many(held)
        with self._metrics.asking(self._dependency.name, request.operation):
            return await self._exchange(request, token)

    async def _exchange(self, request: Request, token: str | None) -> Reply:
        with anyio.move_on_after(request.seconds), _failures_told(request):
            # A long text takes longer to encode than anybody else should wait.
            body = await to_thread.run_sync(_body, request) if request.form else _body(request)
            async with self._client.stream(
                request.method,
                self._url(request),
                content=body,
                headers=_headers(request, token),
            ) as response:
                return await self._reply(request, response)
        raise _too_slow(request)

    async def _reply(self, request: Request, response: httpx2.Response) -> Reply:
        status = response.status_code
        raw = await _read(response, MAX_ANSWER_BYTES if response.is_success else MAX_ERROR_BYTES)
        answer = _decoded(raw, is_needed=response.is_success)
        if status == 429:
            asked_for = retry_after_seconds(response.headers.get("retry-after"))
            raise too_many(self._hold.refused(self._now(), asked_for), answer)
        if status >= 500 and not (request.tells_failures and is_of_r2r(answer)):
            raise broken(status, answer)
        self._hold.passed(self._now())
        return Reply(status, answer)

    def _url(self, request: Request) -> httpx2.URL:
        path = "/".join(map(_segment, ("v3", *request.path)))
        query = _pairs(request.query)
        raw = f"{self._base.path.rstrip('/')}/{path}{f'?{query}' if query else ''}"
        return self._base.copy_with(raw_path=raw.encode("ascii"))


@asynccontextmanager
async def open_wire(settings: R2RConfig, dependency: Dependency, metrics: Metrics) -> AsyncIterator[Wire]:
    """The way to the server that is set, over connections that are kept."""
    assert settings.api_url is not None
    base = httpx2.URL(settings.api_url.get_secret_value())
    # A password in the address is sent as a header: the address itself is what a log would show.
    login = (base.username, base.password) if base.userinfo else None
    path = base.path.rstrip("/").removesuffix("/v3")
    # Reading the system's certificates takes a while.
    trust = await to_thread.run_sync(httpx2.create_ssl_context)
    limits = httpx2.Limits(max_connections=settings.max_connections)
    timeout = httpx2.Timeout(None, connect=CONNECT_SECONDS)
    async with httpx2.AsyncClient(
        verify=trust, timeout=timeout, limits=limits, trust_env=False, follow_redirects=False, auth=login
    ) as client:
        yield Wire(client, base.copy_with(userinfo=None, path=path or "/"), dependency, metrics)


def _answer_in(reply: Reply) -> Any:
    if reply.status < 300:
        return reply.answer
    raise broken(reply.status, reply.answer) if reply.status >= 500 else refusal(reply.status, reply.answer)


def _segment(text: str) -> str:
    """One segment of a path. Dots by themselves would be steps in the path; they are encoded too."""
    encoded = quote(text, safe="", errors="replace")
    return encoded.replace(".", "%2E") if not encoded.strip(".") else encoded


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='', errors='replace')}" for name, value in pairs)


def _body(request: Request) -> bytes | None:
    if request.form is not None:
        return _pairs(request.form.items()).encode()
    return orjson.dumps(request.json) if request.json is not None else None


def _headers(request: Request, token: str | None) -> dict[str, str]:
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
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


async def _read(response: httpx2.Response, most: int) -> bytes:
    return await read_body(response, most, lambda: unusable(f"it is longer than {most // 1024:,} kB"))


def _decoded(body: bytes, *, is_needed: bool) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if is_needed:
            raise unusable("it is no JSON") from error
        return None


@contextmanager
def _failures_told(request: Request) -> Iterator[None]:
    """Turn what goes wrong on the wire into a sentence."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        raise R2RUnreachable("R2R cannot be reached. Check r2r.api_url, or try again later.") from error
    except httpx2.TimeoutException as error:
        raise _too_slow(request) from error
    except httpx2.HTTPError as error:
        raise R2RUnreachable("R2R broke off its answer. Try again.") from error


def _too_slow(request: Request) -> R2RUnreachable:
    return R2RUnreachable(f"R2R took longer than {request.seconds:g} seconds. Try again, or raise its time-out.")
