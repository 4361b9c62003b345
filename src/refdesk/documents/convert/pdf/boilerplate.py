"""Running headers, footers, page numbers, and entries of contents pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .layout import Line

EDGE_LEVELS = 3
"""Baselines at the top and bottom of a page that may be headers and footers."""

BAND = 3.0
"""Points by which a running line may move between pages."""

REPEATS = 3
"""Pages on which a line has to repeat; in documents of two or three pages, two suffice."""

CLOSE = 1.6
"""In letter sizes: running headers are farther from the text than this."""

MARGIN = 0.14
"""Share of the page height that holds headers and footers."""

_DIGITS = re.compile(r"\d+")
_PAGE_NUMBER = re.compile(
    r"(?:page|seite|p\.)?\s*[-–—|]?\s*(?:\d{1,4}|[ivxlc]{1,8})\s*[-–—|]?\s*(?:(?:/|of|von|de)\s*\d{1,4})?", re.I
)
_FIRST_NUMBER = re.compile(r"^(?:page\s+)?(\d{1,5})\b", re.I)
_LAST_NUMBER = re.compile(r"\b(\d{1,5})(?:\s*(?:/|of)\s*\d{1,5})?$", re.I)


def _find_edge_lines(height: float, lines: Sequence[Line]) -> list[Line]:
    """Return the outermost lines that are in a margin."""
    levels = sorted({round(line.base) for line in lines})
    outermost = {*levels[:EDGE_LEVELS], *levels[-EDGE_LEVELS:]}
    margin = MARGIN * height
    return [
        line
        for line in lines
        if round(line.base) in outermost and not margin < line.base < height - margin and len(line.text) < 200
    ]


class BoilerplateDetector:
    """Learns from the lines at the top and bottom of pages which of them are boilerplate."""

    def __init__(self) -> None:
        self._texts: Counter[tuple[str, int]] = Counter()
        self._offsets: Counter[tuple[int, int]] = Counter()
        self._pages = 0
        self._sample: list[tuple[float, Sequence[Line]]] = []
        """Pages learned before the first one is asked for. A long document has too many lines to keep all."""
        self._is_text: bool | None = None
        """Whether what repeats is the text, as the sample shows."""

    def learn(self, height: float, lines: Sequence[Line]) -> None:
        """Record the edges of a page."""
        edge = _find_edge_lines(height, lines)
        self._pages += 1
        if self._is_text is None:
            self._sample.append((height, lines))
        self._texts.update({key for line in edge for key in _make_text_keys(line)})
        self._offsets.update({place for line in edge for place in _make_offset_keys(line)})

    def find_lines(self, height: float, lines: Sequence[Line]) -> set[int]:
        """Return the ids of a page's lines that are boilerplate."""
        if self._is_text is None:
            self._is_text = self._has_only_repeated_lines()
            self._sample.clear()
        found = set() if self._is_text else self._find_repeated(height, lines)
        edge = _find_edge_lines(height, lines)
        return found | {id(line) for line in _find_outermost(height, edge) if _PAGE_NUMBER.fullmatch(line.text)}

    def _has_only_repeated_lines(self) -> bool:
        """Whether most pages have nothing but repeated lines, as invoices of two lines: these are the text."""
        pages = [(height, lines) for height, lines in self._sample if lines]
        return sum(len(self._find_repeated(*page)) == len(page[1]) for page in pages) * 2 > len(pages)

    def _find_repeated(self, height: float, lines: Sequence[Line]) -> set[int]:
        """Return the ids of the lines at a page's edges that repeat on other pages."""
        least = REPEATS if self._pages > REPEATS else 2
        edge = _find_edge_lines(height, lines)
        counted = {id(line) for line in edge if any(self._offsets[key] >= least for key in _make_offset_keys(line))}
        found = counted | {id(line) for line in edge if any(self._texts[key] >= least for key in _make_text_keys(line))}
        for line in sorted(edge, key=lambda line: line.base, reverse=True):
            if id(line) in found and id(line) not in counted and line.base <= height / 2:
                # A line close to the text below belongs to it, as a table header repeated on every page.
                below = [other.base for other in lines if other.base > line.base + 1 and id(other) not in found]
                if min(below, default=height) - line.base < CLOSE * line.size:
                    found.remove(id(line))
        return found


def _find_outermost(height: float, edge: Sequence[Line]) -> list[Line]:
    """Return the first and last line, which alone may be an unconfirmed page number."""
    if not edge:
        return []
    first, last = min(edge, key=lambda line: line.base), max(edge, key=lambda line: line.base)
    return [line for line in (first, last) if (line is first) == (line.base < height / 2)]


def _compute_bands(line: Line) -> tuple[int, int]:
    """Return two overlapping bands of a line, so that a small shift keeps one in common."""
    return int(line.base / BAND), -int((line.base + BAND / 2) / BAND)


def _make_text_keys(line: Line) -> list[tuple[str, int]]:
    text = _DIGITS.sub("#", line.text)
    return [(text, band) for band in _compute_bands(line)]


def _make_offset_keys(line: Line) -> list[tuple[int, int]]:
    """Return the offsets of a line's first and last number from the page number."""
    numbers = {int(found[1]) for found in (_FIRST_NUMBER.search(line.text), _LAST_NUMBER.search(line.text)) if found}
    return [(number - line.page, band) for number in numbers for band in _compute_bands(line)]


CONTENTS_LINES = 3
"""Lines with leaders that make a contents page."""

_LEADERS = re.compile(r"(?:\.\s?){4,}|(?:…\s?){2,}|(?:·\s?){4,}")
_ENTRY = re.compile(r"(?:(?:\.\s?){4,}|(?:…\s?){2,}|(?:·\s?){4,}).{0,4}?\b(?:\d{1,4}|[ivxlc]{1,7})\W*$")
_PAGE_AT_END = re.compile(r"\s(?:\d{1,4}|[ivxlc]{1,7})$")


def has_leaders(text: str) -> bool:
    """Whether a text has dot leaders."""
    return _LEADERS.search(text) is not None


def drop_contents_entries(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a page without entries of a table of contents."""
    entries = {id(line) for line in lines if _ENTRY.search(line.text)}
    if len(entries) >= CONTENTS_LINES:
        entries |= {id(line) for line in lines if _PAGE_AT_END.search(line.text)}
    return [line for line in lines if id(line) not in entries]
