"""The configuration file of the R2R MCP server: checked as it is, and started with free ports and folders."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from tests import forked
from tests.ports import find_free_port
from tests.processes import REFDESK, environment, started_server
from tests.processes import run as run_program
from tests.redis_server import needs_redis, redis_server
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

FILE = Path(__file__).with_name("r2r_mcp_config.yaml")
KEY = "a-key-of-the-scrapers-server"
KEYS = {"MCP_AUTH_REQUIRED": "true", "MCP_API_KEY": KEY}


async def check(folder: Path, **more: str) -> tuple[int, str]:
    env = environment(folder, R2R_SERVICE_PASSWORD="secret", REFDESK_DATA=str(folder / "data"), **more)
    ended = await run_program(*forked.refdesk(), "check", "--config", FILE, cwd=folder, env=env)
    return ended.code, ended.out + ended.err


async def test_it_is_valid_with_keys(tmp_path: Path) -> None:
    assert await check(tmp_path, **KEYS) == (0, "The configuration is valid.\n")


async def test_an_open_address_without_keys_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    code, said = await check(tmp_path)
    assert code == 2
    assert "MCP_AUTH_REQUIRED=true and MCP_API_KEY" in said
    assert "--allow-anonymous" in said
    assert said.count("\n") == 1, said


@needs_redis
@pytest.mark.slow
async def test_it_starts_with_metrics_on_a_port_of_their_own(tmp_path: Path) -> None:
    port, metrics_port, log = find_free_port(), find_free_port(), tmp_path / "logs" / "r2r_mcp" / "server.log"
    with redis_server() as redis:
        env = environment(
            tmp_path,
            R2R_SERVICE_PASSWORD="secret",
            R2R_API_URL=f"http://127.0.0.1:{find_free_port()}",
            REDIS_URL=redis.url,
            MCP_SERVER_PORT=str(port),
            REFDESK__LOGGING__FILE=str(log),
            REFDESK__MONITORING__PROMETHEUS__PORT=str(metrics_port),
            REFDESK__PROJECTS__COLLECTION_MAPPING_FILE=str(tmp_path / "lib" / "project_collections.json"),
            REFDESK_DATA=str(tmp_path / "data"),
            REFDESK__EMBEDDING__SOURCE="none",
            **KEYS,
        )
        process = await asyncio.create_subprocess_exec(*REFDESK, "serve", "--config", FILE, cwd=tmp_path, env=env)
        try:
            await eventually(lambda: log.exists() and log.read_text().count('"event":"ready"') == 4)
            async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
                server, metrics = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics_port}"
                assert (await http.get(f"{server}/metrics")).status_code == 401
                scraped = await http.get(f"{metrics}/metrics")
                assert scraped.status_code == 200
                assert "refdesk_http_refusals_total" in scraped.text
                for path in ("/mcp", "/health", "/console/"):
                    assert (await http.get(f"{metrics}{path}")).status_code == 404
                listed = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
                assert (await http.post(f"{metrics}/mcp", json=listed)).status_code == 404
                answer = await http.post(f"{server}/mcp", json=listed, headers={"Authorization": f"Bearer {KEY}"})
                assert any(tool["name"] == "r2r_search" for tool in answer.json()["result"]["tools"])
        finally:
            process.terminate()
            await process.wait()


@needs_redis
@pytest.mark.slow
async def test_the_variables_of_its_container_are_enough(tmp_path: Path) -> None:
    with redis_server() as redis:
        variables = {
            "R2R_API_URL": f"http://127.0.0.1:{find_free_port()}",
            "R2R_SERVICE_EMAIL": "claude-code-service@example.com",
            "R2R_SERVICE_PASSWORD": "secret",
            "REDIS_URL": redis.url,
        }
        async with started_server(tmp_path, **variables) as server:
            [selected] = [line for line in server.log if line["event"] == "cache.redis"]
            assert (selected["selected_by"], selected["url"]) == ("REDIS_URL", redis.url)
            async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
                checks = (await http.get(f"{server.url}/ready")).json()["checks"]
            assert checks["cache"]["redis"]["state"] == "ok"
            assert checks["r2r"]
