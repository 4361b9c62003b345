"""Variable expansion: `${VAR}` in any setting, and other clients' placeholder syntax in MCP servers.

The environment is passed in as an argument. Expanded values are not expanded again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
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


def expand_for_server(
    text: str, environ: Mapping[str, str], folder: Path, problems: list[str], secrets: set[str]
) -> str:
    """Expand the variables in a text of an MCP server, adding to `problems` and to the expanded `secrets`.

    `folder` is the value of `${workspaceFolder}`.
    """
    predefined = {
        "workspaceFolder": str(folder),
        "workspaceRoot": str(folder),
        "workspaceFolderBasename": folder.name,
        "userHome": os.path.expanduser("~"),
        "pathSeparator": "/",
        "/": "/",
    }

    def look_up(name: str) -> str:
        value = environ.get(name, "")
        if not value.strip():
            return ""
        if is_secret_name(name):
            secrets.add(value)
        return value

    def replace(match: re.Match[str]) -> str:
        if match["bare"]:
            return look_up(match["bare"]) or match[0]
        if match["escape"]:
            return match[0][1:]
        inside = match["inside"].strip()
        reference = _REFERENCE.fullmatch(inside)
        value = predefined.get(inside.partition(":")[0])
        if not value and inside.startswith("input:"):
            prompt = inside.removeprefix("input:")[:60]
            problems.append(f"cannot prompt for {prompt!r}; write ${{NAME}} and set that variable")
        elif not value and reference is None:
            problems.append(INVALID_NAME)
        elif not value and reference:
            value = look_up(reference["name"]) or reference["text"]
            if value is None:
                problems.append(describe_unset(reference["name"]))
        return match[0] if value is None else value

    return SERVER_VARIABLE.sub(replace, text)


def map_strings(value: Any, change: Callable[[str], str], max_depth: int) -> Any:
    """Return the value with `change` applied to every string in it, down to a maximum depth."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple) and max_depth:
        return [map_strings(item, change, max_depth - 1) for item in value]
    if isinstance(value, Mapping) and max_depth:
        return {name: map_strings(item, change, max_depth - 1) for name, item in value.items()}
    return value
