"""What is filled into texts of a configuration: `${VAR}` everywhere, and in MCP servers what other clients write too.

The environment is an argument; what a variable holds is never filled in again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = re.compile(r"\$(?P<escape>\$?)\{(?P<name>\w*)(?P<default>:-)?(?P<rest>[^}]*)\}", re.ASCII)

NO_NAME = "${…} must hold the name of an environment variable; write $${ for the characters ${"

IN_SERVERS = re.compile(r"\$(?P<escape>\$?)\{(?P<inside>[^{}]*)\}|\{(?P<bare>[A-Z_][A-Z0-9_]*)\}", re.ASCII)
"""A bare `{NAME}` is taken only where nothing else stands between the braces, so that JSON in an argument is left."""

_NAMED = re.compile(r"(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<text>.*))?", re.ASCII | re.DOTALL)

_CONFIDENTIAL = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|AUTH|CREDENTIAL|COOKIE|DSN|BEARER|(?:^|_)PAT(?:$|_)", re.I)


def sounds_confidential(name: str) -> bool:
    """Whether what goes by this name is probably a secret."""
    return _CONFIDENTIAL.search(name) is not None


def fill(text: str, environ: Mapping[str, str], problems: list[str]) -> str:
    """The text of a setting with its variables filled in; what cannot be is added to the problems."""

    def replacement(match: re.Match[str]) -> str:
        name, rest = match["name"], match["rest"]
        if match["escape"]:
            return match[0][1:]
        if not name or name[0].isdigit() or (rest and not match["default"]):
            problems.append(NO_NAME)
        elif environ.get(name, "").strip():
            return environ[name]
        elif not match["default"]:
            problems.append(not_set(name))
        return rest

    return VARIABLE.sub(replacement, text)


def not_set(name: str) -> str:
    """What to do about a variable without a value."""
    return f"environment variable {name} is not set; give it a value, or write ${{{name}:-default}}"


@dataclass(slots=True)
class Filling:
    """Fills the texts of one MCP server, and remembers what went wrong and which secrets went in."""

    environ: Mapping[str, str]
    folder: Path
    """What `${workspaceFolder}` stands for."""
    problems: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)

    def __call__(self, text: str) -> str:
        return IN_SERVERS.sub(self._replacement, text)

    def _replacement(self, match: re.Match[str]) -> str:
        if match["bare"]:
            return self._value_of(match["bare"]) or match[0]
        if match["escape"]:
            return match[0][1:]
        inside = match["inside"].strip()
        filled = self._place(inside) or self._variable(inside)
        return match[0] if filled is None else filled

    def _place(self, inside: str) -> str:
        """What editors fill in by themselves."""
        match inside.partition(":")[0]:
            case "workspaceFolder" | "workspaceRoot":
                return str(self.folder)
            case "workspaceFolderBasename":
                return self.folder.name
            case "userHome":
                return os.path.expanduser("~")
            case "pathSeparator" | "/":
                return "/"
        return ""

    def _variable(self, inside: str) -> str | None:
        """Its value or default; None for what cannot be filled in, and then it is among the problems."""
        named = _NAMED.fullmatch(inside)
        if inside.startswith("input:"):
            asked = inside.removeprefix("input:")[:60]
            self.problems.append(f"nobody is there to be asked for {asked!r}; write ${{NAME}} and set that variable")
            return None
        if named is None:
            self.problems.append(NO_NAME)
            return None
        value = self._value_of(named["name"]) or named["text"]
        if value is None:
            self.problems.append(not_set(named["name"]))
        return value

    def _value_of(self, name: str) -> str:
        value = self.environ.get(name, "")
        if not value.strip():
            return ""
        if sounds_confidential(name):
            self.secrets.add(value)
        return value


def map_texts(value: Any, change: Callable[[str], str], deepest: int) -> Any:
    """The value with every text in it changed, down to a depth below which nothing is meant."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple) and deepest:
        return [map_texts(item, change, deepest - 1) for item in value]
    if isinstance(value, Mapping) and deepest:
        return {name: map_texts(item, change, deepest - 1) for name, item in value.items()}
    return value
