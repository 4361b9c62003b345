"""The Dockerfile: what a linter says, what it promises, and the check of health that it carries."""

from __future__ import annotations

import re
import runpy
import socket
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.packaging.programs import ROOT, has_passed
from tests.processes import environment, run, running_server

pytestmark = pytest.mark.anyio

SOURCE = (ROOT / "Dockerfile").read_text("utf-8")
HEALTHCHECK = ROOT / "deploy" / "docker" / "healthcheck.py"


def instructions(name: str) -> list[str]:
    """The arguments of all instructions of a kind, each on one line."""
    whole = re.sub(r"(?m)^#.*\n", "", SOURCE).replace("\\\n", " ")
    return [" ".join(rest.split()) for rest in re.findall(rf"(?m)^{name} (.+)$", whole)]


@pytest.mark.slow
async def test_a_linter_has_nothing_to_say(programs: Path, tmp_path: Path) -> None:
    said = await has_passed(programs / "hadolint", "--failure-threshold", "style", ROOT / "Dockerfile", home=tmp_path)
    assert said == ""


def test_it_ends_as_a_user_who_is_not_root_and_whose_number_is_known() -> None:
    assert instructions("USER") == ["10001:10001"]


def test_programs_are_started_without_a_shell_so_that_signals_reach_them() -> None:
    assert instructions("ENTRYPOINT") == ['["tini", "--", "refdesk"]']
    assert instructions("CMD") == ['["serve"]']


def test_it_installs_what_the_lock_file_says() -> None:
    syncs = [line for line in instructions("RUN") if "uv sync" in line]
    assert len(syncs) == 2
    assert all("--frozen --no-dev" in line for line in syncs)


def test_a_desk_that_others_can_reach_requires_keys() -> None:
    (settings,) = (line for line in instructions("ENV") if "MCP_SERVER_HOST" in line)
    assert "MCP_SERVER_HOST=0.0.0.0" in settings
    assert "MCP_AUTH_REQUIRED=true" in settings
    assert "allow-anonymous" not in SOURCE.lower()


def test_all_that_it_copies_exists_and_is_let_through() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line and line[0] != "#"]
    assert rules[0] == "*"
    let_through = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert copied
    for word in copied:
        assert (ROOT / word).exists()
        assert any(fnmatch(word, rule) for rule in let_through), f"{word} does not reach the build"


@pytest.mark.slow
async def test_the_check_of_health_tells_a_desk_that_answers_from_none(tmp_path: Path) -> None:
    async with running_server(tmp_path) as server:
        port = server.url.rpartition(":")[2]
        assert (await check_health(tmp_path, port)) == 0
    assert (await check_health(tmp_path, port)) == 1


def test_the_check_of_health_does_not_take_another_program_for_a_desk() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        told = runpy.run_path(str(HEALTHCHECK))["complaint"](silent.getsockname()[1], seconds=0.1)
    assert "timed out" in told


async def check_health(folder: Path, port: str) -> int:
    """Its exit code, started as the image does."""
    env = environment(folder, MCP_SERVER_PORT=port)
    return (await run(sys.executable, "-I", "-S", HEALTHCHECK, cwd=folder, env=env)).code
