"""Edits one table of a TOML text, preserving the rest. Every edit is verified with a parser."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from refdesk.cli.setup.json_text import EditError, find_value, open_parent

_HEADER = re.compile(r"^[ \t]*\[{1,2}([^\]\n]+)\]{1,2}[ \t]*(?:#.*)?$", re.MULTILINE)


def set_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return the text with the table, replacing an existing one or appended at the end."""
    expected = _parse(text)
    open_parent(expected, path, "is no table")[path[-1]] = dict(values)
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
    expected = _parse(text)
    del open_parent(expected, path, "is no table")[path[-1]]
    for begin, end in reversed(_find_spans(text, path)):
        text = text[:begin] + text[end:]
    return _verify(text.rstrip("\n") + "\n" if text.strip() else "", expected)


def get_table(text: str, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    return find_value(_parse(text), path)


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EditError(f"not valid TOML: {error}") from None


def _verify(text: str, expected: Mapping[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {}
    # A parent table that held only this one disappears with it.
    if any(found.get(name, {}) != expected.get(name, {}) for name in (*found, *expected)):
        raise EditError("it is laid out in a way that cannot be changed safely")
    return text


def _find_spans(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans of a table and its subtables, without the comments that lead in the next header."""
    headers = list(_HEADER.finditer(text))
    spans = []
    for header, following in zip_longest(headers, headers[1:]):
        if _parse_header(header[1])[: len(path)] == list(path):
            end = following.start() if following else len(text)
            lines = text[header.end() : end].splitlines(keepends=True)
            while following and lines and lines[-1].lstrip().startswith("#"):
                end -= len(lines.pop())
            spans.append((header.start(), end))
    return spans


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
