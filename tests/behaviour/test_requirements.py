"""Every promise is shown by tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.behaviour.requirements import REQUIREMENTS

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_a_promise_is_shown_by_tests_that_exist(name: str) -> None:
    for shown_by in REQUIREMENTS[name].shown_by:
        file, _, test = shown_by.partition("::")
        assert test in names_of_tests(TESTS / file), shown_by


def test_every_test_over_all_ways_in_shows_a_promise() -> None:
    shown = {test for requirement in REQUIREMENTS.values() for test in requirement.shown_by}
    file = "behaviour/test_every_way_in.py"
    assert not {f"{file}::{test}" for test in names_of_tests(TESTS / file)} - shown


def names_of_tests(file: Path) -> set[str]:
    module = ast.parse(file.read_text("utf-8"))
    return {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
