"""HTTP client of external services: sessions, request bodies and response bodies on aiohttp."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from io import BytesIO
from urllib.request import getproxies, proxy_bypass

import aiohttp
import anyio.lowlevel
import httpx2
from anyio import to_thread
from yarl import URL

KEEPALIVE_SECONDS = 4.0
"""Time an idle connection is kept: less than the five seconds after which uvicorn and Node close it. A request sent
while the server closes is lost, and a call must not be sent twice."""

LARGE_BYTES = 1 << 20
"""Size from which aiohttp wants a body as a file, so that other tasks run while it is sent."""

CONNECT_ERRORS = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Raised if there is no connection. All other errors of the client are `aiohttp.ClientError` as well."""


def create_ssl_context() -> ssl.SSLContext:
    """Create the TLS context of all outgoing connections. This takes a while.

    httpx2, which the MCP SDK requires, finds the system's certificates even if Python's OpenSSL was built for another
    system; `ssl.create_default_context` doesn't.
    """
    return httpx2.create_ssl_context()


@asynccontextmanager
async def open_http_session(
    url: URL, *, connect_seconds: float, max_connections: int = 100, uses_proxy: bool = False
) -> AsyncIterator[aiohttp.ClientSession]:
    """Open a connection pool for the service at this URL. Only connecting has a timeout; callers set the others.

    `uses_proxy` is whether the proxy of the environment is used.
    """
    context = await to_thread.run_sync(create_ssl_context) if url.scheme == "https" else True
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEPALIVE_SECONDS, ssl=context),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_seconds),
        # Not `trust_env`, which would also send a login from ~/.netrc.
        proxy=_find_proxy(url) if uses_proxy else None,
    ) as session:
        yield session


def _find_proxy(url: URL) -> URL | None:
    """Return the proxy that the environment sets for a URL."""
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(f"{url.host}:{url.port}"):
        return None
    return URL(proxy if "://" in proxy else f"http://{proxy}")


def split_login(url: URL) -> tuple[URL, str | None]:
    """Return the URL without its user and password, which would appear in logs, and the header to send instead."""
    if url.user is None and url.password is None:
        return url, None
    return url.with_user(None), aiohttp.encode_basic_auth(url.user or "", url.password or "")


def wrap_body(body: bytes | None) -> bytes | BytesIO | None:
    """Return a request body in the form that aiohttp sends without blocking the event loop."""
    return body if body is None or len(body) < LARGE_BYTES else BytesIO(body)


async def iter_body(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the parts of a response as they arrive, with a checkpoint before each.

    Reading data that has already arrived isn't cancelled, so a service that always has more data ready would never be
    timed out.
    """
    async for part in response.content.iter_any():
        await anyio.lowlevel.checkpoint()
        yield part


async def read_body(response: aiohttp.ClientResponse, max_bytes: int, too_long: Callable[[], Exception]) -> bytes:
    """Read a response as a whole. Raises the error that `too_long` returns if it exceeds `max_bytes`."""
    body = bytearray()
    async for part in iter_body(response):
        body += part
        if len(body) > max_bytes:
            raise too_long()
    return bytes(body)
