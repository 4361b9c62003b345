"""ASGI in a few words: its types, an answer in one go, and an answer that is raised."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

import orjson

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")


class Reject(Exception):
    """An HTTP answer that is decided before any call is made."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = (JSON, *headers)


class ClientGone(Exception):
    """The client has left; nobody is there to be answered."""


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """A whole answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: Any) -> None:
    """A whole answer in JSON."""
    await respond(send, status, orjson.dumps(body), JSON)


def replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives a body that was read already, and then what really comes."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
