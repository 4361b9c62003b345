"""Judging what a server answers: a redirect, a refusal or a document, and no more of it than was agreed on.

Every way in which an answer cannot be used becomes a `CannotFetch` with a sentence of its own.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from http import HTTPStatus

import anyio.lowlevel
import httpcore2
import httpx2

from refdesk.documents.ssrf import parse_url
from refdesk.errors import CannotFetch, CannotReach

CONTENT_CODINGS = ("gzip", "deflate")
"""The content codings that are asked for and undone."""

BLOCK_BYTES = 1024 * 1024
"""What is worth a trip to the disk, in a thread."""

PIECES_PER_TURN = 16
"""A body can come in one-byte pieces, or one piece unpack to thousands: so many are taken before others get a turn."""

MAX_RETRY_SECONDS = 86400.0
"""A server that asks for more patience than a day is not believed."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
"""Statuses besides those from 500 on that may be others later."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@contextmanager
def translate_http_errors(url: httpx2.URL) -> Iterator[None]:
    """Turn what goes wrong on the wire into a sentence; what the library says could name inner addresses."""
    try:
        yield
    except httpcore2.ConnectError as error:
        raise _make_connect_error(url, error) from error
    except httpcore2.TimeoutException as error:
        raise CannotReach(f"{url.host} did not answer in time. Try again later.") from error
    except httpcore2.NetworkError as error:
        raise CannotReach(f"The connection to {url.host} broke off before {url} was complete. Try again.") from error
    except httpcore2.ProtocolError as error:
        raise CannotFetch(
            f"{url.host} broke off, or answered {url} with what is not valid HTTP. Check the URL, or try again."
        ) from error
    except httpx2.DecodingError as error:
        raise CannotReach(f"{url} came damaged: its compression cannot be undone. Try again.") from error


def _make_connect_error(url: httpx2.URL, error: BaseException) -> CannotFetch:
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return CannotFetch(
            f"The certificate of {url.host} is not valid ({cause.verify_message}), so nothing was fetched."
        )
    if cause is not None:
        return CannotFetch(f"{url.host} does not speak TLS that could be agreed on. Check the URL and its port.")
    return CannotReach(f"{url.host} could not be reached. Check the URL, or try again later.")


def get_redirect_target(response: httpx2.Response) -> httpx2.URL | None:
    """Where an answer sends us, checked as a URL; from https never to http, which anybody on the way could answer."""
    location = response.headers.get("location")
    if response.status_code not in _REDIRECTS or not location:
        return None
    try:
        joined = str(response.url.join(location))
    except (httpx2.InvalidURL, ValueError) as error:
        raise CannotFetch(f"{response.url} redirects to something that is not a valid URL.") from error
    target = parse_url(joined)
    if response.url.scheme == "https" and target.scheme == "http":
        raise CannotFetch(
            f"{response.url} redirects from https to {target}, which is not followed. "
            "Fetch that URL itself if an unencrypted connection will do."
        )
    return target


def check_response(response: httpx2.Response, max_bytes: int) -> None:
    """Raise unless a document follows that may be taken."""
    if response.status_code not in (HTTPStatus.OK, HTTPStatus.NON_AUTHORITATIVE_INFORMATION):
        raise _make_status_error(response)
    codings = parse_content_codings(response)
    if not can_decode(codings):
        raise CannotFetch(
            f"{response.url} is packed as {', '.join(codings)[:100]!r}, which was not asked for and is not unpacked."
        )
    if (_parse_content_length(response) or 0) > max_bytes:
        raise _make_size_error(response, max_bytes)


def parse_content_codings(response: httpx2.Response) -> list[str]:
    """The content codings that were put on a body, one over the other."""
    named = response.headers.get("content-encoding", "").lower().split(",")
    return [coding.strip() for coding in named if coding.strip() not in ("", "identity")]


def can_decode(codings: list[str]) -> bool:
    """One coding that we know, never several: layers could keep us unpacking without a byte of document."""
    return not codings or (len(codings) == 1 and codings[0] in CONTENT_CODINGS)


def _make_status_error(response: httpx2.Response) -> CannotFetch:
    retry_after = parse_retry_after(response)
    status = response.status_code
    answered = f"{response.url} answered {status} {httpx2.codes.get_reason_phrase(status)}".rstrip()
    kind = CannotReach if status in TRANSIENT_STATUSES or status >= 500 else CannotFetch
    return kind(f"{answered}. {suggest_action(status, retry_after)}", retry_after=retry_after)


def suggest_action(status: int, retry_after: float | None) -> str:
    """What a caller can do about a status."""
    if retry_after is not None:
        return f"Try again in {retry_after:g} seconds."
    if status in (401, 402, 403, 407, 451):
        return "It is not open to everybody; whoever has access can pass it on as a file."
    if status in (404, 410):
        return "Check the URL."
    if status in TRANSIENT_STATUSES or status >= 500:
        return "Try again later."
    return "There is no document in that answer; check the URL."


def parse_retry_after(response: httpx2.Response) -> float | None:
    """The seconds that a busy server asks us to wait, when it says so in seconds."""
    text = response.headers.get("retry-after", "").strip()
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    return min(float(text), MAX_RETRY_SECONDS) if is_number and response.status_code in (429, 503) else None


def _make_size_error(response: httpx2.Response, max_bytes: int) -> CannotFetch:
    return CannotFetch(
        f"{response.url} is larger than {max_bytes} bytes, the most that is fetched. "
        "Look for a smaller edition, or for its parts."
    )


def _parse_content_length(response: httpx2.Response) -> int | None:
    text = response.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def get_declared_size(response: httpx2.Response) -> int | None:
    """How large the document will be, where the server says it; of a packed one it says only the packed size."""
    return None if parse_content_codings(response) else _parse_content_length(response)


async def iter_decoded(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """The unpacked body as it comes, with a turn for everybody else in between."""
    count = 0
    async for piece in response.aiter_bytes():
        yield piece
        count += 1
        if count % PIECES_PER_TURN == 0:
            await anyio.lowlevel.checkpoint()


async def iter_blocks(response: httpx2.Response, max_bytes: int) -> AsyncGenerator[bytes]:
    """The unpacked body in blocks; ends with an error as soon as it outgrows its bound."""
    size = 0
    buffer = bytearray()
    async with aclosing(iter_decoded(response)) as pieces:
        async for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise _make_size_error(response, max_bytes)
            buffer += piece
            if len(buffer) >= BLOCK_BYTES:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)
