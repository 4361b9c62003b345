"""Measures names, lengths and duplicates in the source code.

python benchmarks/code.py [--list participles|classes|modules|private]
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


def is_private_of_dependency(node: ast.AST, imported: set[str]) -> bool:
    """Whether an expression reads a private attribute of an imported name; `os._exit` is documented."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=attribute):
            return owner in imported - {"os"} and attribute.startswith("_") and not attribute.startswith("__")
    return False


def list_private_uses(path: Path, tree: ast.Module) -> list[str]:
    """List imports of private names, and private attributes of imported names, of other packages."""
    imported: set[str] = set()
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module.partition(".")[0] == "refdesk":
                continue
            private = [part for part in node.module.split(".") if part.startswith("_") and part != "__future__"]
            private += [alias.name for alias in node.names if alias.name.startswith("_")]
            found += [f"{path.relative_to(ROOT)}:{node.lineno} {node.module} {name}" for name in private]
            imported |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias for alias in node.names if not alias.name.startswith("refdesk")]
            imported |= {alias.asname or alias.name.partition(".")[0] for alias in names}
    for node in ast.walk(tree):
        if is_private_of_dependency(node, imported):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}")  # type: ignore[attr-defined]
    return found


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
    return {
        "functions": [f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}" for path, node in functions],
        "participles": [
            f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}"
            for path, node in functions
            if is_participle(node.name)
        ],
        "classes": [f"{name}: {', '.join(paths)}" for name, paths in classes.items() if len(paths) > 1],
        "modules": [f"{name}: {', '.join(paths)}" for name, paths in stems.items() if len(paths) > 1],
        "private": [use for path, tree in modules.items() for use in list_private_uses(path, tree)],
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
