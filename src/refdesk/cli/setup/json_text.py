"""Edits one member of a JSON text, preserving comments, order, whitespace and trailing commas.

Every edit is verified with a parser before it is returned.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from refdesk.downstream.files import jsonc

_WHITESPACE_OR_COMMENTS = re.compile(r"(?:\s++|//[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*//[^\n]*")
_PLAIN = re.compile(r"[^\s,\]}/]+")

DEFAULT_INDENT = "  "
"""Indentation for a file that has no indented member."""


class EditError(Exception):
    """The text can't be edited safely; the message says why."""


@dataclass(frozen=True, slots=True)
class _Member:
    """Position of an object member: the start of its name, and the start and end of its value."""

    name: str
    start: int
    value: int
    end: int


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with the value at the path, creating missing objects on the way."""
    text = text if text.strip() else "{}\n"
    expected = _parse(text)
    open_parent(expected, path, "is not an object")[path[-1]] = value
    start, end, indent = _skip(text, 0), 0, ""
    for depth, name in enumerate(path, 1):
        members = list(_iter_members(text, start))
        existing = next((one for one in members if one.name == name), None)
        if existing is None:
            for missing in reversed(path[depth:]):
                value = {missing: value}
            return _verify(_insert_member(text, start, members, name, value, indent), expected)
        indent = _find_indent(text, existing.start, indent + DEFAULT_INDENT)
        start, end = existing.value, existing.end
    return _verify(text[:start] + _serialize(value, indent, text) + text[end:], expected)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at the path, which must exist, its line and its comma."""
    expected = _parse(text)
    del open_parent(expected, path, "is not an object")[path[-1]]
    start = _skip(text, 0)
    for name in path[:-1]:
        start = next(one.value for one in _iter_members(text, start) if one.name == name)
    members = list(_iter_members(text, start))
    index = next(number for number, one in enumerate(members) if one.name == path[-1])
    begin, end = members[index].start, members[index].end
    after = _skip(text, end)
    has_comma = text[after] == ","
    end = after + 1 if has_comma else end
    line = text.rfind("\n", 0, begin)
    if line >= 0 and not text[line:begin].strip():
        begin = line
    elif has_comma:
        end += len(text[end:]) - len(text[end:].lstrip(" "))
    changed = text[:begin] + text[end:]
    if index > 0 and not has_comma:
        # The last member was removed: drop the comma of the one before it.
        comma = _skip(changed, members[index - 1].end)
        changed = changed[:comma] + changed[comma + 1 :]
    return _verify(changed, expected)


def get_member(text: str, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    return find_value(_parse(text) if text.strip() else {}, path)


def find_value(document: Any, path: Sequence[str]) -> Any:
    """Return the value at the path of a parsed document, or None."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _parse(text: str) -> dict[str, Any]:
    try:
        found = jsonc.parse(text)
    except ValueError as error:
        raise EditError(str(error)) from None
    if not isinstance(found, dict):
        raise EditError("it is not a JSON object")
    if duplicate := next(jsonc.find_duplicate_keys(found), None):
        raise EditError(f"{duplicate[:100]} appears twice")
    return found


def open_parent(document: dict[str, Any], path: Sequence[str], problem: str) -> dict[str, Any]:
    """Return the object that holds the last name of a path, creating missing ones; raise EditError for other values."""
    for name in path[:-1]:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            raise EditError(f"{name} {problem}")
    return document


def _verify(text: str, expected: Any) -> str:
    try:
        is_right = jsonc.parse(text) == expected
    except ValueError:
        is_right = False
    if not is_right:
        raise EditError("its layout cannot be edited safely")
    return text


# Text positions


def _skip(text: str, at: int) -> int:
    """Return the position after whitespace and comments."""
    found = _WHITESPACE_OR_COMMENTS.match(text, at)
    return found.end() if found else at


def _iter_members(text: str, start: int) -> Iterator[_Member]:
    """Yield the members of the object that starts here."""
    at = _skip(text, start + 1)
    while text[at] != "}":
        name = _STRING.match(text, at)
        if name is None:
            raise EditError("its layout cannot be edited safely")
        value = _skip(text, _skip(text, name.end()) + 1)
        end = _find_end(text, value)
        yield _Member(json.loads(name[0], strict=False), at, value, end)
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _find_end(text: str, at: int) -> int:
    """Return the end of the value that starts here."""
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


def _insert_member(text: str, start: int, members: Sequence[_Member], name: str, value: Any, indent: str) -> str:
    """Append a member, on its own line unless the object is on one line."""
    if not members:
        member_indent = indent + _detect_indent(text)
        close = _find_end(text, start) - 1
        inside = text[start + 1 : close]
        content = inside.rstrip() if inside.strip() else ""
        entry = f"{json.dumps(name, ensure_ascii=False)}: {_serialize(value, member_indent, text)}"
        return f"{text[: start + 1]}{content}\n{member_indent}{entry}\n{indent}{text[close:]}"
    last = members[-1]
    after = _skip(text, last.end)
    has_comma = text[after] == ","
    end = after + 1 if has_comma else last.end
    before = text[:end] if has_comma else f"{text[:end]},"
    if "\n" not in text[start : members[0].start]:
        return f"{before} {json.dumps(name)}: {json.dumps(value)}{text[end:]}"
    member_indent = _find_indent(text, last.start, indent + _detect_indent(text))
    # A comment at the end of the line belongs to the member before it.
    rest = _REST_OF_LINE.match(text, end)
    comment = rest[0] if rest else ""
    entry = f"{json.dumps(name, ensure_ascii=False)}: {_serialize(value, member_indent, text)}" + (
        "," if has_comma else ""
    )
    return f"{before}{comment}\n{member_indent}{entry}{text[end + len(comment) :]}"


def _serialize(value: Any, indent: str, text: str) -> str:
    lines = json.dumps(value, indent=_detect_indent(text), ensure_ascii=False).splitlines()
    return f"\n{indent}".join(lines)


def _detect_indent(text: str) -> str:
    """Return the text's indentation."""
    first = re.search(r"\{[ \t]*\n([ \t]+)\S", text)
    return first[1] if first else DEFAULT_INDENT


def _find_indent(text: str, at: int, default: str) -> str:
    """Return the whitespace before a member on its line, or the default if there is other text."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before if before.strip() == "" else default
