"""The server as a process: starting, refusing to start, stopping."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from refdesk.cli.serve import MAX_OPEN_FILES
from tests import forked
from tests.processes import REFDESK, environment, started_process
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SEARCH = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "search_documentation", "arguments": {"query": "start the server"}},
}


def run(tmp_path: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself and starts no processes of its own, in a fork."""
    return run_program(tmp_path, *forked.refdesk(), *arguments, **more)


def run_program(tmp_path: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(tmp_path, REFDESK_DATA=str(tmp_path / "data"), **more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


async def test_it_answers_and_ends_with_zero_when_told_to_stop(tmp_path: Path) -> None:
    as_it_comes = {"REFDESK__EMBEDDING__SOURCE": "builtin"}
    async with (
        started_process(tmp_path, **as_it_comes) as server,
        httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http,
    ):
        answer = await http.post(f"{server.url}/mcp", json=SEARCH)
        assert answer.json()["result"]["content"]
        await server.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of another process is looked up with prlimit")
async def test_it_raises_its_soft_limit_of_open_files(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard - 1, 1_024), hard))
    try:
        async with started_process(tmp_path) as server:
            assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, MAX_OPEN_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_several_workers_share_the_port_and_add_up_their_metrics(tmp_path: Path) -> None:
    async with started_process(tmp_path, "--workers", "2") as server:
        for _ in range(12):
            # A connection each, so that both workers get some.
            async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
                assert (await http.post(f"{server.url}/mcp", json=SEARCH)).status_code == 200
        async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
            metrics = (await http.get(f"{server.url}/metrics")).text
        counts = re.findall(r"refdesk_calls_total\{.*search_documentation.*\} ([0-9.]+)", metrics)
        assert sum(map(float, counts)) == 12
        await server.stop()


async def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    async with started_process(tmp_path, "--workers", "2") as server:
        (victim, *_) = workers_of(server.process.pid)
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: len(pids := workers_of(server.process.pid)) == 2 and victim not in pids)
        async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
            assert (await http.post(f"{server.url}/mcp", json=SEARCH)).status_code == 200
        await server.stop()


async def test_workers_do_not_outlive_a_parent_that_was_killed(tmp_path: Path) -> None:
    async with started_process(tmp_path, "--workers", "2") as server:
        workers = workers_of(server.process.pid)
        server.process.kill()
        await eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def workers_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    if not children.exists():
        pytest.skip("needs /proc to find the workers")
    return [int(child) for child in children.read_text().split()]


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


@pytest.mark.parametrize(("workers", "way"), [(1, ()), (2, ()), (1, ("--stdio",))])
def test_what_turns_out_wrong_only_at_the_start_ends_with_the_same_code_on_every_way_in(
    tmp_path: Path, workers: int, way: tuple[str, ...]
) -> None:
    sentry = {"enabled": True, "dsn": "nonsense"}
    settings = {"server": {"workers": workers, "port": 0}, "monitoring": {"sentry": sentry}}
    (tmp_path / "refdesk.yaml").write_text(json.dumps(settings))
    ended = run_program(tmp_path, *REFDESK, "serve", *way)
    assert ended.returncode == 2
    assert "monitoring.sentry.dsn" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_folder_that_cannot_be_used_is_one_clear_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    ended = run(tmp_path, "search", "x", "--data", str(tmp_path / "file" / "data"))
    assert ended.returncode == 1
    cause, hint = ended.stderr.splitlines()
    assert cause.endswith("Not a directory")
    assert hint == "hint: run `refdesk doctor` to find the cause"


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
    renamed = run(tmp_path, "call", "search_documentation", "question=start", "limit=1")
    assert renamed.stdout == called.stdout
    wrong = run(tmp_path, "call", "search_documentation", "query=start", "max_results=lots")
    assert wrong.returncode == 1
    assert "max_results: must be an integer" in wrong.stderr
    missing = run(tmp_path, "call", "get_document", "document_id=nope")
    assert missing.returncode == 1
    assert "There is no document" in missing.stderr


def test_help_loads_nothing_heavy() -> None:
    code = "import sys, refdesk.cli as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\nprint(*sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    loaded = set(ended.stdout.split())
    assert "refdesk" in loaded
    assert not loaded & {"pydantic", "mcp", "mcp_types", "starlette", "uvicorn", "structlog", "yaml", "asyncio"}
