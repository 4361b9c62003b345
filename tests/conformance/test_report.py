"""The report is not fooled by what the suite itself lets pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.report import NEED_A_SESSION, RUNS, WIRE_CHECK, main

SCENARIOS = {
    "2025-11-25": sorted(NEED_A_SESSION) + [f"scenario-{index}" for index in range(30 - len(NEED_A_SESSION))],
    "2026-07-28": [f"scenario-{index}" for index in range(37)],
}


@pytest.fixture
def requirements(tmp_path: Path) -> Path:
    folder = tmp_path / "requirements"
    folder.mkdir()
    for revision, names in SCENARIOS.items():
        (folder / f"{revision}.yaml").write_text(json.dumps({"server": names}), "utf-8")
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run in which everything that is scored passed."""
    folder = tmp_path / "results"
    for run in RUNS:
        for name in SCENARIOS[run.revision]:
            write(folder, run.name, name, *(["FAILURE"] if name in run.excused else ["SUCCESS", "INFO"]))
    return folder


def write(folder: Path, run: str, scenario: str, *statuses: str) -> Path:
    checks = [{"id": f"check-{index}", "status": status} for index, status in enumerate(statuses)]
    path = folder / run / f"server-{scenario}-2026-01-02T03-04-05-678Z" / "checks.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([*checks, {"id": WIRE_CHECK, "status": "SUCCESS"}]), "utf-8")
    return path


def exit_code(*arguments: Path | str) -> int:
    return main([str(argument) for argument in arguments])


def test_a_run_in_which_every_scored_scenario_passed_is_good(requirements: Path, results: Path) -> None:
    assert exit_code(requirements, results) == 0


@pytest.mark.parametrize(
    "statuses",
    [("SUCCESS", "FAILURE"), ("SUCCESS", "SKIPPED"), ("INFO",), ("WARNING",), ()],
    ids=["failed", "skipped", "informed only", "warned only", "nothing but the wire check"],
)
def test_a_scored_scenario_passes_only_by_a_check_that_passed(
    requirements: Path, results: Path, statuses: tuple[str, ...]
) -> None:
    write(results, "2025-11-25", "scenario-0", *statuses)
    assert exit_code(requirements, results) == 1


def test_a_warning_is_told_and_does_not_fail_the_run(
    requirements: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(results, "2025-11-25", "scenario-0", "SUCCESS", "WARNING")
    assert exit_code(requirements, results) == 0
    assert "WARNING  scenario-0: check-1" in capsys.readouterr().out


def test_a_scenario_that_is_not_scored_may_fail(requirements: Path, results: Path) -> None:
    write(results, "2025-11-25", "an-extension", "FAILURE")
    assert exit_code(requirements, results) == 0


def test_a_scored_scenario_that_was_not_run_fails_the_run(
    requirements: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(results, "2025-11-25", "scenario-0").unlink()
    assert exit_code(requirements, results) == 1
    assert "scenario-0 was not run" in capsys.readouterr().out


def test_another_number_of_scored_scenarios_is_another_suite(requirements: Path, results: Path) -> None:
    (requirements / "2025-11-25.yaml").write_text(json.dumps({"server": SCENARIOS["2025-11-25"][:-1]}), "utf-8")
    assert exit_code(requirements, results) == 1


def test_what_needs_a_session_is_excused_only_without_sessions(requirements: Path, results: Path) -> None:
    write(results, "2025-11-25", "resources-subscribe", "FAILURE")
    assert exit_code(requirements, results) == 1


def test_a_run_of_chosen_scenarios_is_judged_by_those(requirements: Path, tmp_path: Path) -> None:
    write(tmp_path / "some", "2025-11-25", "scenario-3", "SUCCESS")
    assert exit_code(requirements, tmp_path / "some", "--partly") == 0


def test_a_run_of_nothing_is_not_good(requirements: Path, tmp_path: Path) -> None:
    assert exit_code(requirements, tmp_path / "nothing", "--partly") == 1
