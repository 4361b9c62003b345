"""Thousands of made-up requests: none is answered with a 500, none brings the server down."""

from __future__ import annotations

import asyncio
import json
import logging
from random import Random
from typing import Any

import httpx2
import pytest

from tests.conftest import Serve
from tests.servers import RunningServer

CASES = 5000
"""Messages sent in all: as many as the endpoint is promised to stand."""

SEED = 20260728
"""Of the random numbers that requests are made up by: a request that fails once fails every time."""

NAMES = [
    "search_documentation", "get_document", "echo", "whoami", "missing", "down", "nothing", "", "techdoc://refdesk/docs",
]  # fmt: skip
METHODS = [
    "initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/read",
    "resources/templates/list", "resources/subscribe", "prompts/list", "prompts/get", "completion/complete",
    "logging/setLevel",
    "server/discover", "subscriptions/listen", "notifications/initialized", "notifications/cancelled", "no/such",
]  # fmt: skip
ARGUMENTS = ["query", "text", "max_results", "doc_type", "document_id", "cursor", "times", "other"]
HEADERS: list[dict[str, str]] = [
    {},
    {"accept": "application/json, text/event-stream"},
    {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28"},
    {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28",
     "mcp-method": "tools/call", "mcp-name": "echo"},
    {"mcp-protocol-version": "2025-06-18"},
    {"mcp-protocol-version": "1999-01-01"},
    {"mcp-session-id": "made-up"},
    {"content-type": "text/plain"},
    {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"},
]  # fmt: skip
PATHS = ["/mcp"] * 8 + ["/mcp?toolsets=docs", "/mcp?toolsets=%00,x", "/api/tools/echo", "/api/tools/%2e%2e"]
CHARACTERS = (
    "aZ09 /.:-_\"\\{}[]<>%&'\n\r\t\0\x1b\x7f\u00e4\u0661\u200b\u202e\u2028\u6587\ufeff\uffff\U0001f642\U0010ffff"
)
NUMBERS = [0, 1, -1, 7, 1.5, -0.0, 1e308, 2**31, 2**53 + 1, -(2**63), 2**64, 10**40, float("inf"), float("-inf")]


class MadeUp:
    """Requests that are made up, from ones that are nearly right to bytes that mean nothing."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def request(self) -> tuple[bytes, dict[str, str], str]:
        """A body, headers and a path."""
        bodies = (self._message_bytes, lambda: _encode(self._value()), self._bytes, self._damage_bytes)
        return self._random.choice(bodies)(), self._random.choice(HEADERS), self._random.choice(PATHS)

    def _message_bytes(self) -> bytes:
        return _encode(self._message())

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.randrange(60))

    def _damage_bytes(self) -> bytes:
        """A message with one byte replaced, or cut off."""
        whole, place = self._message_bytes(), self._random.randrange(200)
        return whole[:place] + self._random.randbytes(1) + whole[place + 1 :]

    def _message(self) -> dict[str, Any]:
        message = {"jsonrpc": self._mostly("2.0"), "method": self._mostly(self._random.choice(METHODS))}
        return message | self._some_of({"id": self._mostly(self._id()), "params": self._mostly(self._params())})

    def _id(self) -> int | str:
        return self._random.randrange(1000) if self._random.random() < 0.5 else self._text(5)

    def _params(self) -> dict[str, Any]:
        name = self._random.choice(NAMES)
        kind = self._random.choice(["ref/prompt", "ref/resource", "x"])
        envelope = {
            "io.modelcontextprotocol/protocolVersion": self._mostly("2026-07-28"),
            "io.modelcontextprotocol/clientCapabilities": self._mostly({}),
        }
        return self._some_of(
            {
                "name": self._mostly(name),
                "uri": self._mostly(name),
                "arguments": self._mostly(self._some_of({key: self._value() for key in ARGUMENTS})),
                "cursor": self._value(),
                "ref": self._mostly({"type": kind, "name": name}),
                "argument": self._mostly({"name": self._text(8), "value": self._value()}),
                "context": self._value(),
                "_meta": self._mostly(envelope),
            }
        )

    def _mostly(self, value: Any) -> Any:
        """The value, or now and then any other."""
        return value if self._random.random() < 0.8 else self._value()

    def _some_of(self, members: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in members.items() if self._random.random() < 0.5}

    def _value(self, depth: int = 0) -> Any:
        """Any JSON value."""
        kind = self._random.randrange(4 if depth == 3 else 6)
        if kind == 0:
            return self._random.choice([None, True, False])
        if kind == 1:
            return self._random.choice([*NUMBERS, self._random.randrange(1000)])
        if kind in (2, 3):
            return self._text(20)
        items = [self._value(depth + 1) for _ in range(self._random.randrange(5))]
        return items if kind == 4 else {self._text(10): item for item in items}

    def _text(self, longest: int) -> str:
        return "".join(self._random.choices(CHARACTERS, k=self._random.randrange(longest + 1)))


def _encode(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_made_up_request_gets_a_500_or_a_traceback(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    made_up = MadeUp(SEED)
    requests = [made_up.request() for _ in range(CASES)]
    caplog.set_level(logging.ERROR)
    async with serve(server__request_timeout_seconds=5, server__max_sessions=50) as server:
        limiter = asyncio.Semaphore(16)
        await asyncio.gather(*(_send(server, limiter, *request) for request in requests))
        ping = await server.call("ping")
        assert ping["result"] == {}
    assert not [record.getMessage() for record in caplog.records]


async def _send(
    server: RunningServer, limiter: asyncio.Semaphore, body: bytes, headers: dict[str, str], path: str
) -> None:
    async with limiter:
        request = server.http.stream("POST", path, content=body, headers={"content-type": "application/json"} | headers)
        async with request as answer:
            assert answer.status_code < 500, (answer.status_code, body, headers, path)
            if answer.headers.get("content-type") == "application/json":
                _check_shape(json.loads(await answer.aread() or b"null"), body)
            elif answer.headers.get("content-type", "").startswith("text/event-stream"):
                await _read_some(answer)


async def _read_some(answer: httpx2.Response) -> None:
    """The start of a stream, which may well have no end."""
    async for line in answer.aiter_lines():
        assert "Traceback" not in line
        if line.startswith("data: {"):
            return


def _check_shape(message: Any, body: bytes) -> None:
    if isinstance(message, dict) and "error" in message:
        error = message["error"]
        assert isinstance(error["code"], int), body
        assert error["code"] != -32603, (message, body)
        assert {"type", "detail", "retryable"} <= set(error["data"]), (message, body)
