"""What the suite found, read from the checks themselves: its own summary lets a scenario pass that skipped everything.

A scored scenario passes when something was really checked, nothing failed and nothing was skipped.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

WIRE_CHECK = "wire-schema-valid"
"""It goes with every scenario, so that on its own it says nothing about the scenario."""

NEED_A_SESSION = frozenset(
    {
        "tools-call-sampling",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
        "server-sse-multiple-streams",
        "resources-subscribe",
        "resources-unsubscribe",
    }
)
"""They ask the client, or tell it something later, which at their revision takes a session."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the suite, and how many scenarios its revision scores; another number means another suite."""

    name: str
    revision: str
    count: int
    excused: frozenset[str] = frozenset()


RUNS = (
    Run("2025-11-25", "2025-11-25", 30),
    Run("2025-11-25-stateless", "2025-11-25", 30, excused=NEED_A_SESSION),
    Run("2026-07-28", "2026-07-28", 37),
    Run("2025-11-25-gateway", "2025-11-25", 30),
    Run("2025-11-25-newest-gateway", "2025-11-25", 30),
    Run("2026-07-28-newest-gateway", "2026-07-28", 37),
)

_FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario with the checks that it made."""

    name: str
    scored: bool
    checks: Sequence[Mapping[str, Any]]

    def count(self, status: str) -> int:
        """How many checks ended so."""
        return Counter(check["status"] for check in self.checks)[status]

    @property
    def is_passed(self) -> bool:
        """Whether it shows that the server does what the scenario asks for."""
        shown = any(check["status"] == "SUCCESS" and check["id"] != WIRE_CHECK for check in self.checks)
        return shown and not self.count("FAILURE") and not self.count("SKIPPED")

    @property
    def row(self) -> str:
        """Its line in the table."""
        numbers = "".join(f"{self.count(status):9}" for status in ("SUCCESS", "FAILURE", "SKIPPED", "WARNING"))
        verdict = "pass" if self.is_passed else "FAIL" if self.scored else "fail"
        return f"{verdict}  {self.name:48}{numbers}  {'scored' if self.scored else '-'}"

    @property
    def remarks(self) -> Iterator[str]:
        """What there is to say of a scored scenario besides its passes."""
        for check in self.checks:
            if self.scored and check["status"] in ("FAILURE", "SKIPPED", "WARNING"):
                yield f"{check['status']}  {self.name}: {check['id']}: {check.get('errorMessage', '')}"


def read_results(folder: Path, scored: frozenset[str]) -> list[Scenario]:
    """Every scenario that was run, in the order in which it was."""
    folders = {path: _FOLDER.fullmatch(path.parent.name) for path in folder.glob("*/checks.json")}
    found = sorted((path.stat().st_mtime, match["scenario"], path) for path, match in folders.items() if match)
    return [Scenario(name, name in scored, json.loads(path.read_text("utf-8"))) for _, name, path in found]


def report(run: Run, scenarios: Sequence[Scenario], scored: frozenset[str], *, partly: bool) -> bool:
    """Print what a run found; answers whether all that counts has passed."""
    _say(f"\n{run.name}\n{'':6}{'scenario':48}{'passed':>9}{'failed':>9}{'skipped':>9}{'warnings':>9}")
    for scenario in scenarios:
        _say(scenario.row)
    for remark in (remark for scenario in scenarios for remark in scenario.remarks):
        _say(remark)
    if partly:
        return all(scenario.is_passed for scenario in scenarios if scenario.scored)
    for name in sorted(scored - {scenario.name for scenario in scenarios}):
        _say(f"FAIL  {name} was not run")
    passed = {scenario.name for scenario in scenarios if scenario.scored and scenario.is_passed}
    _say(f"{run.name}: {len(passed)} of {len(scored)} scored scenarios pass")
    return passed == scored


def main(arguments: Sequence[str] | None = None) -> int:
    """Report on every run; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.report", description=__doc__)
    parser.add_argument("requirements", type=Path, help="the folder with the suite's requirements, a file a revision")
    parser.add_argument("results", type=Path, help="the folder with the suite's results, a folder a run")
    parser.add_argument("--partly", action="store_true", help="only some scenarios were run, so none is missing")
    given = parser.parse_args(arguments)
    good, seen = True, 0
    for run in RUNS:
        required = yaml.safe_load((given.requirements / f"{run.revision}.yaml").read_text("utf-8"))["server"]
        if len(required) != run.count:
            _say(f"{run.revision} scores {len(required)} scenarios, not {run.count}: this is another suite")
            good = False
        scored = frozenset(required) - run.excused
        scenarios = read_results(given.results / run.name, scored)
        seen += len(scenarios)
        good &= report(run, scenarios, scored, partly=given.partly)
    return 0 if good and seen else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
