"""Which lines are headings, and how high: told by tags, by the outline, or by size, weight and numbering."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refdesk.documents.convert.pdf.layout import WIDE_GAP, Line, split_row
from refdesk.documents.convert.pdf.lists import SURE_BULLETS
from refdesk.documents.convert.pdf.measures import Measures
from refdesk.documents.convert.pdf.outline import Bookmark
from refdesk.documents.convert.pdf.text import normalize_letters

MAX_LINES = 4
"""Lines that one heading may take."""

DISPLAY_RATIO = 1.08
"""Of the body's letter size: type so much larger is display type."""

MAX_CHARACTERS = 160
"""Characters; a longer bold line is a paragraph that shouts."""

SPACE_ABOVE = 1.2
"""Of the usual baseline distance: headings keep further from what stands above them."""

SPACE_BELOW = 1.08
"""Of the usual baseline distance: and a little further from what stands below."""

MAX_LINE_STEP = 1.5
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

HeadingMap = dict[int, tuple[int, int]]
"""By the id of a line: its level, and which heading of the page it belongs to."""


def find_tagged_headings(lines: Sequence[Line]) -> HeadingMap:
    """The lines whose structure element is a heading."""
    return {id(line): (line.tag.level, line.tag.block) for line in lines if line.tag and line.tag.kind == "heading"}


def find_outline_headings(lines: Sequence[Line], entries: Sequence[Bookmark], height: float) -> HeadingMap:
    """The lines that the outline's entries for this page name."""
    found: HeadingMap = {}
    if not entries:
        return found
    texts = [normalize_letters(line.text) for line in lines]
    for number, entry in enumerate(entries):
        stretch = _find_stretch(entry, lines, texts, found, height)
        for line in stretch:
            found[id(line)] = (entry.level, number)
    return found


def _find_stretch(
    entry: Bookmark, lines: Sequence[Line], texts: Sequence[str], found: HeadingMap, height: float
) -> Sequence[Line]:
    """The lines that make up an entry's heading; the nearest ones when its text stands at several places."""
    title = normalize_letters(entry.title)
    if not title:
        return ()
    stretches = [
        lines[start : start + count]
        for start in range(len(lines))
        if id(lines[start]) not in found and (count := _count_matching_lines(title, texts, start))
    ]
    if not stretches:
        return ()
    wanted = height - entry.height if entry.height is not None else None
    return min(stretches, key=lambda stretch: _rate_distance(stretch, wanted))


def _rate_distance(stretch: Sequence[Line], wanted: float | None) -> float:
    """How far a stretch is from where the outline points; among equals, large type wins."""
    first = stretch[0]
    away = 0.0 if wanted is None else abs(first.top - wanted)
    return away - 8 * first.size - (20 if first.bold else 0)


def _count_matching_lines(title: str, texts: Sequence[str], start: int) -> int:
    """How many lines from `start` on say the title; 0 when they do not."""
    text = ""
    for count in range(1, MAX_LINES + 1):
        if start + count > len(texts):
            return 0
        text += texts[start + count - 1]
        if _is_same_title(text, title):
            return count
        if len(text) > len(title) + 16 or not (title[:6] in text or _NUMBERING.fullmatch(text)):
            return 0
    return 0


def _is_same_title(text: str, title: str) -> bool:
    if text == title:
        return True
    longer, shorter = (text, title) if len(text) > len(title) else (title, text)
    if not shorter or not longer.endswith(shorter):
        return False
    return _NUMBERING.fullmatch(longer[: -len(shorter)]) is not None


@dataclass(frozen=True, slots=True)
class HeadingStyle:
    """How a heading is set: headings of one level are set alike."""

    size: float
    bold: bool
    hanging: int
    """How far it stands out to the left of the body, as headings of manual pages do."""


def get_style(line: Line, measures: Measures) -> HeadingStyle:
    """The style of a line, with differences that nobody sees rounded away."""
    out = measures.body_left - line.left
    return HeadingStyle(round(line.size * 2) / 2, line.bold, round(out / 6) if out > 6 else 0)


def find_candidates(lines: Sequence[Line], found: HeadingMap, measures: Measures) -> list[Line]:
    """Lines that stand and look like headings, besides those that are known to be."""
    chosen: list[Line] = []
    for place, line in enumerate(lines):
        if id(line) in found or not _is_heading_like(line, measures):
            continue
        above = lines[place - 1] if place else None
        below = lines[place + 1] if place + 1 < len(lines) else None
        joins = bool(chosen) and chosen[-1] is above and _is_continuation(chosen[-1], line)
        if joins or _is_set_off(line, above, below, measures):
            chosen.append(line)
    return chosen


