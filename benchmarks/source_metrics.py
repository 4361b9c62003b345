"""Measures names, lengths and duplicates in the source code.

python benchmarks/source_metrics.py [--list participles|classes|modules|private]
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "refdesk"

VERBS_IN_ED = {"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed", "succeed"}
IRREGULAR = {
    "asleep", "begun", "bound", "brought", "built", "caught", "chosen", "come", "cut", "done", "drawn", "fed", "fell",
    "felt", "flown", "found", "given", "gone", "grown", "heard", "held", "kept", "known", "left", "lost", "made",
    "meant", "met", "paid", "put", "said", "seen", "sent", "shown", "sought", "spelt", "spoken", "spent", "stood",
    "taken", "thought", "told", "torn", "understood", "woken", "worn", "written",
}  # fmt: skip
AMBIGUOUS = {"cut", "found", "put"}
"""Participles that are verbs, too. Only `found` is counted: no function here founds anything."""

PRIVATE_USERS = {"inbound/uvicorn_protocol.py"}
"""Modules that use private names of a dependency, for a reason that their docstrings give."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_modules() -> dict[Path, ast.Module]:
    """Parse every module of the package."""
    return {path: ast.parse(path.read_text("utf-8")) for path in sorted(SOURCE.rglob("*.py"))}


def find_functions(tree: ast.Module) -> Iterator[Function]:
    """Yield all functions and methods, nested ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def is_participle(name: str) -> bool:
    """Whether a function's name starts with a participle, as in `_kept` or `looked_at`."""
    word = name.strip("_").partition("_")[0]
    if word in IRREGULAR:
        return word not in AMBIGUOUS or word == "found"
    return word.endswith("ed") and word not in VERBS_IN_ED


def find_private_definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the private names that a module defines: functions, classes, attributes, variables and parameters."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name


def list_private_uses(path: Path, tree: ast.Module, ours: set[str]) -> list[str]:
    """List private modules, names and attributes that a module uses and that Refdesk doesn't define itself.

    An override of a private method is defined by Refdesk, but its call on the imported base class is listed.
    """
    found: list[tuple[int, str]] = []
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("refdesk")
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), level=0, lineno=line) if not module.startswith("refdesk"):
                names = [*module.split("."), *(alias.name for alias in node.names)]
                found += [(line, f"{module} {name}") for name in names if is_private(name)]
            case ast.Attribute(value=owner, attr=name, lineno=line) if is_private(name):
                if name not in ours or (isinstance(owner, ast.Name) and owner.id in imported):
                    found.append((line, ast.unparse(node)))
    return [f"{path.relative_to(ROOT)}:{line} {what}" for line, what in sorted(found)]


def is_private(name: str) -> bool:
    """Whether a name is private by convention.

    `os._exit`, `sys._getframe` and `_type_` of ctypes are documented all the same.
    """
    return name.startswith("_") and not name.startswith("__") and name not in {"_exit", "_getframe", "_type_"}


def measure() -> dict[str, list[str]]:
    """Collect what the table counts, by the name of its list."""
    modules = read_modules()
    functions = [(path, function) for path, tree in modules.items() for function in find_functions(tree)]
    classes: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(str(path.relative_to(SOURCE)))
    stems: defaultdict[str, list[str]] = defaultdict(list)
    for path in modules:
        if not path.stem.startswith("__"):
            stems[path.stem].append(str(path.relative_to(SOURCE)))
    ours = {name for tree in modules.values() for name in find_private_definitions(tree)}
    return {
        "functions": [f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}" for path, node in functions],
        "participles": [
            f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
            for path, node in functions
            if is_participle(node.name)
        ],
        "classes": [f"{name}: {', '.join(paths)}" for name, paths in classes.items() if len(paths) > 1],
        "modules": [f"{name}: {', '.join(paths)}" for name, paths in stems.items() if len(paths) > 1],
        "private": [
            use
            for path, tree in modules.items()
            if str(path.relative_to(SOURCE)) not in PRIVATE_USERS
            for use in list_private_uses(path, tree, ours)
        ],
    }


def print_table(found: dict[str, list[str]]) -> None:
    """Print one line per measure."""
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1 for tree in read_modules().values() for node in find_functions(tree)
    )
    texts = [path.read_text("utf-8").splitlines() for path in SOURCE.rglob("*.py")]
    lines = sum(map(len, texts))
    kinds = Counter("comment" if line.lstrip().startswith("#") else "other" for text in texts for line in text)
    share = len(found["participles"]) / len(found["functions"])
    words = sum(len(path.read_text("utf-8").split()) for path in (ROOT / "docs").rglob("*.md"))
    p90 = lengths[len(lengths) * 9 // 10]
    print(f"functions                                   {len(lengths):>8,}")
    print(f"function lines, median / p90 / max          {statistics.median(lengths):.0f} / {p90} / {lengths[-1]}")
    print(f"functions named by a participle             {share:>8.1%}")
    print(f"public class names defined more than once   {len(found['classes']):>8}")
    print(f"module names used more than once            {len(found['modules']):>8}")
    print(f"private names of dependencies used          {len(found['private']):>8}")
    print(f"comment lines                               {kinds['comment'] / lines:>8.1%}")
    print(f"lines of Python in src                      {lines:>8,}")
    print(f"words in docs                               {words:>8,}")


def main() -> None:
    """Print the table, or the list behind one of its lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=["participles", "classes", "modules", "private"])
    found = measure()
    wanted = parser.parse_args().list
    if wanted is None:
        print_table(found)
    else:
        print("\n".join(found[wanted]))


if __name__ == "__main__":
    main()
