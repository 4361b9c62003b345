"""The compatibility page: its rows are complete, their tests exist, and no public name is missing."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from refdesk.client import ERRORS, map_error
from refdesk.config.environment import ENVIRONMENT
from refdesk.errors import CannotFetch, CannotOpen, ServerLacks
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/reference/compatibility.md").read_text("utf-8")
HEADER = ["Promise", "Here", "Test"]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("|") and not line.startswith("|---")
]
PROMISES = [row for row in ROWS if row != HEADER]


def test_every_system_has_a_table() -> None:
    sections = PAGE.split("\n## ")[1:]
    assert len(sections) == ROWS.count(HEADER) == 5
    assert "✘" not in PAGE
    assert len({row[0] for row in PROMISES}) > 150


@pytest.mark.parametrize("row", PROMISES, ids=lambda row: row[0])
def test_a_promise_is_kept_or_the_reason_is_given_and_its_test_exists(row: list[str]) -> None:
    promise, here, test = row
    assert promise
    assert here.startswith("✔") or (len(here.split()) >= 5 and here.endswith(".")), here
    if test == "–":
        return
    file, _, name = test.strip("`").partition("::")
    assert name in find_tests(file), test


@cache
def find_tests(file: str) -> set[str]:
    """Return the names of the test functions in a file below `tests/`."""
    module = ast.parse((ROOT / "tests" / file).read_text("utf-8"))
    functions = (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def test_every_tool_variable_and_error_code_is_on_the_page() -> None:
    tools = re.findall(r"^## `(\w+)`$", (ROOT / "docs/reference/tools.md").read_text("utf-8"), re.MULTILINE)
    variables = [variable.name for variable in ENVIRONMENT]
    others = [map_error(kind("why")).code for kind in (CannotFetch, CannotOpen, ServerLacks)]
    codes = {entry.code for entry in ERRORS.values()} | {str(code) for code in ERRORS}
    named = set(re.findall(r"-?\w+", PAGE))
    assert len(tools) > 20
    assert {*tools, *variables, *others, *codes} <= named
