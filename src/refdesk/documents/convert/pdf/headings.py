"""Heading detection by tags, by the outline, or by size, weight and numbering."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from .layout import WIDE_GAP, Line, Measures, split_row
from .lists import SURE_BULLETS
from .metadata import Bookmark
from .text import normalize_letters

MAX_LINES = 4
"""Lines of one heading."""

DISPLAY_RATIO = 1.08
"""Ratio to the body's letter size from which type is display type."""

MAX_CHARACTERS = 160
"""A longer bold line is a paragraph."""

SPACE_ABOVE = 1.2
"""In usual baseline distances: minimum distance from the line above."""

SPACE_BELOW = 1.08
"""In usual baseline distances: minimum distance from the line below."""

MAX_LINE_STEP = 1.5
"""In letter sizes: maximum distance of two lines of one heading."""

STYLED_FROM = 1_000_000
"""First number of headings found by style, above those of the outline."""

_NUMBERED = re.compile(r"(?:[A-Z]|\d{1,3})((?:\.\d{1,3})*)\.?\s+\S")
_NO_HEADING = re.compile(
    r"(?:note|tip|warning|caution|important|attention|hint|danger)s?[:!.]?"
    r"|(?:chapter|appendix|part)(?:\s+[\w-]+)?|(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|"
    r"twenty|thirty)(?:-\w+)?|(?:table|figure|example|listing)\s+[\dA-Z][\d.-]*[.:]?(?:\s.*)?",
    re.I,
)
"""Titles of boxes, chapter numbers and captions, which are set like headings."""

_NUMBERING = re.compile(r"(?:chapter|appendix|section|part|annex)?(?:[0-9]{1,12}|[a-z][0-9]{0,12}|[ivxlc]{1,8})?")

HeadingMap = dict[int, tuple[int, int]]
"""Level and heading index on the page, by line id."""


def find_tagged_headings(lines: Sequence[Line]) -> HeadingMap:
    """Return the lines whose structure element is a heading."""
    return {id(line): (line.tag.level, line.tag.block) for line in lines if line.tag and line.tag.kind == "heading"}


def find_outline_headings(lines: Sequence[Line], entries: Sequence[Bookmark], height: float) -> HeadingMap:
    """Return the lines named by the outline's bookmarks for this page."""
    found: HeadingMap = {}
    if not entries:
        return found
    texts = [normalize_letters(line.text) for line in lines]
    for number, entry in enumerate(entries):
        title = normalize_letters(entry.title)
        stretches = [
            lines[start : start + count]
            for start in range(len(lines) if title else 0)
            if id(lines[start]) not in found and (count := _count_matching_lines(title, texts, start))
        ]
        if stretches:
            wanted = height - entry.height if entry.height is not None else None
            nearest = min(stretches, key=lambda stretch: _rate_distance(stretch[0], wanted))
            found.update((id(line), (entry.level, number)) for line in nearest)
    return found


def _rate_distance(first: Line, wanted: float | None) -> float:
    """Return the distance from the bookmark's target, adjusted in favour of large and bold type."""
    away = 0.0 if wanted is None else abs(first.top - wanted)
    return away - 8 * first.size - (20 if first.bold else 0)


def _count_matching_lines(title: str, texts: Sequence[str], start: int) -> int:
    """Return how many lines from `start` on make up the title, or 0."""
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
    longer, shorter = (text, title) if len(text) > len(title) else (title, text)
    if not shorter or not longer.endswith(shorter):
        return False
    return _NUMBERING.fullmatch(longer.removesuffix(shorter)) is not None


@dataclass(frozen=True, slots=True)
class HeadingStyle:
    """Typography of a heading, equal for headings of one level."""

    size: float
    bold: bool
    hanging: int
    """Outdent to the left of the body, as in manual pages."""


def get_style(line: Line, measures: Measures) -> HeadingStyle:
    """Return the style of a line, with invisible differences rounded away."""
    out = measures.body_left - line.left
    return HeadingStyle(round(line.size * 2) / 2, line.bold, round(out / 6) if out > 6 else 0)


def find_candidates(lines: Sequence[Line], found: HeadingMap, measures: Measures) -> list[Line]:
    """Return lines that look like headings and aren't known to be."""
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
    """Heading levels learned from styles."""

    def __init__(self, measures: Measures, *, known_only: bool) -> None:
        self._measures = measures
        self._known_only = known_only
        self._known_levels: dict[HeadingStyle, Counter[int]] = {}
        self._candidate_depths: dict[HeadingStyle, list[int]] = {}

    def learn_known(self, lines: Iterable[Line], found: HeadingMap) -> None:
        """Record the styles of headings with known levels."""
        for line in lines:
            if id(line) in found:
                self._known_levels.setdefault(get_style(line, self._measures), Counter())[found[id(line)][0]] += 1

    def learn_candidates(self, lines: Iterable[Line]) -> None:
        """Record the styles of candidates and the depth of their numbers."""
        for line in lines:
            depth = parse_depth(line.text)
            self._candidate_depths.setdefault(get_style(line, self._measures), []).append(depth)

    def find_level(self, line: Line) -> int | None:
        """Return the level of a candidate, or None if its style isn't that of a heading."""
        style = get_style(line, self._measures)
        if self._known_levels and line.size < DISPLAY_RATIO * self._measures.body_size:
            return None  # an outline omits at most headings in display type
        if self._known_only:
            return self._known_levels[style].most_common(1)[0][0] if style in self._known_levels else None
        rank = self._ranks.get(style)
        if rank is None:
            return None
        depth = parse_depth(line.text)
        least = min((known for known in self._candidate_depths[style] if known), default=1)
        return rank + max(0, depth - least) if depth else rank

    @cached_property
    def _ranks(self) -> dict[HeadingStyle, int]:
        """Levels of styles, once all are learned: by size, outdent, weight; numbering within a style adds levels."""
        ranks: dict[HeadingStyle, int] = {}
        level = 1
        for style in sorted(self._candidate_depths, key=lambda style: (-style.size, -style.hanging, not style.bold)):
            ranks[style] = level
            depths = [depth for depth in self._candidate_depths[style] if depth]
            level += 1 + (max(depths) - min(depths) if depths else 0)
        return ranks


def parse_depth(text: str) -> int:
    """Return the depth of a heading's number: 1 for `3`, 2 for `3.1`, 0 without a number."""
    number = _NUMBERED.match(text)
    return 1 + number[1].count(".") if number else 0


def find_styled_headings(lines: Sequence[Line], styles: HeadingStyles) -> HeadingMap:
    """Return the levels of candidates; continuation lines belong to one heading."""
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
