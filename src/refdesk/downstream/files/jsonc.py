"""Parser for JSON with comments, trailing commas and duplicate keys. Linear in the length of the text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*+|/\*.*?(?:\*/|\Z)', re.DOTALL)
"""Strings are matched too, so that comment markers inside of them are skipped."""

_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"?|,(?=\s*+[}\]])', re.DOTALL)

_NOT_NEWLINE = re.compile(r"[^\n]")


class DuplicateKeyObject(dict[str, Any]):
    """An object with duplicate keys. The last value counts, and `duplicates` has the keys."""

    duplicates: tuple[str, ...] = ()


def parse(text: str) -> Any:
    """Parse a text. Raises ValueError with position and problem, without quoting the text."""
    try:
        return _parse_strict(text)
    except ValueError:
        return _parse_strict(blank_extensions(text))


def blank_extensions(text: str) -> str:
    """Replace comments and trailing commas by spaces, so that positions stay correct."""
    return _TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text))


def find_duplicate_keys(value: Any) -> Iterator[str]:
    """Yield the paths of all duplicate keys."""
    pending: list[tuple[str, Any]] = [("", value)]
    while pending:
        path, item = pending.pop()
        if isinstance(item, DuplicateKeyObject):
            yield from (f"{path}.{name}".lstrip(".") for name in item.duplicates)
        if isinstance(item, dict):
            pending += [(f"{path}.{name}".lstrip("."), inner) for name, inner in item.items()]
        elif isinstance(item, list):
            pending += [(f"{path}[{index}]", inner) for index, inner in enumerate(item)]


def _parse_strict(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_build_object, parse_constant=_reject_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    object_ = DuplicateKeyObject(found)
    object_.duplicates = tuple(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
    return object_


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _blank(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else _NOT_NEWLINE.sub(" ", match[0])
