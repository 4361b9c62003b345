"""Names of what there is at this moment, for a shell that completes them: read straight from the files.

Anything that cannot be read has no names. Nothing is written, and nothing heavy is imported.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

MOST = 200
"""Names that are offered; who has more types another letter."""

FILES = ":files"

Named = Iterable[tuple[str, str]]


def live_values(kind: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """The names of a kind; `words` are those of the command line, of which the last is being typed."""
    try:
        return list(_KINDS[kind](words))
    except (OSError, ValueError, sqlite3.Error):
        return []


def _collections(words: Sequence[str]) -> Named:
    for name, description in _rows(words, "SELECT id, description FROM collections ORDER BY id LIMIT ?", MOST):
        yield name, " ".join(str(description or "").split())
    yield "refdesk", "Refdesk manual"


def _documents(words: Sequence[str]) -> Named:
    asked = "SELECT id FROM documents WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
    begun = words[-1] if words else ""
    yield from ((row[0], "") for row in _rows(words, asked, len(begun), begun, MOST))
    yield FILES, ""


def _servers(words: Sequence[str]) -> Named:
    names = dict.fromkeys(_settings(words).get("mcpServers") or ())
    names |= dict.fromkeys(_object(_data(words) / "servers.json").get("mcpServers") or ())
    return ((name, "") for name in names)


def _keys(words: Sequence[str]) -> Named:
    return ((str(key["name"]), "") for key in _object(_data(words) / "keys.json").get("keys") or ())


def _tools(words: Sequence[str]) -> Named:
    """From the manual, whose page of tools is made from the tools themselves."""
    page = (_manual() / "reference" / "tools.md").read_text("utf-8")
    return re.findall(r"^## `(\w+)`\n\n([^.\n]*)", page, re.MULTILINE)


def _sources(words: Sequence[str]) -> Named:
    from refdesk.cli.parser.documents import SETS

    yield from ((name, "documentation set") for name in SETS)
    yield FILES, ""


def _words(*words: str) -> Callable[[Sequence[str]], Named]:
    return lambda _: ((word, "") for word in words)


def _checks(words: Sequence[str]) -> Named:
    from refdesk.cli.checks.names import CHECKS

    return CHECKS.items()


_KINDS: dict[str, Callable[[Sequence[str]], Named]] = {
    "collections": _collections,
    "documents": _documents,
    "servers": _servers,
    "keys": _keys,
    "tools": _tools,
    "sources": _sources,
    "checks": _checks,
    "roles": _words("reader", "writer", "service", "admin"),
    "toolsets": _words("docs", "r2r", "reader", "convert", "downstream"),
}


def _rows(words: Sequence[str], statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """From the record of the one tenant that the command line has; read only, and not waiting for a writer."""
    path = _data(words) / "tenants" / "n-default" / "knowledge.db"
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.1)
    try:
        return database.execute(statement, values).fetchall()
    finally:
        database.close()


def _data(words: Sequence[str]) -> Path:
    """The data folder, as the command that is being typed would find it."""
    named = _option(words, "--data") or os.environ.get("REFDESK_DATA") or _settings(words).get("data_dir")
    if named:
        return Path(str(named)).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("refdesk", appauthor=False)


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """The configuration file as it is written; names in it need no more."""
    path = Path(_option(words, "--config") or os.environ.get("REFDESK_CONFIG") or "refdesk.yaml")
    if not path.is_file():
        return {}
    import yaml

    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _option(words: Sequence[str], option: str) -> str | None:
    for number, word in enumerate(words[:-1]):
        if word == option:
            return words[number + 1]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def _object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _manual() -> Path:
    package = Path(__file__).parents[1]
    installed = package / "manual_pages"
    return installed if installed.is_dir() else package.parents[1] / "docs"
