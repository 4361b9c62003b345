"""Files for contributors that only other programs read: the CI workflow, issue forms, pre-commit hooks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.packaging.programs import ROOT, has_passed

pytestmark = pytest.mark.anyio

WORKFLOW = ROOT / ".github/workflows/test.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("github-workflows", WORKFLOW),
        ("github-issue-forms", ROOT / ".github/ISSUE_TEMPLATE/bug_report.yml"),
        ("github-issue-forms", ROOT / ".github/ISSUE_TEMPLATE/feature_request.yml"),
    ],
    ids=lambda value: Path(value).name,
)
async def test_file_matches_its_schema(schema: str, path: Path, programs: Path, tmp_path: Path) -> None:
    command = (programs / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", path)
    await has_passed(*command, home=tmp_path)


def test_workflow_runs_the_tests_on_every_supported_python() -> None:
    job = yaml.safe_load(WORKFLOW.read_text("utf-8"))["jobs"]["test"]
    classifiers = (ROOT / "pyproject.toml").read_text("utf-8")
    versions = job["strategy"]["matrix"]["python"]
    assert versions == ["3.11", "3.12", "3.13", "3.14"]
    assert all(f'"Programming Language :: Python :: {version}"' in classifiers for version in versions)
    assert job["strategy"]["matrix"]["os"] == ["ubuntu-latest", "macos-latest"]
    assert job["steps"][-1] == {"run": "scripts/test"}


async def test_pre_commit_accepts_the_hooks(tmp_path: Path) -> None:
    await has_passed(Path(sys.executable).with_name("pre-commit"), "validate-config", HOOKS, home=tmp_path)


def test_hooks_run_installed_programs() -> None:
    hooks = yaml.safe_load(HOOKS.read_text("utf-8"))["repos"][0]["hooks"]
    programs = {Path(hook["entry"].split()[0]) for hook in hooks}
    assert {program.parent for program in programs} == {Path(".venv/bin")}
    assert all(Path(sys.executable).with_name(program.name).exists() for program in programs)
