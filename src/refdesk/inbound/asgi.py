"""ASGI types, response helpers and an exception that carries an HTTP response."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from math import ceil
from typing import Any

import orjson

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
RETRY_SOON = (b"retry-after", b"1")
"""For overload that passes in a moment."""


def build_retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Return the `Retry-After` header of a delay, which HTTP gives in whole seconds."""
    return b"retry-after", b"%d" % max(1, ceil(seconds))


class Reject(Exception):
    """An HTTP error response that is sent before any call is made."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = (JSON, *headers)


class ClientGone(Exception):
    """The client has disconnected."""


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: Any) -> None:
    """Send a complete JSON response."""
    await respond(send, status, orjson.dumps(body), JSON)
