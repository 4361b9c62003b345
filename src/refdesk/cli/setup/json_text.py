"""Changing one member of a JSON text and nothing else: comments, order, spaces and trailing commas stay as they are.

Whatever is done is checked against a parser before it is handed out, so that a text never means something unforeseen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refdesk.downstream.files import jsonc

_BETWEEN = re.compile(r"(?:\s++|//[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*//[^\n]*")
_PLAIN = re.compile(r"[^\s,\]}/]+")

STEP = "  "
"""How much deeper a member stands than what it is in, in a file that has none to go by."""


class CannotEdit(Exception):
    """The text is not laid out as it would have to be; says why."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object: where its name begins, and its value begins and ends."""

    name: str
    start: int
    value: int
    end: int


def with_member(text: str, path: Sequence[str], value: Any) -> str:
    """The text with this value at the path; objects on the way are made where they are missing."""
    if not text.strip():
        text = "{}\n"
    expected = _changed(_parsed(text), path, value)
    return _as_expected(_put(text, _root(text), path, value, ""), expected)


def without_member(text: str, path: Sequence[str]) -> str:
    """The text without the member at the path, which is there."""
    expected = _removed(_parsed(text), path)
    start = _root(text)
    for name in path[:-1]:
        start = _found(text, start, name).value
    return _as_expected(_cut(text, start, path[-1]), expected)


def member(text: str, path: Sequence[str]) -> Any:
    """What is at the path; None when there is nothing."""
    found = _parsed(text) if text.strip() else {}
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _parsed(text: str) -> Any:
    try:
        found = jsonc.parse(text)
    except ValueError as error:
        raise CannotEdit(str(error)) from None
    if not isinstance(found, dict):
        raise CannotEdit("it holds no object")
    if twice := next(jsonc.given_twice(found), None):
        raise CannotEdit(f"{twice[:100]} is given twice")
    return found


def _changed(document: dict[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return {**document, path[0]: value}
    inner = document.get(path[0], {})
    if not isinstance(inner, dict):
        raise CannotEdit(f"{path[0]} is no object")
    return {**document, path[0]: _changed(inner, path[1:], value)}


def _removed(document: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
    if len(path) == 1:
        return {name: inner for name, inner in document.items() if name != path[0]}
    return {**document, path[0]: _removed(document[path[0]], path[1:])}


def _as_expected(text: str, expected: Any) -> str:
    try:
        is_right = jsonc.parse(text) == expected
    except ValueError:
        is_right = False
    if not is_right:
        raise CannotEdit("it is laid out in a way that cannot be changed safely")
    return text


# In the text


def _root(text: str) -> int:
    return _skip(text, 0)


def _skip(text: str, at: int) -> int:
    """Past spaces and comments."""
    found = _BETWEEN.match(text, at)
    return found.end() if found else at


def _members(text: str, start: int) -> Iterator[_Member]:
    """The members of the object that begins here."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        name = _STRING.match(text, at)
        if name is None:
            raise CannotEdit("it is laid out in a way that cannot be changed safely")
        value = _skip(text, _skip(text, name.end()) + 1)
        end = _end(text, value)
        yield _Member(json.loads(name[0], strict=False), at, value, end)
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _end(text: str, at: int) -> int:
    """Where the value that begins here ends."""
    if text[at] not in "{[":
        found = (_STRING if text[at] == '"' else _PLAIN).match(text, at)
        return found.end() if found else at + 1
    depth = 0
    while True:
        if text[at] in "{[":
            depth += 1
        elif text[at] in "}]":
            depth -= 1
            if depth == 0:
                return at + 1
        string = _STRING.match(text, at)
        at = _skip(text, string.end() if string else at + 1)


def _found(text: str, start: int, name: str) -> _Member:
    return next(one for one in _members(text, start) if one.name == name)


def _put(text: str, start: int, path: Sequence[str], value: Any, indent: str) -> str:
    """The text with the value at the path below the object that begins at `start` and is indented so far."""
    members = list(_members(text, start))
    there = next((one for one in members if one.name == path[0]), None)
    if there is None:
        for name in reversed(path[1:]):
            value = {name: value}
        return _inserted(text, start, members, path[0], value, indent)
    own = _indent_of(text, there.start, indent + STEP)
    if len(path) > 1:
        return _put(text, there.value, path[1:], value, own)
    return text[: there.value] + _written(value, own, text) + text[there.end :]


def _inserted(text: str, start: int, members: Sequence[_Member], name: str, value: Any, indent: str) -> str:
    """A new last member, on a line of its own unless the object's members share one."""
    if not members:
        own = indent + _step(text)
        close = _end(text, start) - 1
        inside = text[start + 1 : close]
        kept = inside.rstrip() if inside.strip() else ""
        return f"{text[: start + 1]}{kept}\n{own}{_entry(name, value, own, text)}\n{indent}{text[close:]}"
    last = members[-1]
    after = _skip(text, last.end)
    has_comma = text[after] == ","
    end = after + 1 if has_comma else last.end
    before = text[:end] if has_comma else f"{text[:end]},"
    if "\n" not in text[start : members[0].start]:
        return f"{before} {json.dumps(name)}: {json.dumps(value)}{text[end:]}"
    own = _indent_of(text, last.start, indent + _step(text))
    # A comment at the end of the line is about the member that it stands behind.
    rest = _REST_OF_LINE.match(text, end)
    comment = rest[0] if rest else ""
    entry = _entry(name, value, own, text) + ("," if has_comma else "")
    return f"{before}{comment}\n{own}{entry}{text[end + len(comment) :]}"


def _entry(name: str, value: Any, indent: str, text: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: {_written(value, indent, text)}"


def _written(value: Any, indent: str, text: str) -> str:
    lines = json.dumps(value, indent=_step(text), ensure_ascii=False).splitlines()
    return f"\n{indent}".join(lines)


def _step(text: str) -> str:
    """How the text indents."""
    first = re.search(r"\{[ \t]*\n([ \t]+)\S", text)
    return first[1] if first else STEP


def _indent_of(text: str, at: int, otherwise: str) -> str:
    """What stands before a member on its line, where that is only space."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before if before.strip() == "" else otherwise


def _cut(text: str, start: int, name: str) -> str:
    """Without a member, its line and the comma that set it apart."""
    members = list(_members(text, start))
    index = next(number for number, one in enumerate(members) if one.name == name)
    one = members[index]
    after = _skip(text, one.end)
    has_comma = text[after] == ","
    end = after + 1 if has_comma else one.end
    begin = one.start
    line = text.rfind("\n", 0, begin)
    if line >= 0 and not text[line:begin].strip():
        begin = line
    elif has_comma:
        end += len(text[end:]) - len(text[end:].lstrip(" "))
    text = text[:begin] + text[end:]
    if has_comma or index == 0:
        return text
    # It was the last one: the one before it needs no comma any more.
    previous = _skip(text, members[index - 1].end)
    return text[:previous] + text[previous + 1 :]
