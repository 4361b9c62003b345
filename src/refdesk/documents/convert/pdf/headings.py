"""Which lines are headings, and how high: told by tags, by the outline, or by size, weight and numbering."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refdesk.documents.convert.pdf.layout import WIDE_GAP, Line, pieces_of
from refdesk.documents.convert.pdf.lists import SURE_BULLETS
from refdesk.documents.convert.pdf.measures import Measures
from refdesk.documents.convert.pdf.outline import Entry
from refdesk.documents.convert.pdf.text import letters

MAX_LINES = 4
"""Lines that one heading may take."""

LARGER = 1.08
"""Of the body's letter size: type so much larger is display type."""

LONGEST = 160
"""Characters; a longer bold line is a paragraph that shouts."""

SPACE_ABOVE = 1.2
"""Of the usual baseline distance: headings keep further from what stands above them."""

SPACE_BELOW = 1.08
"""Of the usual baseline distance: and a little further from what stands below."""

RUN_ON = 1.5
"""Of the letter size: two lines of one heading stand no further apart."""

STYLED_FROM = 1_000_000
"""Headings found by style are numbered from here on, out of the way of the outline's."""

_NUMBERED = re.compile(r"(?:[A-Z]|\d{1,3})((?:\.\d{1,3})*)\.?\s+\S")
_NO_HEADING = re.compile(
    r"(?:note|tip|warning|caution|important|attention|hint|danger)s?[:!.]?"
    r"|(?:chapter|appendix|part)(?:\s+[\w-]+)?|(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|"
    r"twenty|thirty)(?:-\w+)?|(?:table|figure|example|listing)\s+[\dA-Z][\d.-]*[.:]?(?:\s.*)?",
    re.I,
)
"""Names of boxes, the number above a chapter's title, captions: set like headings, but none."""

_NUMBERING = re.compile(r"(?:chapter|appendix|section|part|annex)?(?:[0-9]{1,12}|[a-z][0-9]{0,12}|[ivxlc]{1,8})?")

Found = dict[int, tuple[int, int]]
"""By the id of a line: its level, and which heading of the page it belongs to."""


def tagged_headings(lines: Sequence[Line]) -> Found:
    """The lines whose structure element is a heading."""
    return {id(line): (line.tag.level, line.tag.block) for line in lines if line.tag and line.tag.kind == "heading"}


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


@dataclass(frozen=True, slots=True)
class Style:
    """How a heading is set: headings of one level are set alike."""

    size: float
    bold: bool
    hanging: int
    """How far it stands out to the left of the body, as headings of manual pages do."""


def style_of(line: Line, measures: Measures) -> Style:
    """The style of a line, with differences that nobody sees rounded away."""
    out = measures.body_left - line.left
    return Style(round(line.size * 2) / 2, line.bold, round(out / 6) if out > 6 else 0)


def candidates(lines: Sequence[Line], found: Found, measures: Measures) -> list[Line]:
    """Lines that stand and look like headings, besides those that are known to be."""
    chosen: list[Line] = []
    for place, line in enumerate(lines):
        if id(line) in found or not _looks_like_heading(line, measures):
            continue
        above = lines[place - 1] if place else None
        below = lines[place + 1] if place + 1 < len(lines) else None
        joins = bool(chosen) and chosen[-1] is above and _runs_on(chosen[-1], line)
        if joins or _stands_alone(line, above, below, measures):
            chosen.append(line)
    return chosen


def _looks_like_heading(line: Line, measures: Measures) -> bool:
    larger = line.size >= LARGER * measures.body_size
    if not larger and not (line.bold and line.size >= 0.93 * measures.body_size):
        return False
    text = line.text
    if len(text) > LONGEST or text[-1] in ",;" or not any(map(str.isalpha, text)):
        return False
    if (text[-1] in ".:" and not larger) or line.words[0].text in SURE_BULLETS or _NO_HEADING.fullmatch(text):
        return False
    if line.fixed > 0.9 and not larger:
        return False
    pieces = pieces_of(line.words, WIDE_GAP)
    return len(pieces) == 1 or (len(pieces) == 2 and len(pieces[0]) == 1 and len(pieces[0][0].text) < 10)


