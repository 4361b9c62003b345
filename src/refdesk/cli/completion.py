"""`refdesk completion`: shell completion of commands, options, choices and live names.

The shell scripts call `refdesk __complete`, which asks click for the candidates, so they never go out of date. They
aren't click's own, which split words at `:` in bash and lose `--option=` in zsh and fish. Live names are read directly
from the data files. Anything unreadable has no names. Nothing is written, and nothing slow is imported.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from click.shell_completion import CompletionItem, ShellComplete

from refdesk.cli.parser import CHECKS, SETS, cli

FILES = ":files"
"""Marker that tells the shell script to complete file names."""

MAX_VALUES = 200
"""Candidates offered. With more, the user types another letter."""

TAKES_FILES = ("documents", "files", "sources")
"""Kinds of arguments that are or may be file names, which the shell lists."""


def completion(arguments: SimpleNamespace) -> None:
    """Run `refdesk completion`."""
    script = (Path(__file__).parent / "completions" / f"refdesk.{arguments.shell}").read_text("utf-8")
    print(json.dumps({"shell": arguments.shell, "script": script}) if arguments.json else script, end="")


def complete(words: Sequence[str]) -> None:
    """Print the candidates for the last word, one per line, each with a description after a tab."""
    for word, description in list_completions(words):
        sys.stdout.write(f"{word}\t{description}\n" if description else f"{word}\n")
    sys.stdout.flush()


def list_completions(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return the candidates for the last word. The words before it give its position in the grammar."""
    *before, incomplete = words or [""]
    option, equals, _ = incomplete.partition("=")
    prefix = f"{option}=" if equals and option.startswith("--") and "--" not in before else ""
    items = ShellComplete(cli, {}, "refdesk", "").get_completions(before, incomplete)
    return [(FILES if item.type == "file" else f"{prefix}{item.value}", item.help or "") for item in items]


def list_live_values(kind: str, arguments: SimpleNamespace, incomplete: str) -> list[CompletionItem[str]]:
    """Return the names of a kind that start with `incomplete`, for a command with these arguments so far."""
    try:
        names = _list_names(kind, arguments, incomplete)
    except (OSError, ValueError):
        names = {}
    items = [CompletionItem(name, help=about) for name, about in names.items() if name.startswith(incomplete)]
    return [*items, CompletionItem(incomplete, type="file")] if kind in TAKES_FILES else items


def _list_names(kind: str, arguments: SimpleNamespace, incomplete: str) -> Mapping[str, str]:
    """Return names with their descriptions."""
    match kind:
        case "collections":
            rows = _query(arguments, "SELECT id, description FROM collections ORDER BY id LIMIT ?", MAX_VALUES)
            return {id: " ".join(str(about or "").split()) for id, about in rows} | {"refdesk": "Refdesk manual"}
        case "documents":
            statement = "SELECT id FROM documents WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT ?"
            return {row[0]: "" for row in _query(arguments, statement, len(incomplete), incomplete, MAX_VALUES)}
        case "servers":
            stored = _read_json_object(_find_data_folder(arguments) / "servers.json")
            configured = _read_settings(arguments).get("mcpServers")
            return dict.fromkeys([*(configured or ()), *stored.get("mcpServers", ())], "")
        case "keys":
            stored = _read_json_object(_find_data_folder(arguments) / "keys.json")
            return {str(key["name"]): "" for key in stored.get("keys", ())}
        case "tools":
            from refdesk.cli.reference import read_page

            # The manual's page is generated from the tools.
            return dict(re.findall(r"^## `(\w+)`\n\n([^.\n]*)", read_page("tools"), re.MULTILINE))
        case "checks":
            return CHECKS
        case "sources":
            return dict.fromkeys(SETS, "documentation set")
        case "roles":
            return dict.fromkeys(("reader", "writer", "service", "admin"), "")
        case "toolsets":
            return dict.fromkeys(("docs", "r2r", "reader", "convert", "downstream"), "")
    return {}


def _query(arguments: SimpleNamespace, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Query the default tenant's database, read-only and without waiting for a writer."""
    import sqlite3

    path = _find_data_folder(arguments) / "tenants" / "n-default" / "knowledge.db"
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.1)) as database:
            return database.execute(statement, values).fetchall()
    except sqlite3.Error as error:
        raise OSError(f"{path} cannot be read") from error


def _find_data_folder(arguments: SimpleNamespace) -> Path:
    """Return the data folder that the command being typed would use."""
    configured = arguments.data or os.environ.get("REFDESK_DATA") or _read_settings(arguments).get("data_dir")
    if configured:
        return Path(str(configured)).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("refdesk", appauthor=False)


def _read_settings(arguments: SimpleNamespace) -> dict[str, Any]:
    """Return the raw configuration file. Completing names needs no validation."""
    path = Path(arguments.config or os.environ.get("REFDESK_CONFIG") or "refdesk.yaml")
    if not path.is_file():
        return {}
    import yaml

    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _read_json_object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}
