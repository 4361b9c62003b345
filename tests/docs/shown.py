"""Whether what a page shows is what a command printed: loosely in numbers, dates and what is left out, else exactly."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

LEFT_OUT = re.compile(r" ?(?:\[…\]|…)")
CHANGES = re.compile(r"doc-\w+|\b[0-9a-f]{8,}\b|[\w:+.,-]*\d[\w:+.,-]*")
"""Handles, hashes, and every word with a digit in it: counts, times, scores, ports."""


def difference(shown: str, printed: str) -> str | None:
    """The first line of the page that was not printed, or what of its JSON was not; `None` when all was."""
    try:
        wanted = json.loads(shown)
    except ValueError:
        return _missing_line(shown, printed)
    if any(fits(wanted, part) for whole in _documents(printed) for part in _parts(whole)):
        return None
    return shown


def _missing_line(shown: str, printed: str) -> str | None:
    """Lines have to come in the page's order; others may stand between them."""
    lines = iter(_plain(line) for line in printed.splitlines())
    for line in filter(None, map(_plain, shown.splitlines())):
        if LEFT_OUT.fullmatch(line):
            continue
        if not any(_pattern(line).fullmatch(candidate) for candidate in lines):
            return line
    return None


def fits(shown: Any, real: Any) -> bool:
    """Whether the real value has all that is shown of it."""
    if shown == "…":
        return True
    if isinstance(shown, dict) and isinstance(real, dict):
        return all(key in real and fits(value, real[key]) for key, value in shown.items())
    if isinstance(shown, list) and isinstance(real, list):
        rest = iter(real)
        return all(any(fits(item, candidate) for candidate in rest) for item in shown)
    if isinstance(shown, str) and isinstance(real, str):
        return _pattern(_plain(shown)).fullmatch(_plain(real)) is not None
    if isinstance(shown, bool) or isinstance(real, bool) or shown is None:
        return bool(shown is real)
    return isinstance(shown, int | float) and isinstance(real, int | float)


def _pattern(line: str) -> re.Pattern[str]:
    """The line with anything for what is left out, and any word for one that changes from run to run."""
    parts = []
    for piece in re.split(f"({LEFT_OUT.pattern}|{CHANGES.pattern})", line):
        if LEFT_OUT.fullmatch(piece):
            parts.append(".*")
        elif CHANGES.fullmatch(piece):
            parts.append(r"[\w:+.,-]+")
        else:
            parts.append(re.escape(piece))
    return re.compile("".join(parts), re.DOTALL)


def _plain(text: str) -> str:
    """With single spaces."""
    return " ".join(text.split())


def _documents(printed: str) -> Iterator[Any]:
    """Every JSON value in what was printed, other text left out."""
    decoder, place = json.JSONDecoder(), 0
    while (start := printed.find("{", place)) >= 0:
        try:
            value, place = decoder.raw_decode(printed, start)
        except ValueError:
            place = start + 1
            continue
        yield value


def _parts(value: Any) -> Iterator[Any]:
    """A value and all within it, for a page may show a part."""
    yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from _parts(item)
