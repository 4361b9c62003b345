"""Changing one table of a TOML text and nothing else. Checked against a parser before it is handed out."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.cli.setup.json_text import CannotEdit

_HEADER = re.compile(r"^[ \t]*\[{1,2}([^\]\n]+)\]{1,2}[ \t]*(?:#.*)?$", re.MULTILINE)


def with_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """The text with this table, in the place of one that is there, or at the end."""
    expected = _changed(_parsed(text), path, dict(values))
    written = _written(path, values)
    if spans := _spans(text, path):
        for begin, end in reversed(spans[1:]):
            text = text[:begin] + text[end:]
        begin, end = spans[0]
        after = text[end:]
        text = text[:begin] + written + ("\n" if after.strip() else "") + after
    else:
        lead = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        text = f"{text}{lead}{written}"
    return _as_expected(text, expected)


def without_table(text: str, path: Sequence[str]) -> str:
    """The text without this table, which is there."""
    expected = _removed(_parsed(text), path)
    for begin, end in reversed(_spans(text, path)):
        text = text[:begin] + text[end:]
    return _as_expected(text.rstrip("\n") + "\n" if text.strip() else "", expected)


def table(text: str, path: Sequence[str]) -> Any:
    """What is at the path; None when there is nothing."""
    found: Any = _parsed(text)
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CannotEdit(f"not valid TOML: {error}") from None


def _changed(document: dict[str, Any], path: Sequence[str], values: dict[str, Any]) -> dict[str, Any]:
    if not path:
        return values
    inner = document.get(path[0], {})
    if not isinstance(inner, dict):
        raise CannotEdit(f"{path[0]} is no table")
    return {**document, path[0]: _changed(inner, path[1:], values)}


def _removed(document: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    inner = {name: value for name, value in document.items() if name != path[0]}
    rest = _removed(document[path[0]], path[1:]) if len(path) > 1 else {}
    # A table that only held this one is there no longer, once nothing names it.
    return {**document, path[0]: rest} if rest else inner


def _as_expected(text: str, expected: Mapping[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {}
    if _without_empty(found) != _without_empty(expected):
        raise CannotEdit("it is laid out in a way that cannot be changed safely")
    return text


def _without_empty(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: inner for name, inner in value.items() if inner != {}}


def _spans(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Where the table and those below it are: from each header to the next one, less the comments that lead that in."""
    headers = list(_HEADER.finditer(text))
    spans = []
    for number, header in enumerate(headers):
        if _words(header[1])[: len(path)] == list(path):
            end = headers[number + 1].start() if number + 1 < len(headers) else len(text)
            if number + 1 < len(headers):
                end -= len(_leading(text[header.end() : end]))
            spans.append((header.start(), end))
    return spans


def _leading(between: str) -> str:
    """The comment lines right before the next header, which are about that one."""
    lines = between.splitlines(keepends=True)
    count = 0
    while count < len(lines) and lines[-1 - count].lstrip().startswith("#"):
        count += 1
    return "".join(lines[len(lines) - count :])


def _words(header: str) -> list[str]:
    """The names in a header; none when it cannot be read, which only means that it is not ours."""
    try:
        found: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return []
    words = []
    while found:
        ((name, found),) = found.items()
        words.append(name)
    return words


def _written(path: Sequence[str], values: Mapping[str, Any]) -> str:
    header = ".".join(name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name) for name in path)
    # Of texts and lists of texts, JSON is TOML.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join([f"[{header}]", *lines, ""])
