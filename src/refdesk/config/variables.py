"""Variable expansion: `${VAR}` in any setting, and other clients' placeholder syntax in MCP servers.

The environment is passed in as an argument. Expanded values are not expanded again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VARIABLE = re.compile(r"\$(?P<escape>\$?)\{(?P<name>\w*)(?P<default>:-)?(?P<rest>[^}]*)\}", re.ASCII)

INVALID_NAME = "${…} must contain the name of an environment variable; write $${ for a literal ${"

SERVER_VARIABLE = re.compile(r"\$(?P<escape>\$?)\{(?P<inside>[^{}]*)\}|\{(?P<bare>[A-Z_][A-Z0-9_]*)\}", re.ASCII)
"""A bare `{NAME}` matches only if nothing else is inside the braces, so that JSON in an argument is left alone."""

_REFERENCE = re.compile(r"(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<text>.*))?", re.ASCII | re.DOTALL)

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|AUTH|CREDENTIAL|COOKIE|DSN|BEARER|(?:^|_)PAT(?:$|_)", re.I)


def is_secret_name(name: str) -> bool:
    """Whether a variable, option or header of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None


def expand(text: str, environ: Mapping[str, str], problems: list[str]) -> str:
    """Expand the variables in a setting's text, appending to `problems` those that can't be expanded."""

    def replace(match: re.Match[str]) -> str:
        name, rest = match["name"], match["rest"]
        if match["escape"]:
            return match[0][1:]
        if not name or name[0].isdigit() or (rest and not match["default"]):
            problems.append(INVALID_NAME)
        elif environ.get(name, "").strip():
            return environ[name]
        elif not match["default"]:
            problems.append(describe_unset(name))
        return rest

    return VARIABLE.sub(replace, text)


def describe_unset(name: str) -> str:
    """Return the problem message for an unset variable."""
    return f"environment variable {name} is not set; set it, or write ${{{name}:-default}}"


@dataclass(slots=True)
class ServerExpander:
    """Expands the texts of one MCP server, collecting problems and expanded secrets."""

    environ: Mapping[str, str]
    folder: Path
    """Value of `${workspaceFolder}`."""
    problems: list[str] = field(default_factory=list)
    secrets: set[str] = field(default_factory=set)

    def __call__(self, text: str) -> str:
        return SERVER_VARIABLE.sub(self._replace, text)

    def _replace(self, match: re.Match[str]) -> str:
        if match["bare"]:
            return self._look_up(match["bare"]) or match[0]
        if match["escape"]:
            return match[0][1:]
        inside = match["inside"].strip()
        expanded = self._expand_predefined(inside) or self._expand_variable(inside)
        return match[0] if expanded is None else expanded

    def _expand_predefined(self, inside: str) -> str:
        """Return the value of a predefined editor variable; empty if it is none."""
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

    def _expand_variable(self, inside: str) -> str | None:
        """Return the variable's value or default; None, with a recorded problem, if it can't be expanded."""
        reference = _REFERENCE.fullmatch(inside)
        if inside.startswith("input:"):
            prompt = inside.removeprefix("input:")[:60]
            self.problems.append(f"cannot prompt for {prompt!r}; write ${{NAME}} and set that variable")
            return None
        if reference is None:
            self.problems.append(INVALID_NAME)
            return None
        value = self._look_up(reference["name"]) or reference["text"]
        if value is None:
            self.problems.append(describe_unset(reference["name"]))
        return value

    def _look_up(self, name: str) -> str:
        value = self.environ.get(name, "")
        if not value.strip():
            return ""
        if is_secret_name(name):
            self.secrets.add(value)
        return value


def map_strings(value: Any, change: Callable[[str], str], max_depth: int) -> Any:
    """Return the value with `change` applied to every string in it, down to a maximum depth."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple) and max_depth:
        return [map_strings(item, change, max_depth - 1) for item in value]
    if isinstance(value, Mapping) and max_depth:
        return {name: map_strings(item, change, max_depth - 1) for name, item in value.items()}
    return value
