"""API keys at the door."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refdesk.errors import ConfigError
from refdesk.policy.keys import FILE_NAME, KeyFile, StoredKey, digest, new_key
from tests.conftest import Serve
from tests.servers import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

KEY = "a-key-of-some-length"
OTHER = "another-key-of-length"
WHOAMI = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "whoami", "arguments": {}}}
KEYS: dict[str, Any] = {
    "auth__required": True,
    "auth__keys": [
        {"key": KEY, "tenant": "acme", "user": "ann"},
        {"key_sha256": hashlib.sha256(OTHER.encode()).hexdigest(), "tenant": "beta", "user": "bob"},
    ],
}


@pytest.fixture(scope="module")
async def server_with_keys(serve_all: Serve) -> AsyncIterator[RunningServer]:
    async with serve_all(**KEYS) as server:
        yield server


async def who(server: RunningServer, **headers: str) -> str:
    text: str = (await server.post(WHOAMI, **headers)).json()["result"]["content"][0]["text"]
    return text


async def test_a_key_says_who_calls(server_with_keys: RunningServer) -> None:
    assert await who(server_with_keys, authorization=f"Bearer {KEY}") == "acme/ann"
    assert await who(server_with_keys, authorization=f"bearer  {OTHER}") == "beta/bob"
    assert await who(server_with_keys, x_api_key=OTHER) == "beta/bob"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Bearer {KEY[:-1]}"},
        {"authorization": f"Bearer {KEY.upper()}"},
        {"authorization": f"Bearer Bearer {KEY}"},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
        {"x-api-key": "wrong"},
    ],
)
async def test_without_a_valid_key_nothing_is_answered(
    server_with_keys: RunningServer, headers: dict[str, str]
) -> None:
    posted = await server_with_keys.http.post("/mcp", json=WHOAMI, headers=headers)
    for answer in (
        posted,
        await server_with_keys.http.post("/api/tools/whoami", json={}, headers=headers),
        await server_with_keys.http.get("/api/tools", headers=headers),
        await server_with_keys.http.get("/metrics", headers=headers),
        await server_with_keys.http.get("/mcp", headers=headers | {"mcp-session-id": "x"}),
    ):
        assert answer.status_code == 401
        assert answer.json() == {"detail": "Invalid API key"}
        assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_in_the_address_does_not_count(server_with_keys: RunningServer) -> None:
    assert (await server_with_keys.http.post(f"/mcp?api_key={KEY}&key={KEY}", json=WHOAMI)).status_code == 401


async def test_a_refused_caller_cannot_send_a_large_body_first(server_with_keys: RunningServer) -> None:
    answer = await server_with_keys.http.post(
        "/mcp", content=b"x" * 3_000_000, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 401
    assert server_with_keys.app.bodies.in_flight == 0


async def test_probes_need_no_key(server_with_keys: RunningServer) -> None:
    for path in ("/health", "/ready", "/"):
        assert (await server_with_keys.http.get(path)).status_code == 200


async def test_a_session_belongs_to_the_key_that_opened_it(server_with_keys: RunningServer) -> None:
    accept = "application/json, text/event-stream"
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    opened = await server_with_keys.post(initialize, accept=accept, authorization=f"Bearer {KEY}")
    session = {"mcp_session_id": opened.headers["mcp-session-id"], "accept": accept}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    assert (await server_with_keys.post(ping, **session, authorization=f"Bearer {KEY}")).status_code == 200
    assert (await server_with_keys.post(ping, **session, authorization=f"Bearer {OTHER}")).status_code == 404


async def test_keys_are_not_needed_on_loopback_by_default(server: RunningServer) -> None:
    assert await who(server) == "default/anonymous"


def test_an_open_bind_without_keys_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="allow-anonymous"):
        settings(server__host="0.0.0.0")
    assert settings(server__host="0.0.0.0", server__allow_anonymous=True).server.host == "0.0.0.0"
    assert settings(server__host="0.0.0.0", **KEYS).auth.required


ACCEPT = "application/json, text/event-stream"
OPENING = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.mark.parametrize("required", [True, False])
async def test_nobody_else_can_use_listen_to_call_off_or_end_a_session(serve: Serve, required: bool) -> None:
    """Another's session answers exactly as one that does not exist."""
    async with serve(**KEYS | {"auth__required": required}) as server:
        opened = await server.post(OPENING, accept=ACCEPT, authorization=f"Bearer {KEY}")
        session = opened.headers["mcp-session-id"]
        assert len(session) >= 32
        mine = {"authorization": f"Bearer {KEY}", "accept": ACCEPT, "mcp-session-id": session}
        hang = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "hang", "arguments": {}}}
        running = asyncio.create_task(server.http.post("/mcp", json=hang, headers=mine))
        await server.probe.started.wait()
        others = [{"authorization": f"Bearer {OTHER}"}, *([] if required else [{}])]
        for other in others:
            theirs = {"accept": ACCEPT, "mcp-session-id": session, **other}
            made_up = {**theirs, "mcp-session-id": "0" * 32}
            cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
            for message in (WHOAMI, {"jsonrpc": "2.0", "id": 2, "method": "ping"}, cancel):
                answer, nothing = [await server.http.post("/mcp", json=message, headers=h) for h in (theirs, made_up)]
                assert answer.status_code == 404
                assert answer.json()["error"]["code"] == nothing.json()["error"]["code"]
                assert answer.json()["error"]["message"] == nothing.json()["error"]["message"]
            assert (await server.http.get("/mcp", headers=theirs)).status_code == 404
            assert (await server.http.delete("/mcp", headers=theirs)).status_code == 404
        assert not server.probe.cancelled.is_set()
        assert not running.done()
        ping = {"jsonrpc": "2.0", "id": 3, "method": "ping"}
        assert (await server.http.post("/mcp", json=ping, headers=mine)).status_code == 200
        assert (await server.http.delete("/mcp", headers=mine)).status_code == 200
        running.cancel()


