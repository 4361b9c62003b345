"""What the code imports is what the package declares."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]


def list_imports(source: str) -> Iterator[str]:
    """Yield the top-level packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def list_declared() -> set[str]:
    """Return the distributions that the package and its extras require."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    declared = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    return {normalize(re.split(r"[^\w.-]", requirement, maxsplit=1)[0]) for requirement in declared}


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_imported_package_is_declared() -> None:
    files = (ROOT / "src" / "refdesk").rglob("*.py")
    imported = {name for path in files for name in list_imports(path.read_text("utf-8"))}
    providers, declared = packages_distributions(), list_declared()
    undeclared = {
        name
        for name in imported - sys.stdlib_module_names - {"refdesk"}
        if declared.isdisjoint(map(normalize, providers.get(name, [name])))
    }
    assert not undeclared
