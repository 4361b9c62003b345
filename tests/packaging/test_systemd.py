"""The unit for systemd: systemd takes it, finds it safe, and the walls around conversions can still be raised in it."""

from __future__ import annotations

import re
import shutil
from configparser import ConfigParser
from pathlib import Path

import pytest

from refdesk.config.loading import load
from tests.packaging.programs import ROOT, has_passed
from tests.processes import environment, run
from tests.programs import find_program

pytestmark = pytest.mark.anyio

FOLDER = ROOT / "deploy" / "systemd"
SOURCE = (FOLDER / "refdesk.service").read_text("utf-8")

HIGHEST_EXPOSURE = 25
"""In tenths. systemd calls everything below 5.0 fit; without the hardening this unit would have 9.2."""

NEEDED = (
    "prctl seccomp unshare prlimit64 setpriority clone clone3 execve "
    "landlock_create_ruleset landlock_add_rule landlock_restrict_self"
).split()
"""The calls by which a process that converts files walls itself in, and those that start it."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """The unit with a program that is on this machine, as systemd looks whether it is there."""
    made = tmp_path / "refdesk.service"
    program = shutil.which("true") or "/bin/true"
    made.write_text(SOURCE.replace("/opt/refdesk/bin/refdesk", program))
    return made


@pytest.fixture
def analyze() -> str:
    return find_program("systemd-analyze")


def setting(name: str) -> list[str]:
    """All values of a setting, in their order."""
    return [value.strip() for value in re.findall(rf"(?m)^{name}=(.*)$", SOURCE)]


async def test_systemd_has_no_complaint(analyze: str, unit: Path, tmp_path: Path) -> None:
    ended = await run(analyze, "verify", "--man=no", unit, cwd=tmp_path, env=environment(tmp_path))
    assert (ended.code, [line for line in ended.err.splitlines() if unit.name in line]) == (0, [])


async def test_systemd_finds_it_safe(analyze: str, unit: Path, tmp_path: Path) -> None:
    command = ("security", "--no-pager", "--offline=true", f"--threshold={HIGHEST_EXPOSURE}", unit)
    assert "Overall exposure level" in await has_passed(analyze, *command, home=tmp_path)


async def test_the_calls_that_conversions_wall_themselves_in_with_are_let_through(analyze: str, tmp_path: Path) -> None:
    allowed: set[str] = set()
    for name in " ".join(setting("SystemCallFilter")).split():
        allowed |= await _expanded(analyze, name, tmp_path) if name.startswith("@") else {name}
    assert [name for name in NEEDED if name not in allowed] == []


async def _expanded(analyze: str, name: str, home: Path) -> set[str]:
    """The calls of a set, with those of the sets inside of it."""
    listed = (await has_passed(analyze, "--no-pager", "syscall-filter", name, home=home)).splitlines()
    words = {line.strip() for line in listed[1:] if not line.strip().startswith("#")}
    calls = {word for word in words if word and not word.startswith("@")}
    for inner in words:
        if inner.startswith("@"):
            calls |= await _expanded(analyze, inner, home)
    return calls


def test_conversions_may_leave_the_network_behind() -> None:
    assert setting("RestrictNamespaces") == ["user net"]


def test_only_the_folders_of_the_service_can_be_written() -> None:
    assert setting("ProtectSystem") == ["strict"]
    assert setting("ReadWritePaths") == []
    assert setting("StateDirectory") + setting("CacheDirectory") == ["refdesk", "refdesk"]


def test_it_has_more_time_to_stop_than_the_server_takes() -> None:
    grace = load(None, {}, {}).server.shutdown_grace_seconds
    assert int(setting("TimeoutStopSec")[0]) > grace


def test_its_user_is_the_one_that_is_made_for_it() -> None:
    (user,) = setting("User")
    assert re.findall(r"(?m)^u (\w+) ", (FOLDER / "refdesk.sysusers").read_text("utf-8")) == [user]


def test_its_example_of_an_environment_is_a_configuration_that_a_desk_takes() -> None:
    for text in (source := (FOLDER / "refdesk.env").read_text("utf-8"), re.sub(r"(?m)^#(?=[A-Z]\w+=)", "", source)):
        parser = ConfigParser()
        parser.optionxform = str  # type: ignore[assignment, method-assign]  # names keep their case
        parser.read_string(f"[all]\n{text}")
        given = dict(parser["all"])
        loaded = load(None, {**given, "MCP_API_KEY": "0123456789abcdef0123456789abcdef"})
        assert loaded.server.port == 8001
