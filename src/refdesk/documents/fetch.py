"""Downloads of untrusted URLs, limited in time, size and reachable addresses.

A `Fetcher` sends no cookies, credentials or referrer and ignores proxy settings of the environment. Each redirect is
checked like the first URL. Every unusable response becomes a `CannotFetch` with its own message.
"""

from __future__ import annotations

import re
import ssl
import tempfile
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import responses
from typing import IO
from urllib.parse import urljoin

import aiohttp
import anyio
import anyio.lowlevel
import anyio.to_thread
from yarl import URL

from refdesk.documents.file_names import choose_download_name
from refdesk.documents.robots import MAX_ROBOTS_BYTES, Robots, parse_robots
from refdesk.documents.ssrf import AddressPolicy, CheckedResolver, Network, Resolver, parse_url, resolve
from refdesk.errors import CannotFetch, CannotReach
from refdesk.resilience.dependency import parse_retry_after
from refdesk.resilience.http_client import create_ssl_context
from refdesk.support.lru import BoundedDict
from refdesk.version import __version__

CONTENT_CODINGS = ("gzip", "deflate")
"""Content codings that are requested and decoded."""

USER_AGENT = f"Refdesk/{__version__}"
HEADERS = {"User-Agent": USER_AGENT, "Accept": "*/*", "Accept-Encoding": ", ".join(CONTENT_CODINGS)}
"""All headers sent, besides conditional ones."""

Progress = Callable[[float, float | None, str], Awaitable[None]]
"""Called with the amount done, such as bytes, the total where known, and a description."""

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

BLOCK_BYTES = 1024 * 1024
"""Size worth a write in a thread, and the most that is decompressed at a time."""

PIECES_PER_TURN = 16
"""Pieces between two checkpoints. A body can come in one-byte pieces, or one piece decode to thousands."""

