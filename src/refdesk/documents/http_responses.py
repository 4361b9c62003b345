"""Checks and decoding of HTTP responses to downloads.

Every unusable response becomes a `CannotFetch` with its own message.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, AsyncIterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from http import HTTPStatus
from http.client import responses
from urllib.parse import urljoin

import aiohttp
import anyio.lowlevel
from yarl import URL

from refdesk.documents.ssrf import parse_url
from refdesk.errors import CannotFetch, CannotReach
from refdesk.resilience.dependency import parse_retry_after

CONTENT_CODINGS = ("gzip", "deflate")
"""Content codings that are requested and decoded."""

BLOCK_BYTES = 1024 * 1024
"""Size worth a write in a thread, and the most that is decompressed at a time."""

PIECES_PER_TURN = 16
"""Pieces between two checkpoints. A body can come in one-byte pieces, or one piece decode to thousands."""

MAX_RETRY_SECONDS = 86400.0
"""Upper limit for `Retry-After`: a day."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
"""Retryable statuses below 500."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@contextmanager
def translate_http_errors(url: URL) -> Iterator[None]:
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


def get_redirect_target(response: aiohttp.ClientResponse) -> URL | None:
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


def check_response(response: aiohttp.ClientResponse, max_bytes: int) -> None:
    """Raise unless the response carries a document within the limits."""
    status = response.status
    if status not in (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION):
        retry_after = get_retry_after(response)
        kind = CannotReach if status in TRANSIENT_STATUSES or status >= 500 else CannotFetch
        answered = f"{response.url} answered {status} {responses.get(status, '')}".rstrip()
        raise kind(f"{answered}. {suggest_action(status, retry_after)}", retry_after=retry_after)
    codings = parse_content_codings(response.headers)
    if not can_decode(codings):
        raise CannotFetch(
            f"{response.url} is compressed as {', '.join(codings)[:100]!r}, which was not asked for and is not decoded."
        )
    if (_parse_content_length(response) or 0) > max_bytes:
        raise _make_size_error(response.url, max_bytes)


def parse_content_codings(headers: Mapping[str, str]) -> list[str]:
    """Return the content codings of a body, in the order applied."""
    named = headers.get("content-encoding", "").lower().split(",")
    return [coding.strip() for coding in named if coding.strip() not in ("", "identity")]


def can_decode(codings: list[str]) -> bool:
    """Whether a body can be decoded: one known coding at most, since layers could unpack without end."""
    return not codings or (len(codings) == 1 and codings[0] in CONTENT_CODINGS)


def suggest_action(status: int, retry_after: float | None) -> str:
    """Return advice for a status."""
    if retry_after is not None:
        return f"Try again in {retry_after:g} seconds."
    if status in (401, 402, 403, 407, 451):
        return "Access is restricted; someone with access can add it as a file."
    if status in (404, 410):
        return "Check the URL."
    if status in TRANSIENT_STATUSES or status >= 500:
        return "Try again later."
    return "The response has no document; check the URL."


def get_retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Return the seconds of the `Retry-After` header of a temporary refusal (429 or 503)."""
    if response.status not in (429, 503):
        return None
    return parse_retry_after(response.headers.get("retry-after"), MAX_RETRY_SECONDS)


def _make_size_error(url: URL, max_bytes: int) -> CannotFetch:
    return CannotFetch(
        f"{url} is larger than {max_bytes} bytes, the download limit. Look for a smaller edition, or for its parts."
    )


def _parse_content_length(response: aiohttp.ClientResponse) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def get_declared_size(response: aiohttp.ClientResponse) -> int | None:
    """Return the declared size of a document; None if unknown or if the body is compressed."""
    return None if parse_content_codings(response.headers) else _parse_content_length(response)


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


async def iter_blocks(response: aiohttp.ClientResponse, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the decoded body in blocks; raises as soon as it exceeds the limit."""
    size = 0
    buffer = bytearray()
    codings = parse_content_codings(response.headers)
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
