"""JSON as people keep it in settings: with comments, commas before a closing bracket, and a key given twice by mistake.

Linear in the length of the text, whatever it is.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

_COMMENT = re.compile(r'"(?:[^"\\]|\\.)*+"?|//[^\n]*+|/\*.*?(?:\*/|\Z)', re.DOTALL)
"""Strings are matched as well, so that what looks like a comment in one is passed over."""

_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*+"?|,(?=\s*+[}\]])', re.DOTALL)

_NOT_NEWLINE = re.compile(r"[^\n]")


class DuplicateKeyObject(dict[str, Any]):
    """An object that had a key more than once; the last one counts, and `twice` names them."""

    duplicates: tuple[str, ...] = ()


def parse(text: str) -> Any:
    """The value; raises ValueError with the place and what is wrong there, and nothing of the text itself."""
    try:
        return _parse_strict(text)
    except ValueError:
        return _parse_strict(_TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text)))


def given_twice(value: Any) -> Iterator[str]:
    """The keys that are given more than once, each with the way to it."""
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
    """Spaces in the place of a comment, so that what is told of places stays true."""
    return match[0] if match[0].startswith('"') else _NOT_NEWLINE.sub(" ", match[0])
