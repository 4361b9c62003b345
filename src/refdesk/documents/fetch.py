"""Downloads of untrusted URLs, limited in time, size and reachable addresses.

A `Fetcher` sends no cookies, credentials or referrer and ignores proxy settings of the environment. Each redirect is
checked like the first URL.
"""

from __future__ import annotations

import re
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from typing import IO

import aiohttp
import anyio
import anyio.to_thread
from yarl import URL

from refdesk.documents import http_responses
from refdesk.documents.file_names import choose_download_name
from refdesk.documents.robots import MAX_ROBOTS_BYTES, Robots, parse_robots
from refdesk.documents.ssrf import AddressPolicy, CheckedResolver, Network, Resolver, parse_url, resolve
from refdesk.errors import CannotFetch, CannotReach
from refdesk.resilience.http_client import create_ssl_context
from refdesk.support.lru import BoundedDict
from refdesk.version import __version__

USER_AGENT = f"Refdesk/{__version__}"
HEADERS = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": ", ".join(http_responses.CONTENT_CODINGS)}
"""All headers sent, besides conditional ones."""

Progress = Callable[[float, float | None, str], Awaitable[None]]
"""Called with the bytes so far, the total where known, and a description."""

MAX_CONNECTIONS = 32
"""Concurrent downloads; others queue within their own deadline."""

CONNECT_SECONDS = 10.0
"""Connect timeout per address, TLS included, which leaves time for the host's other addresses."""

MAX_HEADER_BYTES = 64 * 1024
"""Longest header. Some sites have content security policies of more than 8 KB."""

KEEP_ALIVE_SECONDS = 15.0
"""Long enough for a page after its robots.txt and redirects."""

ROBOTS_SECONDS = 3600.0
"""Cache lifetime of a robots.txt; RFC 9309 allows a day."""

MAX_SITES = 128
"""Cached robots.txt files; the oldest is evicted first."""

MAX_VALIDATOR_CHARACTERS = 500
"""Longest ETag or date sent back; with a longer one the document is fetched in full."""


@dataclass(frozen=True, slots=True)
class FetchRules:
    """Limits of a download."""

    allow: tuple[Network, ...] = ()
    """Private networks that may be fetched from, on any port."""
    max_bytes: int = 100 * 1024 * 1024
    """Size of the decoded document."""
    seconds: float = 60
    """Total time, from the DNS lookup to the last byte, redirects included."""
    ports: tuple[int, ...] = (80, 443, 8000, 8080, 8443)
    """Allowed ports of public hosts, to exclude mail servers and databases."""
    max_redirects: int = 5
    respect_robots: bool = True


@dataclass(frozen=True, slots=True)
class Fetched:
    """A downloaded document; `file` is an unnamed temporary file that the receiver closes."""

    url: str
    """URL after redirects."""
    content_type: str
    """Lower case, without parameters; empty if none was sent."""
    charset: str | None
    file: IO[bytes]
    size: int
    file_name: str
    etag: str | None
    last_modified: str | None
    not_modified: bool
    """Whether the copy with the given validators is current; `file` is empty then."""