def _runs_on(above: Line, line: Line) -> bool:
    alike = abs(above.size - line.size) < 0.5 and above.bold == line.bold
    return alike and 0 < line.base - above.base < RUN_ON * line.size


def _stands_alone(line: Line, above: Line | None, below: Line | None, measures: Measures) -> bool:
    usual = measures.leading * measures.body_size
    if above and 0 < line.base - above.base < SPACE_ABOVE * usual:
        return False
    if below is None or below.base < line.base:
        return line.size >= LARGER * measures.body_size
    if line.left < measures.body_left - 6:
        return True
    if below.left > line.left + 0.8 * line.size and line.size < LARGER * measures.body_size:
        return False  # a term above its definition
    return below.base - line.base >= SPACE_BELOW * usual or line.size >= LARGER * measures.body_size


class HeadingStyles:
    """What the styles of a document's headings say about their levels."""

    def __init__(self, measures: Measures, *, told_only: bool) -> None:
        self._measures = measures
        self._told_only = told_only
        self._told: dict[Style, Counter[int]] = {}
        self._seen: dict[Style, list[int]] = {}
        self._ranks: dict[Style, int] | None = None

    def learn_told(self, lines: Iterable[Line], found: Found) -> None:
        """Note how headings are set whose levels the outline tells."""
        for line in lines:
            if id(line) in found:
                self._told.setdefault(style_of(line, self._measures), Counter())[found[id(line)][0]] += 1

    def learn_seen(self, lines: Iterable[Line]) -> None:
        """Note how other candidates are set, and how deep their numbers say they are."""
        for line in lines:
            depth = depth_of(line.text)
            self._seen.setdefault(style_of(line, self._measures), []).append(depth)
        self._ranks = None

    def level_of(self, line: Line) -> int | None:
        """The level of a candidate; None when its style is none of a heading's."""
        style = style_of(line, self._measures)
        if self._told and line.size < LARGER * self._measures.body_size:
            return None  # where there is an outline, it leaves out no more than what is set as large as its headings
        if self._told_only:
            return self._told[style].most_common(1)[0][0] if style in self._told else None
        if self._ranks is None:
            self._ranks = _ranked(self._seen)
        rank = self._ranks.get(style)
        if rank is None:
            return None
        depth = depth_of(line.text)
        return rank + max(0, depth - _least_depth(self._seen[style])) if depth else rank


def depth_of(text: str) -> int:
    """How deep a heading's number says it is: 1 for `3`, 2 for `3.1`; 0 without a number."""
    number = _NUMBERED.match(text)
    return 1 + number[1].count(".") if number else 0


def _least_depth(depths: Sequence[int]) -> int:
    return min((depth for depth in depths if depth), default=1)


def _ranked(seen: dict[Style, list[int]]) -> dict[Style, int]:
    """Levels by size, then weight, then how far out a style stands; numbers within one style go deeper."""
    ranks: dict[Style, int] = {}
    level = 1
    for style in sorted(seen, key=lambda style: (-style.size, -style.hanging, not style.bold)):
        ranks[style] = level
        depths = [depth for depth in seen[style] if depth]
        level += 1 + (max(depths) - min(depths) if depths else 0)
    return ranks


def styled(lines: Sequence[Line], styles: HeadingStyles) -> Found:
    """The levels of candidates; lines that run on are one heading."""
    found: Found = {}
    number = STYLED_FROM
    above: Line | None = None
    for line in lines:
        level = styles.level_of(line)
        if level is None:
            continue
        if above is None or not _runs_on(above, line) or depth_of(line.text):
            number += 1
        found[id(line)] = (level, number)
        above = line
    return found
