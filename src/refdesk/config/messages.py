"""Formats values and validation errors as single lines for users, with secrets masked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import ErrorDetails

from refdesk.config.types import MASK, Url

MAX_SHOWN_LENGTH = 80
PLAIN = re.compile(r"[\w.+*/:@~-]+")

EXPECTED = {
    "bool": "true or false",
    "finite": "a finite number",
    "float": "a number",
    "int": "a whole number",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "path": "a path",
    "string": "text",
    "tuple": "a list",
}
"""What was expected, by the first word of the pydantic error type."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One configuration problem: its source, setting and message."""

    source: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.key, self.text)))


def format_value(value: Any) -> str:
    """Format a value as in a configuration file, with secrets masked."""
    match value:
        case None:
            return "not set"
        case Url():
            return str(value)
        case SecretStr():
            return MASK
        case bool():
            return str(value).lower()
        case BaseModel():
            return _format_items((name, item) for name, item in value.__repr_args__() if item not in (None, "", (), {}))
        case Mapping():
            return _format_items(value.items())
        case tuple():
            return f"[{', '.join(map(format_value, value))}]"
        case float() if value.is_integer():
            return str(int(value))
    text = str(value)
    return text if text.isprintable() else repr(text)


def _format_items(items: Iterable[tuple[Any, Any]]) -> str:
    return f"{{{', '.join(f'{format_value(name)}: {format_value(item)}' for name, item in items)}}}"


def quoted(value: Any) -> str:
    """Format an untrusted value as one short line. Containers are described, not printed."""
    match value:
        case bool() | float():
            return str(value).lower()
        case str():
            text = value if len(value) <= MAX_SHOWN_LENGTH else f"{value[:MAX_SHOWN_LENGTH]}…"
            return text if PLAIN.fullmatch(value) else repr(text)
        case int() if value.bit_length() < 256:
            return str(value)
    return describe_kind(value)


def describe_kind(value: Any) -> str:
    """Describe the type of an untrusted value without showing it."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case str() | bytes():
            return "text"
        case int() | float():
            return "a number"
        case Mapping():
            return "a mapping"
        case Sequence():
            return "a list"
    return "something else"


def suggest(word: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """Return the closest known word, if any is close enough."""
    matches = get_close_matches(word[:MAX_SHOWN_LENGTH].lower(), known, 1, cutoff)
    return matches[0] if matches else None


def describe_unknown_key(suggested: str | None, known: Sequence[str]) -> str:
    """Return the message for an unknown key."""
    return (
        f"unknown key; did you mean {suggested}?" if suggested else f"unknown key; expected one of {', '.join(known)}"
    )


def explain(error: ErrorDetails, value: str, choices: Sequence[str]) -> str:
    """Describe a validation error in plain words. `value` is already masked."""
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            return f"{value} is less than {context['ge']}"
        case "greater_than":
            return f"{value} is not greater than {format_value(context['gt'])}"
        case "less_than_equal":
            return f"{value} is greater than {format_value(context['le'])}"
        case "value_error":
            return f"{value} is not {context['error']}"
        case "string_too_short":
            return "expected at least one character"
        case "literal_error":
            raw = error["input"]
            suggested = suggest(raw, choices, cutoff=0.7) if isinstance(raw, str) else None
            return f"{value} is not one of {', '.join(choices)}" + (f"; did you mean {suggested}?" if suggested else "")
        case "string_type" if isinstance(error["input"], int | float):
            return f"{value} is not text; put it in quotes"
    return f"{value} is not {EXPECTED.get(error['type'].partition('_')[0], 'accepted')}"
