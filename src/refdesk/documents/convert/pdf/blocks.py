"""Lines in reading order to blocks: headings, paragraphs, items and code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from refdesk.documents.convert.pdf.layout import Line, box_around
from refdesk.documents.convert.pdf.lists import Marker, OpenLists, marker_of
from refdesk.documents.model import Place, Table

PARAGRAPH_GAP = 1.28
"""Of the usual distance between baselines: a wider step opens a paragraph."""

INDENT = 0.8
"""Of the letter size: a first line set in by so much opens a paragraph."""

SIZE_CHANGE = 0.12
"""Of the letter size: lines that differ more belong to different blocks."""

CODE_SHARE = 0.9
"""Of a line's letters in fixed pitch: the rest are prompts, arrows and line-end signs."""

CODE_COMPANY = 0.45
"""Of a line's letters in fixed pitch, when lines of code stand above and below it."""

FIT_SLACK = 0.6
"""Of the letter size: a word that would have fitted by so little may still have been pushed to the next line."""

DEFAULT_LEADING = 1.2
"""Baseline distance over letter size where a document is too short to measure it."""

DraftKind = Literal["heading", "paragraph", "item", "code", "table", "caption", "footnote", "picture"]


@dataclass(slots=True)
class Draft:
    """A block whose lines are still being gathered."""

    kind: DraftKind
    lines: list[Line]
    level: int = 0
    ordered: bool = False
    number: int = 1
    skip: int = 0
    """Words at the start of the first line that are a marker."""
    table: Table | None = None
    block: int = -1
    """The element of the structure tree that it stands for."""

    @property
    def place(self) -> Place:
        """On the page where it starts."""
        first = self.lines[0].page
        return Place(first, box_around([line.box for line in self.lines if line.page == first]))


@dataclass(frozen=True, slots=True)
class Measures:
    """What is usual in a document."""

    body_size: float = 10.0
    leading: float = DEFAULT_LEADING


