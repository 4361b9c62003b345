"""One HTTP request as it came in, and an answer in which every byte can be wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from tests.downstream.servers.bad_http import BadHttp

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass
class Request:
    """One request as it came, and where its answer goes."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    writer: asyncio.StreamWriter = field(repr=False)

    @property
    def path(self) -> str:
        return urlsplit(self.target).path

    @property
    def message(self) -> Any:
        return json.loads(self.body) if self.body else {}

    @property
    def number(self) -> int:
        """A size that a fault is asked to have: `/big?bytes=1000`."""
        return int(parse_qs(urlsplit(self.target).query).get("bytes", ["1000000"])[0])

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, status: int = 200, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} Because", *(f"{name.replace('_', '-')}: {text}" for name, text in headers.items())]
        await self.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    async def reply(self, body: bytes = b"", status: int = 200, kind: str = JSON, **headers: str) -> None:
        await self.head(status, content_type=kind, content_length=str(len(body)), **headers)
        await self.write(body)

    async def begin_events(self, **headers: str) -> None:
        await self.head(200, content_type=EVENTS, transfer_encoding="chunked", **headers)

    async def chunk(self, data: bytes) -> None:
        await self.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def event(self, message: Any, id: str | None = None) -> None:
        await self.chunk(
            (f"id: {id}\n" if id else "").encode() + b"event: message\ndata: " + as_json(message) + b"\n\n"
        )

    def answer(self, text: str = "done") -> dict[str, Any]:
        result = {"content": [{"type": "text", "text": text}], "isError": False}
        return {"jsonrpc": "2.0", "id": self.message.get("id"), "result": result}

    def failure(self, code: int = -32042, message: str = "custom") -> dict[str, Any]:
        error = {"code": code, "message": message, "data": {"why": "because"}}
        return {"jsonrpc": "2.0", "id": self.message.get("id"), "error": error}


def as_json(message: Any) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode()


class HangUp(Exception):
    """The connection is closed here and now."""


Fault = Callable[["BadHttp", Request], Awaitable[None]]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    """A way to go wrong, under its own name."""
    FAULTS[function.__name__.removeprefix("fault_")] = function
    return function
