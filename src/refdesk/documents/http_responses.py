"""Checks and decoding of HTTP responses to downloads.

Every unusable response becomes a `CannotFetch` with its own message.
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
"""Content codings that are requested and decoded."""

BLOCK_BYTES = 1024 * 1024
"""Size worth a write in a thread."""

PIECES_PER_TURN = 16
"""Pieces between two checkpoints. A body can come in one-byte pieces, or one piece decode to thousands."""

MAX_RETRY_SECONDS = 86400.0
"""Upper limit for `Retry-After`: a day."""

TRANSIENT_STATUSES = frozenset({408, 425, 429})
"""Retryable statuses below 500."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})


@contextmanager
def translate_http_errors(url: httpx2.URL) -> Iterator[None]:
    """Raise transport errors as `CannotFetch`; the library's messages could name internal addresses."""
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
    """Return the checked target of a redirect, or None. Redirects from https to http are rejected."""
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
    """Raise unless the response carries a document within the limits."""
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
    """Return the content codings of a body, in the order applied."""
    named = response.headers.get("content-encoding", "").lower().split(",")
    return [coding.strip() for coding in named if coding.strip() not in ("", "identity")]


def can_decode(codings: list[str]) -> bool:
    """Whether a body can be decoded: one known coding at most, since layers could unpack without end."""
    return not codings or (len(codings) == 1 and codings[0] in CONTENT_CODINGS)


def _make_status_error(response: httpx2.Response) -> CannotFetch:
    retry_after = parse_retry_after(response)
    status = response.status_code
    answered = f"{response.url} answered {status} {httpx2.codes.get_reason_phrase(status)}".rstrip()
    kind = CannotReach if status in TRANSIENT_STATUSES or status >= 500 else CannotFetch
    return kind(f"{answered}. {suggest_action(status, retry_after)}", retry_after=retry_after)


def suggest_action(status: int, retry_after: float | None) -> str:
    """Return advice for a status."""
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
    """Return the seconds of a `Retry-After` header, if it is given in seconds."""
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
    """Return the declared size of a document; None if unknown or if the body is compressed."""
    return None if parse_content_codings(response) else _parse_content_length(response)


async def iter_decoded(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """Yield the decoded body, with regular checkpoints."""
    count = 0
    async for piece in response.aiter_bytes():
        yield piece
        count += 1
        if count % PIECES_PER_TURN == 0:
            await anyio.lowlevel.checkpoint()


async def iter_blocks(response: httpx2.Response, max_bytes: int) -> AsyncGenerator[bytes]:
    """Yield the decoded body in blocks; raises as soon as it exceeds the limit."""
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
