"""How values and mistakes are put into words: one line each, secrets masked, no library's vocabulary.

Knows values and error types, not where they came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic_core import ErrorDetails

from refdesk.config.types import MASK, Url

LONGEST_SHOWN = 80
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
"""What was expected, by the first word of the validation error's type."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: where it was written, which setting it is, and what is wrong with it."""

    source: str
    key: str
    text: str

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.source, self.key, self.text)))


def shown(value: Any) -> str:
    """A value in the words of a configuration file, with secrets masked."""
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
            return _shown_items((name, item) for name, item in value.__repr_args__() if item not in (None, "", (), {}))
        case Mapping():
            return _shown_items(value.items())
        case tuple():
            return f"[{', '.join(map(shown, value))}]"
        case float() if value.is_integer():
            return str(int(value))
    text = str(value)
    return text if text.isprintable() else repr(text)


def _shown_items(items: Iterable[tuple[Any, Any]]) -> str:
    return f"{{{', '.join(f'{shown(name)}: {shown(item)}' for name, item in items)}}}"


def quoted(value: Any) -> str:
    """A stranger's value in one short line; containers are only named."""
    match value:
        case bool() | float():
            return str(value).lower()
        case str():
            text = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…"
            return text if PLAIN.fullmatch(value) else repr(text)
        case int() if value.bit_length() < 256:
            return str(value)
    return kind_of(value)


def kind_of(value: Any) -> str:
    """What a stranger's value is, without showing it."""
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


def suggestion(word: str, known: Sequence[str], *, cutoff: float = 0.6) -> str | None:
    """The known word nearest to this one, if any is near."""
    matches = get_close_matches(word[:LONGEST_SHOWN].lower(), known, 1, cutoff)
    return matches[0] if matches else None


def unknown(near: str | None, known: Sequence[str]) -> str:
    """What to say of a key that does not exist."""
    return f"unknown key; did you mean {near}?" if near else f"unknown key; the keys here are {', '.join(known)}"


def explain(error: ErrorDetails, value: str, choices: Sequence[str]) -> str:
    """A validation error in plain words, of a value as it may be shown."""
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            return f"{value} is below {context['ge']}"
        case "greater_than":
            return f"{value} is not above {shown(context['gt'])}"
        case "less_than_equal":
            return f"{value} is above {shown(context['le'])}"
        case "value_error":
            return f"{value} is not {context['error']}"
        case "string_too_short":
            return "expected at least one character"
        case "literal_error":
            return _no_choice(error["input"], value, choices)
        case "string_type" if isinstance(error["input"], int | float):
            return f"{value} is not text; put it in quotes"
    return f"{value} is not {EXPECTED.get(error['type'].partition('_')[0], 'accepted')}"


def _no_choice(given: Any, value: str, choices: Sequence[str]) -> str:
    near = suggestion(given, choices, cutoff=0.7) if isinstance(given, str) else None
    return f"{value} is not one of {', '.join(choices)}" + (f"; did you mean {near}?" if near else "")
