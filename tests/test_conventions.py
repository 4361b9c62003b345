"""Conventions of CONTRIBUTING that no linter checks: names, and tests that don't patch the code they test."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import source_metrics

ROOT = Path(__file__).parents[1]


def find_patches(source: str) -> Iterator[int]:
    """Yield the lines where `monkeypatch.setattr` replaces something that belongs to Refdesk."""
    if "monkeypatch.setattr" not in source:
        return
    tree = ast.parse(source)
    ours = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (node.module or "" if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0] == "refdesk"
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("monkeypatch"), attr="setattr"), args=[target, *_]):
                names = {name.id for name in ast.walk(target) if isinstance(name, ast.Name)}
                is_text = isinstance(target, ast.Constant) and str(target.value).startswith("refdesk.")
                if is_text or names & ours:
                    yield node.lineno


@pytest.mark.parametrize(
    "patch",
    [
        "monkeypatch.setattr('refdesk.cache.LIMIT', 1)",
        "from refdesk import cache\nmonkeypatch.setattr(cache, 'LIMIT', 1)",
        "import refdesk.cache\nmonkeypatch.setattr(refdesk.cache, 'LIMIT', 1)",
        "from refdesk.cache import redis as store\nmonkeypatch.setattr(store.Store, 'get', None)",
    ],
)
def test_a_patch_of_our_own_code_is_found(patch: str) -> None:
    assert list(find_patches(patch))


def test_a_patch_of_the_interpreter_is_allowed() -> None:
    assert not list(find_patches("import sys\nmonkeypatch.setattr(sys, 'platform', 'darwin')"))


def test_tests_do_not_patch_our_own_code() -> None:
    """What a test has to vary is an argument of the code; only the interpreter and the system may be patched."""
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if "files" not in path.relative_to(ROOT).parts
        for line in find_patches(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.fixture(scope="module")
def metrics() -> dict[str, list[str]]:
    return source_metrics.measure()


def test_functions_are_not_named_by_participles(metrics: dict[str, list[str]]) -> None:
    assert len(metrics["participles"]) < 0.02 * len(metrics["functions"]), metrics["participles"]


def test_public_names_are_distinct(metrics: dict[str, list[str]]) -> None:
    assert len(metrics["classes"]) <= 5, metrics["classes"]
    assert len(metrics["modules"]) <= 15, metrics["modules"]


def test_private_names_of_dependencies_are_used_only_for_a_reason(metrics: dict[str, list[str]]) -> None:
    assert metrics["private"] == []