@dataclass(slots=True)
class PageLines:
    """A page's lines in reading order, without furniture, and what is known of some of them."""

    lines: list[Line]
    headings: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By the id of a line: the level, and which heading of the page it belongs to."""
    tables: Mapping[int, Table] = field(default_factory=dict)
    """By the id of the line that it starts with."""
    taken: frozenset[int] = frozenset()
    """The ids of lines inside of tables."""


class Drafting:
    """Takes page after page and gathers drafts; lists and paragraphs go on across pages."""

    def __init__(self, measures: Measures) -> None:
        self.drafts: list[Draft] = []
        self._measures = measures
        self._lists = OpenLists()
        self._previous: Line | None = None
        self._limit = 0.0

    def take(self, page: PageLines) -> None:
        """Add a page."""
        lines = page.lines
        code = code_lines(lines, page, self._measures)
        self._limit = max((line.right for line in lines), default=0.0)
        for place, line in enumerate(lines):
            following = lines[place + 1] if place + 1 < len(lines) else None
            self._take_line(line, following, page, code)
            self._previous = line

    def _take_line(self, line: Line, following: Line | None, page: PageLines, code: set[int]) -> None:
        key = id(line)
        if key in page.tables:
            self.drafts.append(Draft("table", [line], table=page.tables[key]))
        elif key in page.taken:
            return
        elif key in page.headings:
            self._take_heading(line, *page.headings[key])
        elif key in code:
            self._take_code(line)
        else:
            self._take_text(line, following)

    def _take_heading(self, line: Line, level: int, block: int) -> None:
        self._lists.clear()
        last = self._last
        if last and last.kind == "heading" and last.block == block and last.lines[0].page == line.page:
            last.lines.append(line)
        else:
            self.drafts.append(Draft("heading", [line], level=level, block=block))

    @property
    def _last(self) -> Draft | None:
        return self.drafts[-1] if self.drafts else None

    def _take_code(self, line: Line) -> None:
        last = self._last
        if last and last.kind == "code" and not self._is_apart(last.lines[-1], line):
            last.lines.append(line)
        else:
            self.drafts.append(Draft("code", [line]))

    def _is_apart(self, above: Line, line: Line) -> bool:
        """Two blocks of code one after the other are set apart by more than one empty line."""
        return above.page == line.page and line.base - above.base > 3.2 * self._measures.leading * line.size

    def _take_text(self, line: Line, following: Line | None) -> None:
        marker = marker_of(line)
        if marker and self._opens_item(marker, line, following):
            self._open_item(marker, line)
            return
        last = self._last
        if last and last.kind in ("paragraph", "item") and self._continues(last, line):
            last.lines.append(line)
            return
        self._lists.close_beyond(line.left)
        self.drafts.append(Draft("paragraph", [line]))

    def _opens_item(self, marker: Marker, line: Line, following: Line | None) -> bool:
        if marker.sure or self._lists.accepts(marker):
            return True
        if marker.ordered and 1 not in marker.numbers:
            return False
        if following is None:
            return False
        hangs = abs(following.left - marker.body) < 2 and following.left > line.left + 4
        beside = following.left > line.left - 2 and _same_style(marker, marker_of(following))
        return hangs or beside

    def _open_item(self, marker: Marker, line: Line) -> None:
        depth = self._lists.open(marker)
        number = min(marker.numbers, default=1)
        self.drafts.append(Draft("item", [line], level=depth, ordered=marker.ordered, number=number, skip=marker.words))

    def _continues(self, draft: Draft, line: Line) -> bool:
        """Whether a line goes on with the paragraph above it."""
        above = draft.lines[-1]
        if abs(line.size - above.size) > SIZE_CHANGE * above.size:
            return False
        if line.page != above.page or line.base < above.base:
            return self._continues_overleaf(draft, line)
        step = (line.base - above.base) / above.size
        if step > PARAGRAPH_GAP * self._measures.leading:
            return False
        if self._would_have_fitted(above, line):
            return False
        return abs(line.left - self._expected_left(draft, line)) <= INDENT * line.size

    def _continues_overleaf(self, draft: Draft, line: Line) -> bool:
        above = draft.lines[-1]
        if above.text.endswith((".", ":", "!", "?")) and not line.text[:1].islower():
            return False
        if abs(line.left - self._expected_left(draft, line)) > INDENT * line.size and draft.kind == "item":
            return False
        return not self._would_have_fitted(above, line) or line.text[:1].islower()

    def _would_have_fitted(self, above: Line, line: Line) -> bool:
        """Whether the line above ends early, so that its break was meant."""
        first = line.words[0]
        return above.right + (first.right - first.left) + (0.3 + FIT_SLACK) * line.size < self._limit

    def _expected_left(self, draft: Draft, line: Line) -> float:
        """Where the next line of a draft starts: under its second line; under the text of an item."""
        same_page = [one for one in draft.lines if one.page == line.page]
        if len(same_page) > 1:
            return same_page[-1].left
        first = draft.lines[0]
        if draft.kind == "item" and draft.skip < len(first.words):
            return first.words[draft.skip].left
        return line.left if len(draft.lines) == 1 else draft.lines[-1].left


def _same_style(marker: Marker, other: Marker | None) -> bool:
    if other is None or other.style != marker.style:
        return False
    return not marker.ordered or any(number + 1 in other.numbers for number in marker.numbers)


def code_lines(lines: Sequence[Line], page: PageLines, measures: Measures) -> set[int]:
    """The ids of the lines that are code."""
    fixed = [line.fixed >= CODE_SHARE and id(line) not in page.headings for line in lines]
    for place in range(1, len(lines) - 1):
        if fixed[place - 1] and fixed[place + 1] and lines[place].fixed >= CODE_COMPANY:
            fixed[place] = True
    found: set[int] = set()
    for start, end in _stretches(fixed):
        if not _is_inline(lines, start, end, measures) and not _are_terms(lines, start, end, measures):
            found.update(map(id, lines[start:end]))
    return found


def _stretches(flags: Sequence[bool]) -> list[tuple[int, int]]:
    edges = [0, *(place for place in range(1, len(flags)) if flags[place] != flags[place - 1]), len(flags)]
    return [(start, end) for start, end in pairwise(edges) if end > start and flags[start]]


def _is_inline(lines: Sequence[Line], start: int, end: int, measures: Measures) -> bool:
    """Whether the stretch is a piece of code inside of a paragraph that happens to fill whole lines."""
    if end - start > 2 or not start:
        return False
    above, first = lines[start - 1], lines[start]
    near = 0 < first.base - above.base < PARAGRAPH_GAP * measures.leading * above.size
    flush = abs(first.left - above.left) < 2
    limit = max(line.right for line in lines)
    full = above.right + (first.words[0].right - first.words[0].left) + FIT_SLACK * first.size >= limit
    return near and flush and full


def _are_terms(lines: Sequence[Line], start: int, end: int, measures: Measures) -> bool:
    """Whether the stretch names what the indented text below it defines."""
    if end >= len(lines):
        return False
    below, last = lines[end], lines[end - 1]
    if below.base < last.base or below.left < last.left + INDENT * last.size:
        return False
    level = all(abs(line.left - last.left) < 2 for line in lines[start:end])
    return level and below.base - last.base < 1.6 * measures.leading * last.size