def _is_heading_like(line: Line, measures: Measures) -> bool:
    larger = line.size >= DISPLAY_RATIO * measures.body_size
    if not larger and not (line.bold and line.size >= 0.93 * measures.body_size):
        return False
    text = line.text
    if len(text) > MAX_CHARACTERS or text[-1] in ",;" or not any(map(str.isalpha, text)):
        return False
    if (text[-1] in ".:" and not larger) or line.words[0].text in SURE_BULLETS or _NO_HEADING.fullmatch(text):
        return False
    if line.fixed > 0.9 and not larger:
        return False
    pieces = split_row(line.words, WIDE_GAP)
    return len(pieces) == 1 or (len(pieces) == 2 and len(pieces[0]) == 1 and len(pieces[0][0].text) < 10)


def _is_continuation(above: Line, line: Line) -> bool:
    alike = abs(above.size - line.size) < 0.5 and above.bold == line.bold
    return alike and 0 < line.base - above.base < MAX_LINE_STEP * line.size


def _is_set_off(line: Line, above: Line | None, below: Line | None, measures: Measures) -> bool:
    usual = measures.leading * measures.body_size
    if above and 0 < line.base - above.base < SPACE_ABOVE * usual:
        return False
    if below is None or below.base < line.base:
        return line.size >= DISPLAY_RATIO * measures.body_size
    if line.left < measures.body_left - 6:
        return True
    if below.left > line.left + 0.8 * line.size and line.size < DISPLAY_RATIO * measures.body_size:
        return False  # a term above its definition
    return below.base - line.base >= SPACE_BELOW * usual or line.size >= DISPLAY_RATIO * measures.body_size


class HeadingStyles:
    """What the styles of a document's headings say about their levels."""

    def __init__(self, measures: Measures, *, known_only: bool) -> None:
        self._measures = measures
        self._known_only = known_only
        self._known_levels: dict[HeadingStyle, Counter[int]] = {}
        self._candidate_depths: dict[HeadingStyle, list[int]] = {}
        self._ranks: dict[HeadingStyle, int] | None = None

    def learn_known(self, lines: Iterable[Line], found: HeadingMap) -> None:
        """Note how headings are set whose levels the outline tells."""
        for line in lines:
            if id(line) in found:
                self._known_levels.setdefault(get_style(line, self._measures), Counter())[found[id(line)][0]] += 1

    def learn_candidates(self, lines: Iterable[Line]) -> None:
        """Note how other candidates are set, and how deep their numbers say they are."""
        for line in lines:
            depth = parse_depth(line.text)
            self._candidate_depths.setdefault(get_style(line, self._measures), []).append(depth)
        self._ranks = None

    def find_level(self, line: Line) -> int | None:
        """The level of a candidate; None when its style is none of a heading's."""
        style = get_style(line, self._measures)
        if self._known_levels and line.size < DISPLAY_RATIO * self._measures.body_size:
            return None  # where there is an outline, it leaves out no more than what is set as large as its headings
        if self._known_only:
            return self._known_levels[style].most_common(1)[0][0] if style in self._known_levels else None
        if self._ranks is None:
            self._ranks = _rank_styles(self._candidate_depths)
        rank = self._ranks.get(style)
        if rank is None:
            return None
        depth = parse_depth(line.text)
        return rank + max(0, depth - _find_min_depth(self._candidate_depths[style])) if depth else rank


def parse_depth(text: str) -> int:
    """How deep a heading's number says it is: 1 for `3`, 2 for `3.1`; 0 without a number."""
    number = _NUMBERED.match(text)
    return 1 + number[1].count(".") if number else 0


def _find_min_depth(depths: Sequence[int]) -> int:
    return min((depth for depth in depths if depth), default=1)


def _rank_styles(depths_by_style: dict[HeadingStyle, list[int]]) -> dict[HeadingStyle, int]:
    """Levels by size, then weight, then how far out a style stands; numbers within one style go deeper."""
    ranks: dict[HeadingStyle, int] = {}
    level = 1
    for style in sorted(depths_by_style, key=lambda style: (-style.size, -style.hanging, not style.bold)):
        ranks[style] = level
        depths = [depth for depth in depths_by_style[style] if depth]
        level += 1 + (max(depths) - min(depths) if depths else 0)
    return ranks


def find_styled_headings(lines: Sequence[Line], styles: HeadingStyles) -> HeadingMap:
    """The levels of candidates; lines that run on are one heading."""
    found: HeadingMap = {}
    number = STYLED_FROM
    above: Line | None = None
    for line in lines:
        level = styles.find_level(line)
        if level is None:
            continue
        if above is None or not _is_continuation(above, line) or parse_depth(line.text):
            number += 1
        found[id(line)] = (level, number)
        above = line
    return found
