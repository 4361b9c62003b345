"""Between Refdesk and R2R, in the test's own loop: counts what goes by, and fails, or hangs, when it is told to."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import jwt

from tests.r2r.lab import SECRET
from tests.waiting import PATIENCE_SECONDS

LOGIN, REFRESH = "/v3/users/login", "/v3/users/refresh-token"
SEARCH, RAG = "/v3/retrieval/search", "/v3/retrieval/rag"

TOO_MANY = {"detail": "Per-route per-minute rate limit exceeded"}
"""As R2R says it, which does not say when there is room again."""

_HOP_BY_HOP = frozenset({"connection", "content-encoding", "content-length", "date", "host", "transfer-encoding"})


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """What happens to requests in place of an answer of R2R, or before it."""

    path: str = "/"
    """How the paths begin that it happens to."""
    status: int = 0
    """What is answered; zero asks R2R."""
    body: Mapping[str, Any] = field(default_factory=dict)
    is_reset: bool = False
    """Whether the connection breaks off."""
    hangs: bool = False
    """Whether no answer comes for as long as the fault lasts."""
    times: int | None = None
    """How often it happens; None is always."""


class _Lasting:
    """A fault that is let happen."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self._happened = 0

    def happens(self, times: int | None) -> bool:
        """Whether it happens once more."""
        self._happened += 1
        return times is None or self._happened <= times


@dataclass(frozen=True, slots=True)
class Request:
    """What came in."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Proxy:
    """A stretch of the way to R2R."""

    def __init__(self, target: str, http: httpx2.AsyncClient) -> None:
        self._target = target
        self._http = http
        self._faults: dict[Fault, _Lasting] = {}
        self.url = ""
        self.seen: list[Request] = []
        self.tokens: list[dict[str, str]] = []
        """Each pair, `access_token` and `refresh_token`, that has gone by."""
        self.access_seconds: float | None = None
        """How long access tokens are good for, where that is to be less than R2R says."""
        self.next_is_expired = False
        """Whether the next access token is one that R2R takes no longer, though its bearer cannot know."""

    def count(self, path: str) -> int:
        """How many requests for paths that begin so have come in."""
        return sum(request.path.startswith(path) for request in self.seen)

    @contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        """Let it happen for a while."""
        lasting = self._faults[fault] = _Lasting()
        try:
            yield
        finally:
            del self._faults[fault]
            lasting.over.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's requests, one after the other."""
        try:
            while (request := await _read(reader)) is not None:
                self.seen.append(request)
                writer.write(await self._answer(request))
                await writer.drain()
        except (ConnectionError, httpx2.TransportError):
            writer.transport.abort()  # as it looks when R2R is not there
        finally:
            writer.close()

    async def _answer(self, request: Request) -> bytes:
        for fault, lasting in list(self._faults.items()):
            if request.path.startswith(fault.path) and lasting.happens(fault.times):
                if fault.hangs:
                    await lasting.over.wait()
                if fault.is_reset:
                    raise ConnectionResetError
                if fault.status:
                    return _response(fault.status, {}, json.dumps(dict(fault.body)).encode())
        return await self._pass_on(request)

    async def _pass_on(self, request: Request) -> bytes:
        headers = {name: value for name, value in request.headers.items() if name not in _HOP_BY_HOP}
        answer = await self._http.request(
            request.method, f"{self._target}{request.path}", headers=headers, content=request.body
        )
        content = answer.content
        if answer.is_success and request.path in (LOGIN, REFRESH):
            content = self._rewrite_tokens(answer.json())
        return _response(answer.status_code, answer.headers, content)

    def _rewrite_tokens(self, answer: dict[str, Any]) -> bytes:
        """Keep the tokens, and have them expire sooner where that is wanted."""
        results = answer["results"]
        access = results["access_token"]
        if self.access_seconds is not None:
            access["token"] = _shorten_lifetime(access["token"], self.access_seconds)
        if self.next_is_expired:
            access["token"], self.next_is_expired = _expire(access["token"]), False
        self.tokens.append({name: results[name]["token"] for name in ("access_token", "refresh_token")})
        return json.dumps(answer).encode()


@asynccontextmanager
async def proxy(target: str) -> AsyncIterator[Proxy]:
    """A proxy on a free port of loopback."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS, limits=limits, verify=False, trust_env=False) as http:
        between = Proxy(target, http)
        server = await asyncio.start_server(between.serve, "127.0.0.1", 0, limit=1 << 26, backlog=1000)
        between.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield between
        finally:
            server.close()


def _shorten_lifetime(token: str, seconds: float) -> str:
    """The same token with an earlier end."""
    return _sign(_claims(token) | {"exp": time.time() + seconds})


def _expire(token: str) -> str:
    """The same token as if it had been given out long ago: it ended a second ago, and says that it is good for long."""
    claims = _claims(token)
    ago = claims["exp"] - time.time() + 1
    return _sign(claims | {name: claims[name] - ago for name in ("exp", "iat", "nbf")})


def _claims(token: str) -> dict[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def _sign(claims: Mapping[str, Any]) -> str:
    """Signed as R2R signs, so that it is R2R itself that says whether the token is good."""
    return jwt.encode(dict(claims), SECRET, "HS256")


async def _read(reader: asyncio.StreamReader) -> Request | None:
    """The next request; None when there is none."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    method, path, _ = first.split(" ")
    body = await _chunks(reader) if "transfer-encoding" in headers else await _read_sized(reader, headers)
    return Request(method, path, headers, body)


async def _read_sized(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    return await reader.readexactly(int(headers.get("content-length", 0)))


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += (await reader.readexactly(size + 2))[:-2]
    await reader.readline()
    return body


def _response(status: int, headers: Mapping[str, str], content: bytes) -> bytes:
    kept = [f"{name}: {value}" for name, value in headers.items() if name.lower() not in _HOP_BY_HOP]
    head = "\r\n".join([f"HTTP/1.1 {status} Answer", *kept, f"content-length: {len(content)}"])
    return f"{head}\r\n\r\n".encode("latin-1") + content
