"""Live names for shell completion, read directly from the data files.

Anything unreadable has no names. Nothing is written, and nothing slow is imported.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

MAX_VALUES = 200
"""Candidates offered. With more, the user types another letter."""

FILES = ":files"

Candidates = Iterable[tuple[str, str]]


def list_live_values(kind: str, words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the names of a kind. `words` is the command line, whose last word is being typed."""
    try:
        return list(_LISTERS[kind](words))
    except (OSError, ValueError, sqlite3.Error):
        return []


def _list_collections(words: Sequence[str]) -> Candidates:
    for name, description in _query(words, "SELECT id, description FROM collections ORDER BY id LIMIT ?", MAX_VALUES):
        yield name, " ".join(str(description or "").split())
    yield "refdesk", "Refdesk manual"


def _list_documents(words: Sequence[str]) -> Candidates:
    statement = "SELECT id FROM documents WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
    prefix = words[-1] if words else ""
    yield from ((row[0], "") for row in _query(words, statement, len(prefix), prefix, MAX_VALUES))
    yield FILES, ""


def _list_servers(words: Sequence[str]) -> Candidates:
    names = dict.fromkeys(_read_settings(words).get("mcpServers") or ())
    names |= dict.fromkeys(_read_json_object(_find_data_folder(words) / "servers.json").get("mcpServers") or ())
    return ((name, "") for name in names)


def _list_keys(words: Sequence[str]) -> Candidates:
    return (
        (str(key["name"]), "") for key in _read_json_object(_find_data_folder(words) / "keys.json").get("keys") or ()
    )


def _list_tools(words: Sequence[str]) -> Candidates:
    """List the tools from the manual, whose tool page is generated from the tools."""
    page = (_find_manual() / "reference" / "tools.md").read_text("utf-8")
    return re.findall(r"^## `(\w+)`\n\n([^.\n]*)", page, re.MULTILINE)


def _list_sources(words: Sequence[str]) -> Candidates:
    from refdesk.cli.parser.document_commands import SETS

    yield from ((name, "documentation set") for name in SETS)
    yield FILES, ""


def _make_fixed_lister(*words: str) -> Callable[[Sequence[str]], Candidates]:
    return lambda _: ((word, "") for word in words)


def _list_checks(words: Sequence[str]) -> Candidates:
    from refdesk.cli.checks.check_names import CHECKS

    return CHECKS.items()


_LISTERS: dict[str, Callable[[Sequence[str]], Candidates]] = {
    "collections": _list_collections,
    "documents": _list_documents,
    "servers": _list_servers,
    "keys": _list_keys,
    "tools": _list_tools,
    "sources": _list_sources,
    "checks": _list_checks,
    "roles": _make_fixed_lister("reader", "writer", "service", "admin"),
    "toolsets": _make_fixed_lister("docs", "r2r", "reader", "convert", "downstream"),
}


def _query(words: Sequence[str], statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Query the default tenant's database, read-only and without waiting for a writer."""
    path = _find_data_folder(words) / "tenants" / "n-default" / "knowledge.db"
    database = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.1)
    try:
        return database.execute(statement, values).fetchall()
    finally:
        database.close()


def _find_data_folder(words: Sequence[str]) -> Path:
    """Return the data folder that the command being typed would use."""
    configured = (
        _find_option(words, "--data") or os.environ.get("REFDESK_DATA") or _read_settings(words).get("data_dir")
    )
    if configured:
        return Path(str(configured)).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("refdesk", appauthor=False)


def _read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return the raw configuration file. Completing names needs no validation."""
    path = Path(_find_option(words, "--config") or os.environ.get("REFDESK_CONFIG") or "refdesk.yaml")
    if not path.is_file():
        return {}
    import yaml

    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _find_option(words: Sequence[str], option: str) -> str | None:
    for number, word in enumerate(words[:-1]):
        if word == option:
            return words[number + 1]
        if word.startswith(f"{option}="):
            return word.removeprefix(f"{option}=")
    return None


def _read_json_object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def _find_manual() -> Path:
    package = Path(__file__).parents[1]
    installed = package / "manual_pages"
    return installed if installed.is_dir() else package.parents[1] / "docs"
