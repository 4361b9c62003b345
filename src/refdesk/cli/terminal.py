"""What a terminal shows: strangers' text without what would command it, and words that stand out."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

BOLD, FAINT, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
RED, GREEN, YELLOW = "\x1b[31m", "\x1b[32m", "\x1b[33m"

SHORTEST_WORD = 3
"""Letters of a word that is looked for with its endings; a shorter one stands in half of all words."""

COMMON_WORDS = frozenset(
    "a about an and any are as at be by can do does for from has have how i if in into is it its me my no not of on or "
    "our so than that the their them then there these they this to was we what when where which who why will with you "
    "your".split()
)
"""Not made bold: they would cover the page."""

_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, and those that turn the direction of what follows."""

_ENDING = re.compile(r"(?:ies|ing|ions?|ed|es|e|s|y)$")


@dataclass(frozen=True, slots=True)
class Ink:
    """Bold, faint and a few colours, where the output is a terminal; otherwise nothing."""

    coloured: bool

    def bold(self, text: str) -> str:
        """Text that stands out."""
        return self._in(BOLD, text)

    def faint(self, text: str) -> str:
        """Text that stands back."""
        return self._in(FAINT, text)

    def red(self, text: str) -> str:
        """What is wrong, or taken away."""
        return self._in(RED, text)

    def green(self, text: str) -> str:
        """What is well, or added."""
        return self._in(GREEN, text)

    def yellow(self, text: str) -> str:
        """What to look at."""
        return self._in(YELLOW, text)

    def highlighted(self, text: str, query: str) -> str:
        """The text with the words of the query in bold, whatever their endings."""
        pattern = words_of(query) if self.coloured else None
        return pattern.sub(lambda word: self.bold(word[0]), text) if pattern else text

    def _in(self, code: str, text: str) -> str:
        return f"{code}{text}{PLAIN}" if self.coloured and text else text


def ink_for(stream: TextIO, environ: Mapping[str, str] | None = None) -> Ink:
    """What this output can show; NO_COLOR, a dumb terminal and FORCE_COLOR are honoured, and the first wins."""
    environ = os.environ if environ is None else environ
    if environ.get("NO_COLOR"):
        return Ink(False)
    return Ink(bool(environ.get("FORCE_COLOR")) or (stream.isatty() and environ.get("TERM") != "dumb"))


def words_of(query: str) -> re.Pattern[str] | None:
    """A pattern that matches the query's words and their other forms; None when it has none that tell."""
    words = dict.fromkeys(re.findall(r"\w+", query.casefold()))
    stems = [_stem(word) for word in words if word not in COMMON_WORDS]
    return re.compile(rf"\b(?:{'|'.join(stems)})", re.IGNORECASE) if stems else None


def printable(text: str) -> str:
    """The text without what would command a terminal; lines and tabs stay."""
    return _COMMANDS.sub("", text)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns, as wide as what is in them; the last one takes what it needs."""
    table = [head, *(tuple(" ".join(printable(cell).split()) for cell in row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)][:-1]
    ink = ink_for(sys.stdout)
    for number, row in enumerate(table):
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        line = "  ".join([*cells, row[-1]]).rstrip()
        print(ink.bold(line) if number == 0 else line)


def say(text: str) -> None:
    """Tell the person, beside what the command prints."""
    print(f"refdesk: {printable(text)}", file=sys.stderr)


def _stem(word: str) -> str:
    stem = _ENDING.sub("", word)
    return rf"{re.escape(stem)}\w*" if len(stem) >= SHORTEST_WORD else rf"{re.escape(word)}\b"
