"""The newest revision: the same answers as in the older ones, with more around them, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp.server.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, NAME_BEARING_METHODS
from mcp_types import methods
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS

from refdesk.calls import Call
from refdesk.inbound.mcp import revisions
from refdesk.tools.registry import Tool
from tests.servers import NoArguments, RunningServer

pytestmark = pytest.mark.anyio

ACCEPT = "application/json, text/event-stream"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
DOC_TYPE = {"name": "doc_type", "value": "r"}
PROMPT = {"name": "answer_from_docs", "arguments": {"question": "why?"}}
REF = {"type": "ref/prompt", "name": "answer_from_docs"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "a list": ("tools/list", {}),
    "a call": ("tools/call", {"name": "echo", "arguments": {"text": "hi"}}),
    "a call with meta in its result": ("tools/call", {"name": "search_documentation", "arguments": {"query": "run"}}),
    "a call that wants its progress": ("tools/call", {"name": "whoami", "_meta": {**META, "progressToken": 1}}),
    "a failing tool": ("tools/call", {"name": "missing", "arguments": {}}),
    "a wrong argument": ("tools/call", {"name": "echo", "arguments": {"text": 1}}),
    "arguments in a list": ("tools/call", {"name": "echo", "arguments": []}),
    "an unknown tool": ("tools/call", {"name": "nothing", "arguments": {}}),
    "an engine that is down": ("tools/call", {"name": "down", "arguments": {}}),
    "a tool that breaks": ("tools/call", {"name": "broken", "arguments": {}}),
    "resources": ("resources/list", {}),
    "templates": ("resources/templates/list", {}),
    "a resource": ("resources/read", {"uri": "techdoc://refdesk/index.md"}),
    "an unknown resource": ("resources/read", {"uri": "techdoc://refdesk/none.md"}),
    "prompts": ("prompts/list", {}),
    "a prompt": ("prompts/get", PROMPT),
    "a prompt without its argument": ("prompts/get", {"name": "answer_from_docs"}),
    "a completion": ("completion/complete", {"ref": REF, "argument": DOC_TYPE}),
    "a bad cursor": ("tools/list", {"cursor": "x"}),
}  # fmt: skip


TRACE = "00-" + "a" * 32 + "-" + "1" * 16 + "-01"
"""The same for all requests, or an error that names its trace would differ."""


def headers_for(method: str, params: dict[str, Any], **more: str) -> dict[str, str]:
    name = params.get("name") or params.get("uri")
    headers = {"accept": ACCEPT, "mcp-protocol-version": "2026-07-28", "mcp-method": method, "traceparent": TRACE}
    named = method in ("tools/call", "resources/read", "prompts/get")
    return headers | ({"mcp-name": name} if named and name else {}) | more


async def post(server: RunningServer, method: str, params: dict[str, Any], **more: str) -> httpx2.Response:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": META, **params}}
    return await server.http.post("/mcp", json=message, headers=headers_for(method, params, **more))


@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_gets_the_answer_of_the_older_revisions(server: RunningServer, name: str) -> None:
    method, params = REQUESTS[name]
    answer = await post(server, method, params)
    older = (
        await server.post({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, traceparent=TRACE)
    ).json()
    # A header for a parameter that no tool has changes nothing.
    assert (await post(server, method, params, **{"mcp-param-none": "1"})).json() == answer.json()
    assert answer.headers["content-type"] == "application/json"
    if "error" in older:
        assert answer.json()["error"] == older["error"]
        assert answer.status_code == revisions.STATUSES.get(older["error"]["code"], 200)
    else:
        result = answer.json()["result"]
        assert result.pop("resultType") == "complete"
        assert result["_meta"].pop(types.SERVER_INFO_META_KEY) == dict(revisions.SERVER_INFO)
        if method in methods.CACHEABLE_METHODS:
            assert (result.pop("ttlMs"), result.pop("cacheScope")) == (60_000, "private")
        assert result == {"_meta": {}} | older["result"]


def test_our_tables_of_the_protocol_are_those_of_the_sdk() -> None:
    assert revisions.HANDSHAKE_REVISIONS == HANDSHAKE_PROTOCOL_VERSIONS
    assert (revisions.MODERN_REVISION,) == MODERN_PROTOCOL_VERSIONS
    assert dict(ERROR_CODE_HTTP_STATUS) == revisions.STATUSES
    assert dict(NAME_BEARING_METHODS) == revisions.NAMES
    assert revisions.INPUT_REQUIRED_METHODS == methods.INPUT_REQUIRED_METHODS
    assert revisions.CACHEABLE_METHODS | {"server/discover"} == methods.CACHEABLE_METHODS
    keys = {name: value for name, value in vars(revisions).items() if name.endswith("_META")}
    theirs = vars(types) | {"SUBSCRIPTION_ID_META_KEY": SUBSCRIPTION_ID_META_KEY}
    assert {name: theirs[f"{name}_KEY"] for name in keys} == keys


async def test_what_a_server_says_of_itself_has_the_form_of_the_protocol(server: RunningServer) -> None:
    discovered = (await post(server, "server/discover", {})).json()["result"]
    methods.validate_server_result("server/discover", "2026-07-28", discovered)
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    initialized = (await server.call("initialize", client))["result"]
    methods.validate_server_result("initialize", "2025-06-18", initialized)
    assert initialized["protocolVersion"] == "2025-06-18"
    assert initialized["serverInfo"] == discovered["_meta"][types.SERVER_INFO_META_KEY]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mcp-method": "tools/list"}, -32020),
        ({"mcp-name": "whoami"}, -32020),
        ({"mcp-protocol-version": "2099-01-01"}, -32020),
    ],
)
async def test_headers_that_disagree_with_the_body_are_refused(
    server: RunningServer, change: dict[str, str], code: int
) -> None:
    answer = await post(server, "tools/call", {"name": "echo", "arguments": {"text": "hi"}}, **change)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code
    assert {"type", "detail", "retryable"} <= set(answer.json()["error"]["data"])


@pytest.mark.parametrize("name", ["mcp-name", "mcp-method", "mcp-protocol-version", "mcp-param-region"])
async def test_a_repeated_header_is_refused(server: RunningServer, name: str) -> None:
    call = {"name": "whoami", "_meta": META}
    headers = [*headers_for("tools/call", call).items(), (name, "1"), (name, "1")]
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    answer = await server.http.post("/mcp", json=message, headers=headers)
    assert answer.status_code == 400
    assert name in answer.json()["detail"]


@pytest.mark.parametrize("key", list(META)[:2])
async def test_an_envelope_without_a_required_key_is_refused(server: RunningServer, key: str) -> None:
    meta = {name: value for name, value in META.items() if name != key}
    answer = await post(server, "tools/call", {"name": "echo", "arguments": {"text": "hi"}, "_meta": meta})
    assert answer.status_code == 400
    assert key in json.dumps(answer.json())


async def test_a_name_that_does_not_fit_a_header_is_understood_encoded(server: RunningServer) -> None:
    uri = "techdoc://refdesk/ünïcode.md"
    encoded = "=?base64?dGVjaGRvYzovL3JlZmRlc2svw7xuw69jb2RlLm1k?="
    answer = await post(server, "resources/read", {"uri": uri}, **{"mcp-name": encoded})
    assert answer.json()["error"]["data"]["type"] == "UnknownResource"


async def test_state_in_a_result_is_sealed_and_opened_in_the_next_round(server: RunningServer) -> None:
    async def remember(arguments: NoArguments, call: Call) -> dict[str, Any]:
        if (state := call.params.get("requestState")) is not None:
            return {"content": [{"type": "text", "text": state}]}
        request = {"method": "elicitation/create", "params": {"message": "Go on?", "requestedSchema": {}}}
        return {"resultType": "input_required", "inputRequests": {"go": request}, "requestState": "first round"}

    server.desk.registry.add_tool(Tool("remember", "Remember", "Asks once.", "docs", NoArguments, remember))
    call = {"name": "remember", "arguments": {}}
    sealed = (await post(server, "tools/call", call)).json()["result"]["requestState"]
    assert "first round" not in sealed
    given = {"go": {"action": "accept", "content": {}}}
    again = await post(server, "tools/call", {**call, "requestState": sealed, "inputResponses": given})
    assert again.json()["result"]["content"][0]["text"] == "first round"


def test_a_server_starts_without_the_sdk() -> None:
    """Importing it would take as long as everything else of the inbound layer together, several times over."""
    code = (
        "import sys, refdesk.inbound.http_server, refdesk.inbound.stdio; print(*{'mcp', 'mcp_types'} & {*sys.modules})"
    )
    started = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert started.stdout.strip() == ""
