"""Text of servers without what nobody can see: control characters, marks that turn text around, hidden letters.

They can carry orders to a model that the person who approves a tool does not see, or make one word look like another.
Values that a program reads (defaults, the names of arguments, `_meta`) are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 60
"""Levels of a definition: deeper than any real schema, and shallow enough for whoever has to read it."""

_INVISIBLE = re.compile(
    r"["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but for line feed and tab
    r"\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc"  # what joins, parts and turns text
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # the like of old scripts and of music
    r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0"  # letters that show as nothing
    r"\ufe00-\ufe0d\U000e0000-\U000e0fff"  # variants and tags; the two that choose how an emoji looks are left
    r"\ud800-\udfff"  # halves of characters, which no file can hold
    r"]"
)

_LINE_ENDS = re.compile(r"\r\n?|[\u2028\u2029]")

_TEXT_KEYS = frozenset({"title", "description"})
_DATA_KEYS = frozenset({"_meta", "icons", "default", "const", "enum", "examples"})
_NAME_MAP_KEYS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Whose members are called what the server likes: one called `default` is a schema like any other."""


class TooDeep(ValueError):
    """A definition with more levels than are taken."""

    def __init__(self) -> None:
        super().__init__(f"it has more than {MAX_DEPTH} levels")


def visible(text: str) -> tuple[str, int]:
    """The text without what cannot be seen, and how much of that there was."""
    if text.isascii() and text.isprintable():
        return text, 0
    return _INVISIBLE.subn("", _LINE_ENDS.sub("\n", text))


def clean_definition(definition: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """The definition with its titles and descriptions made visible, in its schemas too, and how much was taken out.

    The very same object where there was nothing to take out.
    """
    return _clean_object(definition, 0)


def _clean_object(value: Mapping[str, Any], depth: int, *, is_named: bool = False) -> tuple[Mapping[str, Any], int]:
    if depth > MAX_DEPTH:
        raise TooDeep
    changed: dict[str, Any] = {}
    total = 0
    for key, member in value.items():
        if is_named:
            cleaned, count = _clean_value(member, depth + 1)
        else:
            cleaned, count = _clean_keyword(key, member, depth + 1)
        total += count
        if cleaned is not member:
            changed[key] = cleaned
    return ({**value, **changed} if changed else value), total


def _clean_keyword(key: str, member: Any, depth: int) -> tuple[Any, int]:
    if isinstance(member, str):
        return visible(member) if key in _TEXT_KEYS else (member, 0)
    if key in _DATA_KEYS:
        return member, 0
    if key in _NAME_MAP_KEYS and isinstance(member, dict):
        return _clean_object(member, depth, is_named=True)
    return _clean_value(member, depth)


def _clean_value(value: Any, depth: int) -> tuple[Any, int]:
    if isinstance(value, dict):
        return _clean_object(value, depth)
    if not isinstance(value, list):
        return value, 0
    if depth > MAX_DEPTH:
        raise TooDeep
    parts = [_clean_value(part, depth + 1) for part in value]
    count = sum(found for _, found in parts)
    if all(part is before for (part, _), before in zip(parts, value, strict=True)):
        return value, count
    return [part for part, _ in parts], count
