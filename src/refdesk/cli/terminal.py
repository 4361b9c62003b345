"""Terminal output: sanitizing of untrusted text, styles, highlighting, tables, and a progress bar."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, TextIO

RESET = "\x1b[0m"

_CONTROL_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and characters that change the text direction."""

BAR_WIDTH = 24
"""Characters of a progress bar itself."""


@dataclass(frozen=True, slots=True)
class TerminalStyle:
    """Bold, faint and coloured text, if the output is a terminal that supports it."""

    is_enabled: bool

    def _wrap(self, code: str, text: str) -> str:
        return f"{code}{text}{RESET}" if self.is_enabled and text else text

    bold = partialmethod(_wrap, "\x1b[1m")
    faint = partialmethod(_wrap, "\x1b[2m")
    red = partialmethod(_wrap, "\x1b[31m")
    green = partialmethod(_wrap, "\x1b[32m")
    yellow = partialmethod(_wrap, "\x1b[33m")

    def highlight(self, text: str, query: str) -> str:
        """Return the text with the words in bold that match the query in the full-text index."""
        if not self.is_enabled:
            return text
        from refdesk.engines.analyzer import extract_index_terms, is_stop_word

        terms = {term for term in extract_index_terms(query) if not is_stop_word(term)}

        def mark(word: re.Match[str]) -> str:
            return word[0] if terms.isdisjoint(extract_index_terms(word[0])) else self.bold(word[0])

        return re.sub(r"\w+", mark, text)


def detect_style(stream: TextIO, environ: Mapping[str, str] | None = None) -> TerminalStyle:
    """Return the style for a stream. NO_COLOR wins over FORCE_COLOR, which wins over terminal detection."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return TerminalStyle(False)
    return TerminalStyle(bool(environ.get("FORCE_COLOR")) or (stream.isatty() and environ.get("TERM") != "dumb"))


def sanitize(text: str) -> str:
    """Remove control characters from untrusted text, except newlines and tabs."""
    return _CONTROL_CHARACTERS.sub("", text)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table with columns as wide as their content. The last column isn't padded."""
    table = [head, *(tuple(" ".join(sanitize(cell).split()) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    style = detect_style(sys.stdout)
    for number, row in enumerate(table):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        line = "  ".join([*cells, row[-1]]).rstrip()
        print(style.bold(line) if number == 0 else line)


def print_json(value: Any) -> None:
    """Print a value as JSON to standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_result(value: Any, text: str, as_json: bool) -> None:
    """Print a value as JSON, or the text that stands for it."""
    if as_json:
        print_json(value)
    else:
        print(text)


def confirm(question: str, stream: TextIO) -> bool:
    """Ask the user at the terminal and return whether they agree."""
    print(f"{question} [y/N] ", end="", flush=True, file=stream)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def print_message(text: str) -> None:
    """Print a message to standard error."""
    print(f"refdesk: {sanitize(text)}", file=sys.stderr)


class ProgressBar:
    """Progress of a batch on standard error, including partial progress of its items.

    It prints nothing if that isn't a terminal.
    """

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._is_enabled = self._stream.isatty()
        self._done = 0
        self._parts: dict[str, float] = {}

    def advance(self, name: str, fraction: float, activity: str) -> None:
        """Set the progress of one item, from 0 to 1."""
        self._parts[name] = min(max(fraction, 0.0), 1.0)
        self.update(self._done, self._sum_up(), f"{name}: {activity}" if activity else name)

    def finish(self, name: str) -> None:
        """Count one item as done, whether it succeeded or failed."""
        self._parts.pop(name, None)
        self._done += 1
        self.update(self._done, self._sum_up(), name)

    def _sum_up(self) -> float:
        return (self._done + sum(self._parts.values())) / max(self._total, 1)

    def update(self, done: int, fraction: float, activity: str) -> None:
        """Set the number of finished items and the overall fraction directly."""
        self._done = done
        if not self._is_enabled:
            return
        filled = round(BAR_WIDTH * min(max(fraction, 0.0), 1.0))
        line = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {done}/{self._total} {activity}"
        width = shutil.get_terminal_size().columns - 1
        self._stream.write("\r\x1b[K" + "".join(c for c in line if c.isprintable())[:width])
        self._stream.flush()

    def clear(self) -> None:
        """Erase the bar's line."""
        if self._is_enabled:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
