"""Thousands of made-up requests: none is answered with a 500, none brings the server down."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Serve
from tests.servers import RunningServer

CASES = 5000
"""Messages sent in all: as many as the endpoint is promised to stand."""

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=10), children, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    [
        "search_documentation",
        "get_document",
        "echo",
        "whoami",
        "missing",
        "down",
        "nothing",
        "",
        "techdoc://refdesk/docs",
    ]
)
METHODS = st.sampled_from(
    [
        "initialize", "ping", "tools/list", "tools/call", "resources/list", "resources/read",
        "resources/templates/list", "resources/subscribe", "prompts/list", "prompts/get", "completion/complete",
        "logging/setLevel",
        "server/discover", "subscriptions/listen", "notifications/initialized", "notifications/cancelled", "no/such",
    ]
)  # fmt: skip
ARGUMENTS = st.dictionaries(
    st.sampled_from(["query", "text", "max_results", "doc_type", "document_id", "cursor", "times", "other"]),
    JSON_VALUES,
)
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "name": NAMES | JSON_VALUES,
        "uri": NAMES | JSON_VALUES,
        "arguments": ARGUMENTS | JSON_VALUES,
        "cursor": JSON_VALUES,
        "ref": st.fixed_dictionaries({"type": st.sampled_from(["ref/prompt", "ref/resource", "x"]), "name": NAMES})
        | JSON_VALUES,
        "argument": st.fixed_dictionaries({"name": st.text(max_size=8), "value": JSON_VALUES}) | JSON_VALUES,
        "context": JSON_VALUES,
        "_meta": st.fixed_dictionaries(
            {
                "io.modelcontextprotocol/protocolVersion": st.just("2026-07-28") | JSON_VALUES,
                "io.modelcontextprotocol/clientCapabilities": st.just({}) | JSON_VALUES,
            }
        )
        | JSON_VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | JSON_VALUES, "method": METHODS | JSON_VALUES},
    optional={"id": st.integers() | st.text(max_size=5) | JSON_VALUES, "params": PARAMS | JSON_VALUES},
)
BODIES = (
    MESSAGES.map(json.dumps).map(str.encode)
    | JSON_VALUES.map(json.dumps).map(str.encode)
    | st.binary(max_size=60)
    | st.tuples(MESSAGES.map(json.dumps).map(str.encode), st.integers(0, 200), st.integers(0, 255)).map(
        lambda made: made[0][: made[1]] + bytes([made[2]]) + made[0][made[1] + 1 :]
    )
)
HEADERS = st.sampled_from(
    [
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
    ]
)  # fmt: skip
PATHS = st.sampled_from(
    ["/mcp"] * 8 + ["/mcp?toolsets=docs", "/mcp?toolsets=%00,x", "/api/tools/echo", "/api/tools/%2e%2e"]
)


def batches_of_made_up_requests() -> list[tuple[bytes, dict[str, str], str]]:
    """Drawn before any server runs, so that a slow draw cannot be taken for a slow answer."""
    drawn: list[tuple[bytes, dict[str, str], str]] = []

    @settings(
        max_examples=CASES, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(BODIES, HEADERS, PATHS)
    def draw(body: bytes, headers: dict[str, str], path: str) -> None:
        drawn.append((body, headers, path))

    draw()
    return drawn


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_no_made_up_request_gets_a_500_or_a_traceback(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    requests = batches_of_made_up_requests()
    assert len(requests) >= 5000
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
