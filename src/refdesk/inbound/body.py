"""Reading a request's body within bounds: so much for one, so much for all that are being read or answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from refdesk.errors import Overloaded, RefdeskError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class BodyTooLarge(RefdeskError):
    """One body over its bound; HTTP 413."""


class ClientGone(Exception):
    """The client left before its request was complete; nobody is there to be answered."""


class BodyReader:
    """Reads bodies; every byte counts against the common bound until its request is answered."""

    def __init__(self, max_bytes: int, max_bytes_in_flight: int) -> None:
        self._max_bytes = max_bytes
        self._max_in_flight = max_bytes_in_flight
        self.in_flight = 0

    @asynccontextmanager
    async def read(self, receive: Receive, declared: bytes | None) -> AsyncIterator[bytes]:
        """The whole body, held against the bound while the context is open."""
        if declared is not None and declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        held = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                held += len(chunk)
                self.in_flight += len(chunk)
                if held > self._max_bytes:
                    raise self._too_large()
                if self.in_flight > self._max_in_flight:
                    raise Overloaded("Too much is being received at once", retry_after=1.0)
                chunks.append(chunk)
                more = message.get("more_body", False)
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self.in_flight -= held

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"The body is larger than {self._max_bytes} bytes")
