"""Whichever way a call comes in, it is in its caller's trace, and so is what it asks for."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from refdesk.calls import Call
from refdesk.config.loading import load
from refdesk.telemetry.traces import current_trace_id, outgoing_headers
from refdesk.tools.registry import Tool
from tests import forked
from tests.processes import BY_WORDS, environment
from tests.servers import NoArguments, RunningServer, running_server

pytestmark = pytest.mark.anyio

HEADER = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"
META = "00-" + "b" * 32 + "-" + "2" * 16 + "-01"
EVENTS = "application/json, text/event-stream"
NEWEST = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


async def where(arguments: NoArguments, call: Call) -> str:
    return json.dumps([call.trace_id, current_trace_id(), outgoing_headers()])


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    given = {"data_dir": str(tmp_path_factory.mktemp("data")), "server.port": 0, "embedding.source": "none"}
    async with running_server(load(None, {}, given)) as server:
        server.desk.registry.add_tool(Tool("where", "Where", "Tells its trace.", "docs", NoArguments, where))
        yield server


def message(tool: str, meta: dict[str, Any]) -> dict[str, Any]:
    params = {"name": tool, "arguments": {}, **({"_meta": meta} if meta else {})}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


async def post_and_read(server: RunningServer, tool: str, meta: dict[str, Any], **headers: str) -> list[Any]:
    answer = await server.post(message(tool, meta), **headers)
    body = re.sub(r"^(event|id|retry): .*$|^data: *", "", answer.text, flags=re.MULTILINE)
    found: list[Any] = json.loads(json.loads(body)["result"]["content"][0]["text"])
    return found


NAMED = [
    (HEADER, None, HEADER),
    (None, META, META),
    (HEADER, META, META),
    (HEADER, "00-malformed", HEADER),
]
"""In the header, in the message, and which of them counts."""


@pytest.mark.parametrize("route", ["handshake", "modern", "modern by the SDK"])
async def test_a_call_is_in_the_trace_that_it_names(server: RunningServer, route: str) -> None:
    for header, meta, counts in NAMED:
        headers = {"accept": EVENTS} | ({"traceparent": header} if header else {})
        more: dict[str, Any] = {"traceparent": meta} if meta else {}
        if route != "handshake":
            headers |= {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call", "mcp_name": "where"}
            more |= NEWEST
        if route == "modern by the SDK":  # which handles log levels
            more |= {"io.modelcontextprotocol/logLevel": "info"}
        of_call, current, sent = await post_and_read(server, "where", more, **headers)
        assert of_call == current == counts[3:35]
        assert sent["traceparent"] == counts


MALFORMED: list[Any] = [None, "", "00-zz", f"ff{HEADER[2:]}", f"00-{'0' * 32}-{'1' * 16}-01", 7, ["x"], {}]


async def test_a_call_that_names_none_or_nonsense_begins_its_own(server: RunningServer) -> None:
    seen: set[str] = set()
    for given in MALFORMED:
        headers = {"traceparent": given} if isinstance(given, str) else {}
        of_call, current, sent = await post_and_read(server, "where", {"traceparent": given}, **headers)
        assert of_call == current
        assert re.fullmatch(rf"00-{of_call}-[0-9a-f]{{16}}-00", sent["traceparent"])
        seen.add(of_call)
    assert len(seen) == len(MALFORMED)


async def test_a_plain_endpoint_and_an_internal_one_take_the_header(server: RunningServer) -> None:
    plain = await server.http.post("/api/tools/where", json={}, headers={"traceparent": HEADER})
    assert json.loads(plain.json()["content"][0]["text"]) == ["a" * 32, "a" * 32, {"traceparent": HEADER}]
    asked = {"tool_name": "where", "arguments": {}, "user": {"user_id": "u", "tenant_id": "t"}}
    internal = await server.http.post("/internal/mcp/execute", json=asked, headers={"traceparent": HEADER})
    assert internal.json()["trace_id"] == "a" * 32


async def test_a_tracestate_is_handed_on_with_its_parent(server: RunningServer) -> None:
    _, _, sent = await post_and_read(server, "where", {"traceparent": META, "tracestate": "vendor=1"})
    assert sent == {"traceparent": META, "tracestate": "vendor=1"}


@pytest.mark.parametrize("accept", ["application/json", EVENTS])
async def test_an_unforeseen_error_tells_the_trace_under_which_the_log_has_it(
    server: RunningServer, accept: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await server.post(message("broken", {"traceparent": META}), accept=accept)
    assert answer.json()["error"]["data"]["trace_id"] == "b" * 32
    plain = await server.http.post("/api/tools/broken", json={}, headers={"traceparent": HEADER})
    assert plain.json()["error"]["data"]["trace_id"] == "a" * 32
    logged = [vars(record)["fields"] for record in caplog.records if record.exc_info]
    assert logged == [{"trace_id": "b" * 32}, {"trace_id": "a" * 32}]


@pytest.mark.slow
async def test_a_client_on_standard_input_names_its_trace_in_meta(tmp_path: Path) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    lines = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": {"traceparent": META}}},
    ]
    ended = await anyio.run_process(
        [*forked.refdesk(), "serve", "--stdio", "--data", str(tmp_path / "data")],
        input="".join(json.dumps(line) + "\n" for line in lines).encode(),
        env=environment(tmp_path, REFDESK__LOGGING__LEVEL="info", **BY_WORDS),
        cwd=tmp_path,
    )
    calls = [entry for entry in map(json.loads, ended.stderr.splitlines()) if entry["event"] == "call"]
    assert [entry["trace_id"] for entry in calls] == ["b" * 32]
