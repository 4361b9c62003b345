"""API keys at the door."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from refdesk.errors import ConfigError
from tests.conftest import Serve
from tests.servers import RunningServer

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


async def who(server: RunningServer, **headers: str) -> str:
    text: str = (await server.post(WHOAMI, **headers)).json()["result"]["content"][0]["text"]
    return text


async def test_a_key_says_who_calls(serve: Serve) -> None:
    async with serve(**KEYS) as server:
        assert await who(server, authorization=f"Bearer {KEY}") == "acme/ann"
        assert await who(server, authorization=f"bearer  {OTHER}") == "beta/bob"
        assert await who(server, x_api_key=OTHER) == "beta/bob"


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
async def test_without_a_valid_key_nothing_is_answered(serve: Serve, headers: dict[str, str]) -> None:
    async with serve(**KEYS) as server:
        posted = await server.http.post("/mcp", json=WHOAMI, headers=headers)
        for answer in (
            posted,
            await server.http.post("/api/tools/whoami", json={}, headers=headers),
            await server.http.get("/api/tools", headers=headers),
            await server.http.get("/metrics", headers=headers),
            await server.http.get("/mcp", headers=headers | {"mcp-session-id": "x"}),
        ):
            assert answer.status_code == 401
            assert answer.json() == {"detail": "Invalid API key"}
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_a_key_in_the_address_does_not_count(serve: Serve) -> None:
    async with serve(**KEYS) as server:
        assert (await server.http.post(f"/mcp?api_key={KEY}&key={KEY}", json=WHOAMI)).status_code == 401


async def test_a_refused_caller_cannot_send_a_large_body_first(serve: Serve) -> None:
    async with serve(**KEYS) as server:
        answer = await server.http.post("/mcp", content=b"x" * 3_000_000, headers={"content-type": "application/json"})
        assert answer.status_code == 401
        assert server.app.bodies.in_flight == 0


async def test_probes_need_no_key(serve: Serve) -> None:
    async with serve(**KEYS) as server:
        for path in ("/health", "/ready", "/"):
            assert (await server.http.get(path)).status_code == 200


async def test_a_session_belongs_to_the_key_that_opened_it(serve: Serve) -> None:
    accept = "application/json, text/event-stream"
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    async with serve(**KEYS) as server:
        opened = await server.post(initialize, accept=accept, authorization=f"Bearer {KEY}")
        session = {"mcp_session_id": opened.headers["mcp-session-id"], "accept": accept}
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await server.post(ping, **session, authorization=f"Bearer {KEY}")).status_code == 200
        assert (await server.post(ping, **session, authorization=f"Bearer {OTHER}")).status_code == 404


async def test_keys_are_not_needed_on_loopback_by_default(serve: Serve) -> None:
    async with serve() as server:
        assert await who(server) == "default/anonymous"


def test_an_open_bind_without_keys_is_refused(settings: Any) -> None:
    with pytest.raises(ConfigError, match="allow-anonymous"):
        settings(server__host="0.0.0.0")
    assert settings(server__host="0.0.0.0", server__allow_anonymous=True).server.host == "0.0.0.0"
    assert settings(server__host="0.0.0.0", **KEYS).auth.required
