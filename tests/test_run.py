"""The runner behind `scripts/test`: what it counts, what it prints, and that a failure of any kind fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run import GROUPS, NOT_QUICK, PYTEST, QUICK_FIRST, ROOT, Job, list_jobs, run_jobs

pytestmark = pytest.mark.anyio

SUITE = """
import pytest

def test_passes(): pass

@pytest.mark.parametrize("number", [1, 2])
def test_is_skipped(number): pytest.skip("wget is not installed (package wget)")

@pytest.mark.xfail(reason="known bug")
def test_is_expected_to_fail(): assert False
"""


def make_job(folder: Path, more: str = "") -> Job:
    """Return a job that runs a small suite of its own."""
    suite, report = folder / "test_suite.py", folder / "report.xml"
    suite.write_text(SUITE + more, "utf-8")
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:randomly"]
    options = ["-c", os.devnull, f"--rootdir={folder}", *plugins, f"--junitxml={report}"]
    return Job("suite", [*PYTEST, str(suite), *options], report)


async def test_table_counts_tests_and_skips_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_jobs([make_job(tmp_path), Job("lint", [sys.executable, "-c", ""])]) == 0
    printed = capsys.readouterr().out
    table = [line.split() for line in printed[printed.index("group ") :].splitlines()]
    assert table[1][:4] == ["suite", "1", "0", "3"]
    assert table[2][:2] == ["lint", "ok"]
    assert "      2  wget is not installed (package wget)\n" in printed
    assert "      1  expected to fail: known bug\n" in printed
    assert printed.endswith("\n1 passed, 0 failed, 3 skipped\n")


@pytest.mark.parametrize(
    "fault",
    [
        "def test_fails(): assert 1 == 2",
        "@pytest.fixture\ndef broken(): raise OSError\n\ndef test_errors(broken): pass",
        "@pytest.fixture\ndef broken():\n    yield\n    raise OSError\n\ndef test_errors_late(broken): pass",
        "import no_such_module",
        "import os; os._exit(0)",
    ],
)
async def test_failure_fails_the_run(fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_jobs([make_job(tmp_path, fault)]) == 1
    assert ", 1 failed, " in capsys.readouterr().out


async def test_failed_check_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert await run_jobs([Job("lint", [sys.executable, "-c", "print('too long'); exit(1)"])]) == 1
    printed = capsys.readouterr().out
    assert "too long" in printed
    assert "lint          FAILED" in printed


def test_every_folder_of_tests_runs_once(tmp_path: Path) -> None:
    named = [f"tests/{folder}" for group in GROUPS.values() for folder in group]
    assert len(named) == len(set(named))
    assert all((ROOT / folder).is_dir() for folder in named)
    rest = next(job for job in list_jobs(tmp_path) if job.name == "rest")
    ignored = {argument.removeprefix("--ignore=") for argument in rest.command if argument.startswith("--ignore=")}
    assert ignored == set(named)


def test_quick_run_tests_each_remaining_folder_once(tmp_path: Path) -> None:
    first, second = (job for job in list_jobs(tmp_path, quick=True) if job.name.startswith("quick"))
    folders = {argument for argument in first.command if argument.startswith("tests/")}
    assert folders == {f"tests/{folder}" for folder in QUICK_FIRST}
    ignored = {argument.removeprefix("--ignore=") for argument in second.command if argument.startswith("--ignore=")}
    assert ignored == folders | {f"tests/{path}" for path in NOT_QUICK}
    assert all((ROOT / path).exists() for path in ignored)


def test_missing_programs_are_listed_where_they_cannot_be_installed(tmp_path: Path) -> None:
    (tmp_path / "bash").symlink_to("/bin/bash")
    command = [str(ROOT / "scripts/system-packages"), "no-such-program"]
    ended = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "not installed: no-such-program" in ended.stderr
