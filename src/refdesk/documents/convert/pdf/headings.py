"""Which lines are headings, and how high: told by the outline, or by size, weight and numbering."""

from __future__ import annotations

import re
from collections.abc import Sequence

from refdesk.documents.convert.pdf.layout import Line
from refdesk.documents.convert.pdf.outline import Entry
from refdesk.documents.convert.pdf.text import letters

MAX_LINES = 4
"""Lines that one heading may take."""

_NUMBERING = re.compile(r"(?:chapter|appendix|section|part|annex)?(?:[0-9]+[a-z]?|[a-z]|[ivxlc]+)?(?:[0-9]+)*")

Found = dict[int, tuple[int, int]]
"""By the id of a line: its level, and which heading of the page it belongs to."""


def outlined(lines: Sequence[Line], entries: Sequence[Entry], height: float) -> Found:
    """The lines that the outline's entries for this page name."""
    found: Found = {}
    if not entries:
        return found
    texts = [letters(line.text) for line in lines]
    for number, entry in enumerate(entries):
        stretch = _stretch_of(entry, lines, texts, found, height)
        for line in stretch:
            found[id(line)] = (entry.level, number)
    return found


def _stretch_of(
    entry: Entry, lines: Sequence[Line], texts: Sequence[str], found: Found, height: float
) -> Sequence[Line]:
    """The lines that make up an entry's heading; the nearest ones when its text stands at several places."""
    title = letters(entry.title)
    if not title:
        return ()
    stretches = [
        lines[start : start + count]
        for start in range(len(lines))
        if id(lines[start]) not in found and (count := _matching(title, texts, start))
    ]
    if not stretches:
        return ()
    wanted = height - entry.height if entry.height is not None else None
    return min(stretches, key=lambda stretch: _distance(stretch, wanted))


def _distance(stretch: Sequence[Line], wanted: float | None) -> float:
    """How far a stretch is from where the outline points; among equals, large type wins."""
    first = stretch[0]
    away = 0.0 if wanted is None else abs(first.top - wanted)
    return away - 8 * first.size - (20 if first.bold else 0)


def _matching(title: str, texts: Sequence[str], start: int) -> int:
    """How many lines from `start` on say the title; 0 when they do not."""
    text = ""
    for count in range(1, MAX_LINES + 1):
        if start + count > len(texts):
            return 0
        text += texts[start + count - 1]
        if _same_but_numbering(text, title):
            return count
        if len(text) > len(title) + 16 or not (title[:6] in text or _NUMBERING.fullmatch(text)):
            return 0
    return 0


def _same_but_numbering(text: str, title: str) -> bool:
    if text == title:
        return True
    longer, shorter = (text, title) if len(text) > len(title) else (title, text)
    if not shorter or not longer.endswith(shorter):
        return False
    return _NUMBERING.fullmatch(longer[: -len(shorter)]) is not None
