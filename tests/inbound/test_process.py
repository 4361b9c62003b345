"""The server as a process: starting, refusing to start, stopping."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REFDESK = [sys.executable, "-m", "refdesk"]
SEARCH = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "search_documentation", "arguments": {"query": "start the server"}},
}


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "REFDESK_DATA": str(tmp_path / "data"), **more}


@asynccontextmanager
async def running(
    tmp_path: Path, *arguments: str, **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`refdesk serve` in a process of its own, and the address it says it is ready at."""
    process = await asyncio.create_subprocess_exec(
        *REFDESK, "serve", "--port", "0", *arguments,
        env=environment(tmp_path, **more), cwd=tmp_path, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        async with asyncio.timeout(30):
            while line := await process.stderr.readline():
                if found := re.search(rb"http://[^\"]+(?=/mcp)", line):
                    break
            else:
                raise AssertionError("the server ended before it was ready")
        yield process, found[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def run(tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [*REFDESK, *arguments]
    return subprocess.run(
        command,
        env=environment(tmp_path, **more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_it_answers_and_ends_with_zero_when_told_to_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as (process, url), httpx2.AsyncClient(verify=False) as http:
        answer = await http.post(f"{url}/mcp", json=SEARCH)
        assert answer.json()["result"]["content"]
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def test_several_workers_share_the_port_and_add_up_their_metrics(tmp_path: Path) -> None:
    async with running(tmp_path, "--workers", "2") as (process, url):
        for _ in range(12):
            # A connection each, so that both workers get some.
            async with httpx2.AsyncClient(verify=False) as http:
                assert (await http.post(f"{url}/mcp", json=SEARCH)).status_code == 200
        async with httpx2.AsyncClient(verify=False) as http:
            metrics = (await http.get(f"{url}/metrics")).text
        counts = re.findall(r"refdesk_calls_total\{.*search_documentation.*\} ([0-9.]+)", metrics)
        assert sum(map(float, counts)) == 12
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, "--workers", "2") as (process, url):
        (victim, *_) = workers_of(process.pid)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(pids := workers_of(process.pid)) == 2 and victim not in pids)
        async with httpx2.AsyncClient(verify=False) as http:
            assert (await http.post(f"{url}/mcp", json=SEARCH)).status_code == 200
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    async with running(tmp_path, "--workers", "2") as (process, _):
        workers = workers_of(process.pid)
        process.kill()
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("needs /proc to find the workers")
    return [int(child) for child in children.read_text().split()]


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not happened():  # noqa: ASYNC110 - another process's doing, of which no event tells
            await asyncio.sleep(0.05)


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = run(tmp_path, "serve", "--port", port)
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} is in use" in ended.stderr


def test_an_open_bind_without_keys_is_refused_in_one_clear_line(tmp_path: Path) -> None:
    ended = run(tmp_path, "serve", "--host", "0.0.0.0")
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert "MCP_API_KEY" in ended.stderr


def test_a_bad_configuration_is_reported_whole_and_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "refdesk.yaml").write_text("server:\n  prot: 1\n  port: 99999\n")
    for command in (["check"], ["serve"], ["search", "x"]):
        ended = run(tmp_path, *command)
        assert ended.returncode == 2
        assert "did you mean" in ended.stderr
        assert "65535" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_data_folder_that_cannot_be_used_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    ended = run(tmp_path, "search", "x", "--data", str(tmp_path / "file" / "data"))
    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert "Traceback" not in ended.stderr


def test_secrets_do_not_appear_in_what_check_shows(tmp_path: Path) -> None:
    ended = run(tmp_path, "check", "--show", MCP_AUTH_REQUIRED="true", MCP_API_KEY="very-secret-key")
    assert ended.returncode == 0
    assert "auth.required" in ended.stdout
    assert "environment MCP_AUTH_REQUIRED" in ended.stdout
    assert "very-secret-key" not in ended.stdout + ended.stderr


def test_the_command_line_searches_lists_and_calls(tmp_path: Path) -> None:
    found = run(tmp_path, "search", "how", "do", "I", "start", "it", "--json")
    assert json.loads(found.stdout)["content"]
    listed = run(tmp_path, "tools")
    assert "search_documentation" in listed.stdout
    described = run(tmp_path, "tools", "search_documentation")
    assert "max_results (integer, default 5, from 1 to 20)" in described.stdout
    called = run(tmp_path, "call", "search_documentation", "query=start", "max_results=1")
    assert "(1 result," in called.stdout
    wrong = run(tmp_path, "call", "search_documentation", "query=start", "max_results=lots")
    assert wrong.returncode == 1
    assert "max_results: must be an integer" in wrong.stderr
    missing = run(tmp_path, "call", "get_document", "document_id=nope")
    assert missing.returncode == 1
    assert "There is no document" in missing.stderr


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, refdesk.cli as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(ended.stdout.split())
    assert "refdesk" in loaded
    assert not loaded & {"pydantic", "mcp", "mcp_types", "starlette", "uvicorn", "structlog", "yaml", "asyncio"}
