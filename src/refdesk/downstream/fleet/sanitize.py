"""Removes invisible characters from the definitions of servers. No I/O.

Invisible characters are control characters, bidirectional marks and hidden letters. They can carry instructions to a
model that the person who approves a tool doesn't see, or make one word look like another. Values that programs read
(defaults, argument names, `_meta`) are left alone.
"""

from __future__ import annotations

import re
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


class InvalidDefinition(ValueError):
    """Why a definition can't be exposed."""


def visible(text: str) -> tuple[str, int]:
    """Return the text without invisible characters, and the number removed."""
    if text.isascii() and text.isprintable():
        return text, 0
    return _INVISIBLE.subn("", _LINE_ENDS.sub("\n", text))


def remove_invisible(value: Any, depth: int = 0, key: str = "") -> tuple[Any, int]:
    """Remove invisible characters from titles and descriptions, also in schemas. Return the number removed, too.

    Returns the same object if nothing was removed. `key` is the keyword that has the value, unless it's a member with
    an arbitrary name.
    """
    if isinstance(value, str):
        return visible(value) if key in _TEXT_KEYS else (value, 0)
    if key in _DATA_KEYS or not isinstance(value, (dict, list)):
        return value, 0
    if depth > MAX_DEPTH:
        raise InvalidDefinition(f"it has more than {MAX_DEPTH} levels")
    if isinstance(value, list):
        parts = [remove_invisible(part, depth + 1) for part in value]
        is_same = all(part is before for (part, _), before in zip(parts, value, strict=True))
        return (value if is_same else [part for part, _ in parts]), sum(count for _, count in parts)
    is_named = key in _NAME_MAP_KEYS
    members = {name: remove_invisible(member, depth + 1, "" if is_named else name) for name, member in value.items()}
    changed = {name: member for name, (member, _) in members.items() if member is not value[name]}
    return ({**value, **changed} if changed else value), sum(count for _, count in members.values())
