"""The `.env` files of TechDoc and of the tools proxy, in the folder that the server is started from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import forked
from tests.processes import environment, started_server
from tests.processes import run as run_program
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parent
LIST = {"jsonrpc": "2.0", "method": "tools/list", "id": "ex-1"}
CLIENT = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
INITIALIZE = {"jsonrpc": "2.0", "method": "initialize", "id": 1, "params": CLIENT}


async def check(folder: Path, name: str, *arguments: str, **more: str) -> tuple[int, str]:
    shutil.copy(FOLDER / name, folder / ".env")
    env = environment(folder, REFDESK_DATA=str(folder / "data"), **more)
    ended = await run_program(*forked.refdesk(), "check", *arguments, cwd=folder, env=env)
    return ended.code, ended.out + ended.err


async def show(folder: Path, name: str, **more: str) -> dict[str, tuple[str, str]]:
    code, said = await check(folder, name, "--show", "--json", **more)
    assert code == 0, said
    rows: list[dict[str, Any]] = json.loads(said)
    return {row["key"]: (row["value"], row["source"]) for row in rows}


async def test_the_settings_of_techdoc_are_read(tmp_path: Path) -> None:
    settings = await show(tmp_path, "techdoc.env", MCP_AUTH_REQUIRED="true")
    assert settings["server.host"] == ("0.0.0.0", ".env MCP_SERVER_HOST")
    assert settings["server.port"] == ("8001", ".env MCP_SERVER_PORT")
    assert settings["server.allowed_origins"] == ("[*]", ".env MCP_ALLOWED_ORIGINS")
    assert settings["auth.required"] == ("true", "environment MCP_AUTH_REQUIRED")


async def test_its_open_address_without_keys_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    code, said = await check(tmp_path, "techdoc.env")
    assert code == 2
    assert "MCP_AUTH_REQUIRED=true" in said
    assert "--allow-anonymous" in said


async def test_it_is_open_to_all_when_it_is_told_so(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "techdoc.env", tmp_path / ".env")
    async with (
        started_server(tmp_path, "--allow-anonymous") as server,
        httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http,
    ):
        url = server.url.replace("0.0.0.0", "localhost") + "/mcp"
        for headers in ({}, {"Authorization": "Bearer your-api-key-here"}):
            assert "tools" in (await http.post(url, json=LIST, headers=headers)).json()["result"]
        # A wrong key is refused all the same: who sends one expects to be known.
        assert (await http.post(url, json=LIST, headers={"Authorization": "Bearer wrong"})).status_code == 401


async def test_its_key_is_required_once_it_says_so(tmp_path: Path) -> None:
    text = (FOLDER / "techdoc.env").read_text().replace("MCP_AUTH_REQUIRED=false", "MCP_AUTH_REQUIRED=true")
    (tmp_path / ".env").write_text(text.replace("0.0.0.0", "127.0.0.1"))
    async with (
        started_server(tmp_path) as server,
        httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http,
    ):
        refused = await http.post(f"{server.url}/mcp", json=LIST)
        assert (refused.status_code, refused.json()) == (401, {"detail": "Invalid API key"})
        for origin in ("https://app.example.com", "http://localhost:3000"):
            headers = {"Authorization": "Bearer your-api-key-here", "Origin": origin}
            answer = await http.post(f"{server.url}/mcp", json=LIST, headers=headers)
            assert "search_documentation" in {tool["name"] for tool in answer.json()["result"]["tools"]}
            assert answer.headers["access-control-allow-origin"] == origin


async def test_the_settings_of_the_tools_proxy_are_read(tmp_path: Path) -> None:
    settings = await show(tmp_path, "tools_proxy.env")
    found = {key: value for key, (value, source) in settings.items() if source.startswith(".env ")}
    assert found == {
        "server.name": "MCP Tools Proxy",
        "server.host": "127.0.0.1",
        "server.port": "8002",
        "logging.level": "info",
        "reader.max_pages_per_call": "5",
        "reader.max_text_bytes": "20000",
        "reader.rate_limit_calls": "10",
        "reader.rate_limit_tokens": "2000",
        "reader.retrieval_window_url": "http://127.0.0.1:8040/internal/retrieval/chunks/window",
        "reader.retrieval_timeout_seconds": "5",
        "reader.max_window_radius": "5",
        "reader.blocklist_keywords": "[secret, password]",
    }


async def test_the_name_of_the_tools_proxy_is_shown_to_clients(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "tools_proxy.env", tmp_path / ".env")
    async with (
        started_server(tmp_path) as server,
        httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http,
    ):
        answer = await http.post(f"{server.url}/mcp", json=INITIALIZE)
        assert answer.json()["result"]["serverInfo"]["title"] == "MCP Tools Proxy"
