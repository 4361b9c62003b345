"""Removal of invisible characters from server text: control characters, bidirectional marks, hidden letters.

They can carry instructions to a model that the person who approves a tool doesn't see, or make one word look like
another. Values that programs read (defaults, argument names, `_meta`) are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 60
"""Nesting levels of a definition: deeper than any real schema, and safe for recursive readers."""

_INVISIBLE = re.compile(
    r"["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls except line feed and tab
    r"\xad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc"  # joiners and bidirectional marks
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # the same for historic scripts and music
    r"\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0"  # blank letters
    r"\ufe00-\ufe0d\U000e0000-\U000e0fff"  # variation selectors and tags, except the two for emoji
    r"\ud800-\udfff"  # surrogates, which can't be encoded
    r"]"
)

_LINE_ENDS = re.compile(r"\r\n?|[\u2028\u2029]")

_TEXT_KEYS = frozenset({"title", "description"})
_DATA_KEYS = frozenset({"_meta", "icons", "default", "const", "enum", "examples"})
_NAME_MAP_KEYS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keys whose members have arbitrary names: one named `default` is a schema like any other."""


class TooDeep(ValueError):
    """A definition with too many nesting levels."""

    def __init__(self) -> None:
        super().__init__(f"it has more than {MAX_DEPTH} levels")


def visible(text: str) -> tuple[str, int]:
    """Return the text without invisible characters, and the number removed."""
    if text.isascii() and text.isprintable():
        return text, 0
    return _INVISIBLE.subn("", _LINE_ENDS.sub("\n", text))


def clean_definition(definition: Mapping[str, Any]) -> tuple[Mapping[str, Any], int]:
    """Remove invisible characters from titles and descriptions, also in schemas. Return the number removed, too.

    Returns the same object if nothing was removed.
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