MAX_RETRY_SECONDS = 86400.0
"""Upper limit for `Retry-After`: a day."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
"""Retryable statuses below 500."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


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
        self._now = now
        self._robots = BoundedDict[str, tuple[float, Robots]](MAX_SITES)
        """When the robots.txt of a site expires, and its rules."""

    async def fetch(
        self, url: str, *, etag: str | None = None, last_modified: str | None = None, progress: Progress | None = None
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
            async with self._follow(start, conditions, respect_robots=self._rules.respect_robots) as response:
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
        self, url: URL, headers: Mapping[str, str], *, respect_robots: bool
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Follow redirects, each permitted by the site's robots.txt, and yield the final response."""
        for _ in range(self._rules.max_redirects + 1):
            if respect_robots:
                await self._check_robots(url)
            async with self._get(url, headers) as response:
                target = _get_redirect_target(response)
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
        with _translate_http_errors(url):
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
        size, headers = 0, response.headers
        not_modified = conditional and response.status == HTTPStatus.NOT_MODIFIED
        if not not_modified:
            _check_response(response, self._rules.max_bytes)
        with anyio.CancelScope(shield=True):
            file = await anyio.to_thread.run_sync(tempfile.TemporaryFile)
        try:
            if not not_modified:
                async with aclosing(_iter_blocks(response, self._rules.max_bytes)) as blocks:
                    async for block in blocks:
                        await anyio.to_thread.run_sync(file.write, block)
                        size += len(block)
                        if progress is not None:
                            # That of a compressed body isn't the document's.
                            total = None if _parse_content_codings(headers) else response.content_length
                            await progress(size, total, f"Downloading from {response.url.host}")
                file.seek(0)
        except BaseException:
            file.close()
            raise
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
        site = url.origin() / "robots.txt"
        until, robots = self._robots.get(str(site), (0.0, Robots()))
        if self._now() >= until:
            async with self._follow(site, {}, respect_robots=False) as response:
                robots = await _read_robots(response)
            self._robots[str(site)] = (self._now() + ROBOTS_SECONDS, robots)
        if not robots.allow(url.raw_path_qs):
            raise CannotFetch(
                f"The robots.txt of {url.host} asks programs not to read {url.path}, so it was not fetched. "
                "Download it yourself and add it as a file."
            )


def open_fetcher(rules: FetchRules, *, resolver: Resolver = resolve) -> AbstractAsyncContextManager[Fetcher]:
    """Open a fetcher and close its connections at the end."""
    return aclosing(Fetcher(rules, resolver=resolver))


async def _read_robots(response: aiohttp.ClientResponse) -> Robots:
    """Parse a robots.txt response as RFC 9309 says: if missing, allow all; on a server error, allow nothing for now."""
    status = response.status
    if status == HTTPStatus.TOO_MANY_REQUESTS or status >= 500:
        patience = _get_retry_after(response)
        raise CannotFetch(
            f"{response.url} answered {status}, so whether {response.url.host} may be read is not known. "
            f"{_suggest_action(status, patience)}",
            retry_after=patience,
        )
    if status != HTTPStatus.OK or not _can_decode(codings := _parse_content_codings(response.headers)):
        return Robots()
    text = bytearray()
    async with aclosing(iter_decoded(response.content.iter_any(), codings)) as pieces:
        async for piece in pieces:
            text += piece
            if len(text) > MAX_ROBOTS_BYTES:
                del text[text.rfind(b"\n", 0, MAX_ROBOTS_BYTES) + 1 :]
                break
    return parse_robots(text.decode("utf-8", errors="replace"))


@contextmanager
def _translate_http_errors(url: URL) -> Iterator[None]:
    """Raise transport errors as `CannotFetch`; the library's messages could name internal addresses."""
    try:
        yield
    except aiohttp.ClientConnectorCertificateError as error:
        reason = getattr(error.certificate_error, "verify_message", "unknown reason")
        raise CannotFetch(f"The certificate of {url.host} is not valid ({reason}), so nothing was fetched.") from error
    except aiohttp.ClientConnectorSSLError as error:
        raise CannotFetch(f"No TLS connection to {url.host} is possible. Check the URL and its port.") from error
    except aiohttp.ClientConnectorError as error:
        raise CannotReach(f"{url.host} could not be reached. Check the URL, or try again later.") from error
    except TimeoutError as error:
        raise CannotReach(f"{url.host} did not answer in time. Try again later.") from error
    except aiohttp.InvalidURL as error:
        raise CannotFetch(f"{url} is not a valid URL. Give one such as https://example.com/guide.") from error
    except aiohttp.ClientResponseError as error:
        raise CannotFetch(f"{url.host} answered {url} with invalid HTTP. Check the URL, or try again.") from error
    except aiohttp.ClientError as error:
        raise CannotReach(f"The connection to {url.host} closed before {url} was complete. Try again.") from error
    except zlib.error as error:
        raise CannotReach(f"{url} arrived damaged: it can't be decompressed. Try again.") from error


def _get_redirect_target(response: aiohttp.ClientResponse) -> URL | None:
    """Return the checked target of a redirect, or None. Redirects from https to http are rejected."""
    location = response.headers.get("location")
    if response.status not in _REDIRECTS or not location:
        return None
    try:
        joined = urljoin(str(response.url), location)
    except ValueError as error:
        raise CannotFetch(f"{response.url} redirects to something that is not a valid URL.") from error
    target = parse_url(joined)
    if response.url.scheme == "https" and target.scheme == "http":
        raise CannotFetch(
            f"{response.url} redirects from https to {target}, which is not followed. "
            "Fetch that URL itself if an unencrypted connection will do."
        )
    return target


def _check_response(response: aiohttp.ClientResponse, max_bytes: int) -> None:
    """Raise unless the response carries a document within the limits."""
    status = response.status
    if status not in (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION):
        retry_after = _get_retry_after(response)
        kind = CannotReach if status in TRANSIENT_STATUSES or status >= 500 else CannotFetch
        answered = f"{response.url} answered {status} {responses.get(status, '')}".rstrip()
        raise kind(f"{answered}. {_suggest_action(status, retry_after)}", retry_after=retry_after)
    codings = _parse_content_codings(response.headers)
    if not _can_decode(codings):
        raise CannotFetch(
            f"{response.url} is compressed as {', '.join(codings)[:100]!r}, which was not asked for and is not decoded."
        )
    if (response.content_length or 0) > max_bytes:
        raise _make_size_error(response.url, max_bytes)


def _parse_content_codings(headers: Mapping[str, str]) -> list[str]:
    """Return the content codings of a body, in the order applied."""
    named = headers.get("content-encoding", "").lower().split(",")
    return [coding.strip() for coding in named if coding.strip() not in ("", "identity")]


def _can_decode(codings: list[str]) -> bool:
    """Whether a body can be decoded: one known coding at most, since layers could unpack without end."""
    return not codings or (len(codings) == 1 and codings[0] in CONTENT_CODINGS)


def _suggest_action(status: int, retry_after: float | None) -> str:
    if retry_after is not None:
        return f"Try again in {retry_after:g} seconds."
    if status in (401, 402, 403, 407, 451):
        return "Access is restricted; someone with access can add it as a file."
    if status in (404, 410):
        return "Check the URL."
    if status in TRANSIENT_STATUSES or status >= 500:
        return "Try again later."
    return "The response has no document; check the URL."


def _get_retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of the `Retry-After` header of a temporary refusal (429 or 503)."""
    if response.status not in (429, 503):
        return None
    return parse_retry_after(response.headers.get("retry-after"), MAX_RETRY_SECONDS)


def _make_size_error(url: URL, max_bytes: int) -> CannotFetch:
    return CannotFetch(
        f"{url} is larger than {max_bytes} bytes, the download limit. Look for a smaller edition, or for its parts."
    )


async def iter_decoded(body: AsyncIterable[bytes], codings: list[str]) -> AsyncGenerator[bytes]:
    """Yield the decoded body, with regular checkpoints. Raises `zlib.error`."""
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 16 if codings == ["gzip"] else zlib.MAX_WBITS) if codings else None
    is_first, count = True, 0
    async for piece in body:
        while piece:
            decoded, rest = piece, b""
            if decoder is not None:
                try:
                    decoded = decoder.decompress(piece, BLOCK_BYTES)
                except zlib.error:
                    if not is_first or codings == ["gzip"]:
                        raise
                    decoder = zlib.decompressobj(-zlib.MAX_WBITS)  # Some servers omit the zlib header.
                    decoded = decoder.decompress(piece, BLOCK_BYTES)
                rest = decoder.unconsumed_tail
            yield decoded
            piece, is_first, count = rest, False, count + 1
            if count % PIECES_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()


async def _iter_blocks(response: aiohttp.ClientResponse, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the decoded body in blocks; raises as soon as it exceeds the limit."""
    size = 0
    buffer = bytearray()
    codings = _parse_content_codings(response.headers)
    async with aclosing(iter_decoded(response.content.iter_any(), codings)) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise _make_size_error(response.url, max_bytes)
            buffer += piece
            if len(buffer) >= BLOCK_BYTES:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)