LIMITED: dict[str, Any] = {
    "auth__required": True,
    "auth__keys": [
        {"key": "reader-key", "user": "r", "tenant": "acme", "roles": ["reader"]},
        {"key": "docs-key", "user": "d", "tenant": "acme", "toolsets": ["docs"]},
        {"key": "service-key", "user": "s", "tenant": "ops", "roles": ["service"], "toolsets": ["docs"]},
        {"key": "strange-key", "user": "x", "tenant": "acme", "roles": ["raeder"]},
    ],
}
INGEST = {"text": "x", "title": "y"}


@pytest.fixture(scope="module")
async def server_with_limits(serve_all: Serve) -> AsyncIterator[RunningServer]:
    async with serve_all(**LIMITED) as server:
        yield server


async def test_roles_and_toolsets_hold_on_every_way_in(server_with_limits: RunningServer) -> None:
    ingest = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "r2r_ingest_document", "arguments": INGEST},
    }
    for key, code, status in (("reader-key", -32002, 403), ("docs-key", -32602, 404), ("strange-key", -32002, 403)):
        for accept in ("application/json", ACCEPT):
            answer = await server_with_limits.post(ingest, x_api_key=key, accept=accept)
            assert str(code) in answer.text, answer.text
        rest = await server_with_limits.http.post(
            "/api/tools/r2r_ingest_document", json=INGEST, headers={"x-api-key": key}
        )
        assert rest.status_code == status
    listed = (await server_with_limits.http.get("/api/tools", headers={"x-api-key": "docs-key"})).json()["tools"]
    assert {tool["name"] for tool in listed} >= {"search_documentation", "echo"}
    assert not any(tool["name"].startswith("r2r_") for tool in listed)


EXECUTE = "/internal/mcp/execute"


@pytest.mark.parametrize(
    ("key", "user", "status"),
    [
        ("reader-key", {"user_id": "r", "tenant_id": "acme"}, 403),
        ("reader-key", {"user_id": "r", "tenant_id": "acme", "roles": []}, 403),
        ("reader-key", {"user_id": "r", "tenant_id": "acme", "roles": ["reader"]}, 403),
        ("reader-key", {"user_id": "r", "tenant_id": "acme", "roles": ["writer"]}, 403),
        ("reader-key", {"user_id": "other", "tenant_id": "acme"}, 403),
        ("docs-key", {"user_id": "d", "tenant_id": "acme"}, 404),
        ("service-key", {"user_id": "u", "tenant_id": "acme"}, 404),
        ("strange-key", {"user_id": "x", "tenant_id": "acme"}, 403),
    ],
)
async def test_nobody_gains_anything_by_acting_for_somebody(
    server_with_limits: RunningServer, key: str, user: dict[str, Any], status: int
) -> None:
    body = {"tool_name": "r2r_ingest_document", "arguments": INGEST, "user": user}
    answer = await server_with_limits.http.post(EXECUTE, json=body, headers={"x-api-key": key})
    assert answer.status_code == status, answer.text


async def test_unknown_roles_that_a_service_names_grant_nothing(serve: Serve) -> None:
    async with serve(auth__keys=[{"key": "svc", "roles": ["service"]}]) as server:
        for roles, status in (
            ([], 200),
            (["analyst"], 403),
            (["reader", "analyst"], 403),
            (["writer", "analyst"], 200),
            (["writer"], 200),
        ):
            user = {"user_id": "u", "tenant_id": "acme", "roles": roles}
            body = {"tool_name": "r2r_ingest_document", "arguments": INGEST, "user": user}
            answer = await server.http.post(EXECUTE, json=body, headers={"x-api-key": "svc"})
            assert answer.status_code == status, (roles, answer.text)


async def test_a_key_made_while_the_server_runs_is_known_to_it(serve: Serve, tmp_path: Path) -> None:
    async with serve() as server:
        body = {"tool_name": "whoami", "user": {"user_id": "u", "tenant_id": "acme"}}
        assert (await server.http.post(EXECUTE, json=body)).status_code == 200, "nobody is told apart yet"
        key = new_key()
        stored = StoredKey(name="new", sha256=digest(key).hex(), user="new", tenant="beta", created=datetime.now(UTC))

        async def is_known() -> bool:
            return await who(server, x_api_key=key) == "beta/new"

        async def is_refused() -> bool:
            return (await server.post(WHOAMI, x_api_key=key)).status_code == 401

        KeyFile(tmp_path / "data" / FILE_NAME).add(stored)
        await eventually(is_known)
        assert (await server.http.post(EXECUTE, json=body)).status_code == 403
        KeyFile(tmp_path / "data" / FILE_NAME).remove("new")
        await eventually(is_refused)
        assert (await server.http.post(EXECUTE, json=body)).status_code == 403, "the last key gone, the door stays shut"
