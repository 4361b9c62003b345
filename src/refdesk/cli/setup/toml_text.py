"""Edits one table of a TOML text, preserving the rest. Every edit is verified with a parser."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.cli.setup.json_text import EditError

_HEADER = re.compile(r"^[ \t]*\[{1,2}([^\]\n]+)\]{1,2}[ \t]*(?:#.*)?$", re.MULTILINE)


def set_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return the text with the table, replacing an existing one or appended at the end."""
    expected = _set_value(_parse(text), path, dict(values))
    written = _serialize(path, values)
    if spans := _find_spans(text, path):
        for begin, end in reversed(spans[1:]):
            text = text[:begin] + text[end:]
        begin, end = spans[0]
        after = text[end:]
        text = text[:begin] + written + ("\n" if after.strip() else "") + after
    else:
        lead = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        text = f"{text}{lead}{written}"
    return _verify(text, expected)


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return the text without the table, which must exist."""
    expected = _remove_value(_parse(text), path)
    for begin, end in reversed(_find_spans(text, path)):
        text = text[:begin] + text[end:]
    return _verify(text.rstrip("\n") + "\n" if text.strip() else "", expected)


def get_table(text: str, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    found: Any = _parse(text)
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EditError(f"not valid TOML: {error}") from None


def _set_value(document: dict[str, Any], path: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    if not path:
        return values
    inner = document.get(path[0], {})
    if not isinstance(inner, dict):
        raise EditError(f"{path[0]} is no table")
    return {**document, path[0]: _set_value(inner, path[1:], values)}


def _remove_value(document: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    inner = {name: value for name, value in document.items() if name != path[0]}
    rest = _remove_value(document[path[0]], path[1:]) if len(path) > 1 else {}
    # A parent table that held only this one disappears with it.
    return {**document, path[0]: rest} if rest else inner


def _verify(text: str, expected: Mapping[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {}
    if _drop_empty(found) != _drop_empty(expected):
        raise EditError("it is laid out in a way that cannot be changed safely")
    return text


def _drop_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if inner != {}}


def _find_spans(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans of a table and its subtables, without the comments that lead in the next header."""
    headers = list(_HEADER.finditer(text))
    spans = []
    for number, header in enumerate(headers):
        if _parse_header(header[1])[: len(path)] == list(path):
            end = headers[number + 1].start() if number + 1 < len(headers) else len(text)
            if number + 1 < len(headers):
                end -= len(_find_leading_comments(text[header.end() : end]))
            spans.append((header.start(), end))
    return spans


def _find_leading_comments(between: str) -> str:
    """Return the comment lines directly before the next header."""
    lines = between.splitlines(keepends=True)
    count = 0
    while count < len(lines) and lines[-1 - count].lstrip().startswith("#"):
        count += 1
    return "".join(lines[len(lines) - count :])


def _parse_header(header: str) -> list[str]:
    """Return the names in a header; empty if it can't be parsed, and so isn't ours."""
    try:
        found: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return []
    names = []
    while found:
        ((name, found),) = found.items()
        names.append(name)
    return names


def _serialize(path: Sequence[str], values: Mapping[str, Any]) -> str:
    header = ".".join(name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name) for name in path)
    # JSON strings and lists of strings are valid TOML.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join([f"[{header}]", *lines, ""])