class Fetcher:
    """HTTP client for one set of rules, with its own connection pool."""

    def __init__(
        self,
        rules: FetchRules,
        *,
        resolver: Resolver = resolve,
        trust: Callable[[], ssl.SSLContext] = create_ssl_context,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rules = rules
        self._resolver = CheckedResolver(AddressPolicy(rules.allow, rules.ports), resolver)
        self._trust = trust
        self._session: aiohttp.ClientSession | None = None
        self._opening = anyio.Lock()
        self._robots_cache = RobotsCache(now)

    async def fetch(
        self,
        url: str,
        *,
        etag: str | None = None,
        last_modified: str | None = None,
        progress: Progress | None = None,
    ) -> Fetched:
        """Download a document unless the copy with these validators is current. Raises `CannotFetch`."""
        start = parse_url(url)
        given = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        conditions = {
            name: value
            for name, value in given.items()
            if value and len(value) <= MAX_VALIDATOR_CHARACTERS and value.isascii() and value.isprintable()
        }
        with anyio.move_on_after(self._rules.seconds):
            async with self._follow(start, conditions, self._check_robots) as response:
                return await self._receive(response, bool(conditions), progress)
        raise CannotReach(
            f"{start} took longer than {self._rules.seconds:g} seconds. "
            "Try again later, or download it yourself and add it as a file."
        )

    async def aclose(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _follow(
        self,
        url: URL,
        headers: Mapping[str, str],
        permit: Callable[[URL], Awaitable[None]],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Follow redirects, each permitted by `permit`, and yield the final response."""
        for _ in range(self._rules.max_redirects + 1):
            await permit(url)
            async with self._get(url, headers) as response:
                target = http_responses.get_redirect_target(response)
                if target is None:
                    yield response
                    return
                url = target
        raise CannotFetch(
            f"More than {self._rules.max_redirects} redirects, the last one to {url}. Give the URL they lead to."
        )

    @asynccontextmanager
    async def _get(self, url: URL, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        session = await self._get_session()
        with http_responses.translate_http_errors(url):
            response = await session.get(url, headers=headers, allow_redirects=False)
            try:
                yield response
            finally:
                # The connection is used again only if the body was read to its end.
                response.close()

    async def _get_session(self) -> aiohttp.ClientSession:
        """Return the session, opened on first use since loading certificates takes a while."""
        async with self._opening:
            if self._session is None:
                connector = aiohttp.TCPConnector(
                    ssl=await anyio.to_thread.run_sync(self._trust),
                    limit=MAX_CONNECTIONS,
                    keepalive_timeout=KEEP_ALIVE_SECONDS,
                    use_dns_cache=False,
                    resolver=self._resolver,
                    socket_factory=self._resolver.create_socket,
                    happy_eyeballs_delay=None,
                )
                self._session = aiohttp.ClientSession(
                    connector=connector,
                    headers=HEADERS,
                    cookie_jar=aiohttp.DummyCookieJar(),
                    timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                    auto_decompress=False,
                    max_line_size=MAX_HEADER_BYTES,
                    max_field_size=MAX_HEADER_BYTES,
                )
            return self._session

    async def _receive(self, response: aiohttp.ClientResponse, conditional: bool, progress: Progress | None) -> Fetched:
        size = 0
        not_modified = conditional and response.status == HTTPStatus.NOT_MODIFIED
        if not not_modified:
            http_responses.check_response(response, self._rules.max_bytes)
        with anyio.CancelScope(shield=True):
            file = await anyio.to_thread.run_sync(tempfile.TemporaryFile)
        try:
            if not not_modified:
                async with aclosing(http_responses.iter_blocks(response, self._rules.max_bytes)) as blocks:
                    async for block in blocks:
                        await anyio.to_thread.run_sync(file.write, block)
                        size += len(block)
                        if progress is not None:
                            total = http_responses.get_declared_size(response)
                            await progress(size, total, f"Downloading from {response.url.host}")
                file.seek(0)
        except BaseException:
            file.close()
            raise
        headers = response.headers
        content_type = Message()
        content_type["content-type"] = headers.get("content-type", "")
        return Fetched(
            url=str(response.url),
            content_type=re.split("[;,]", headers.get("content-type", ""))[0].strip().lower(),
            charset=content_type.get_content_charset(),
            file=file,
            size=size,
            file_name=choose_download_name(headers.get("content-disposition", ""), response.url.path),
            etag=headers.get("etag"),
            last_modified=headers.get("last-modified"),
            not_modified=not_modified,
        )

    async def _check_robots(self, url: URL) -> None:
        if not self._rules.respect_robots:
            return
        site = url.origin() / "robots.txt"
        robots = self._robots_cache.get(str(site))
        if robots is None:
            async with self._follow(site, {}, _permit_all) as response:
                robots = await _read_robots(response)
            self._robots_cache.put(str(site), robots)
        if not robots.allow(url.raw_path_qs):
            raise CannotFetch(
                f"The robots.txt of {url.host} asks programs not to read {url.path}, so it was not fetched. "
                "Download it yourself and add it as a file."
            )


@asynccontextmanager
async def open_fetcher(rules: FetchRules, *, resolver: Resolver = resolve) -> AsyncIterator[Fetcher]:
    """Open a fetcher and close its connections at the end."""
    fetcher = Fetcher(rules, resolver=resolver)
    try:
        yield fetcher
    finally:
        await fetcher.aclose()


class RobotsCache:
    """Cache of parsed robots.txt files."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._entries = BoundedDict[str, tuple[float, Robots]](MAX_SITES)

    def get(self, site: str) -> Robots | None:
        """Return the rules of a site, unless they are missing or expired."""
        until, robots = self._entries.get(site, (0.0, None))
        return robots if self._now() < until else None

    def put(self, site: str, robots: Robots) -> None:
        """Cache the rules of a site."""
        self._entries[site] = (self._now() + ROBOTS_SECONDS, robots)


async def _permit_all(url: URL) -> None:
    """Permit fetching robots.txt without asking robots.txt."""


async def _read_robots(response: aiohttp.ClientResponse) -> Robots:
    """Parse a robots.txt response as RFC 9309 says: if missing, allow all; on a server error, allow nothing for now."""
    status = response.status
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= 500:
        patience = http_responses.get_retry_after(response)
        raise CannotFetch(
            f"{response.url} answered {status}, so whether {response.url.host} may be read is not known. "
            f"{http_responses.suggest_action(status, patience)}",
            retry_after=patience,
        )
    if status != HTTPStatus.OK or not http_responses.can_decode(
        codings := http_responses.parse_content_codings(response.headers)
    ):
        return Robots()
    text = bytearray()
    async with aclosing(http_responses.iter_decoded(response.content.iter_any(), codings)) as pieces:
        async for piece in pieces:
            text += piece
            if len(text) > MAX_ROBOTS_BYTES:
                del text[text.rfind(b"\n", 0, MAX_ROBOTS_BYTES) + 1 :]
                break
    return parse_robots(text.decode("utf-8", errors="replace"))
