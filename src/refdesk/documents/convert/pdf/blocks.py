"""Lines in reading order to blocks: headings, paragraphs, items and code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from refdesk.documents.convert.pdf.layout import Line, box_around
from refdesk.documents.convert.pdf.lists import SURE_BULLETS, Marker, OpenLists, marker_of
from refdesk.documents.convert.pdf.measures import Measures
from refdesk.documents.convert.pdf.tables import TableDraft, extended
from refdesk.documents.convert.pdf.tags import Tag
from refdesk.documents.model import Box, ParagraphRole, Place

PARAGRAPH_GAP = 1.28
"""Of the usual distance between baselines: a wider step opens a paragraph."""

INDENT = 0.8
"""Of the letter size: a first line set in by so much opens a paragraph."""

SIZE_CHANGE = 0.12
"""Of the letter size: lines that differ more belong to different blocks."""

CODE_SHARE = 0.9
"""Of a line's letters in fixed pitch: the rest are prompts, arrows and line-end signs."""

CODE_COMPANY = 0.25
"""Of a line's letters in fixed pitch, when it starts with one and code stands right above it."""

PROSE_SHARE = 0.45
"""Of a line's letters in fixed pitch: with fewer, a line is running text."""

CODE_STEP = 1.1
"""Of the usual baseline distance: lines of one block of code stand no further apart, but for empty lines."""

TERM_INDENT = 1.0
"""Of the letter size: a definition is set in by so much under its term."""

TERM_GAP = 3.0
"""Of the usual baseline distance: a definition starts no further below its term."""

FLUSH_SHARE = 0.2
"""Of the lines of a column: so many that end at one place show that the text is justified."""

FLUSH_LINES = 4
"""Fewer lines that end at one place do so by chance."""

FIT_SLACK = 0.6
"""Of the letter size: a word that would have fitted by so little may still have been pushed to the next line."""

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
    table: TableDraft | None = None
    block: int = 0
    """The element of the structure tree that it stands for."""
    role: ParagraphRole = "text"
    at: Place | None = None
    """Where a picture or a table stands."""

    @property
    def place(self) -> Place:
        """On the page where it starts."""
        if self.at:
            return self.at
        first = self.lines[0].page
        return Place(first, box_around([line.box for line in self.lines if line.page == first]))

    def text_lines(self) -> list[Line]:
        """The lines without the marker that the first one starts with."""
        if not self.skip:
            return self.lines
        first = self.lines[0]
        rest = first.words[self.skip :]
        return [Line(rest, first.page), *self.lines[1:]] if rest else self.lines[1:] or self.lines


@dataclass(slots=True)
class PageLines:
    """A page's lines in reading order, without furniture, and what is known of some of them."""

    lines: list[Line]
    headings: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """By the id of a line: the level, and which heading of the page it belongs to."""
    tables: Mapping[int, TableDraft] = field(default_factory=dict)
    """By the id of the line that it starts with."""
    taken: frozenset[int] = frozenset()
    """The ids of lines inside of tables."""
    pictures: Sequence[Box] = ()
    """From top to bottom."""
    height: float = 0.0


class Drafting:
    """Takes page after page and gathers drafts; lists and paragraphs go on across pages."""

    def __init__(self, measures: Measures) -> None:
        self.drafts: list[Draft] = []
        self._measures = measures
        self._lists = OpenLists()
        self._items: set[int] = set()
        self._previous: Line | None = None
        self._limits: dict[int, float] = {}
        self.prose_reach = 0.0
        """How far to the right running text reaches on any page."""
        self.code_reach = 0.0
        """How far to the right code reaches on any page."""

    def take(self, page: PageLines) -> None:
        """Add a page."""
        lines = page.lines
        code = code_lines(lines, page, self._measures)
        self._limits = right_limits(lines)
        self.prose_reach = max([self.prose_reach, *self._limits.values()])
        self.code_reach = max([self.code_reach, *(line.right for line in lines if id(line) in code)])
        pictures = list(reversed(page.pictures))
        for place, line in enumerate(lines):
            count = len(self.drafts)
            following = lines[place + 1] if place + 1 < len(lines) else None
            self._take_line(line, following, page, code)
            while len(self.drafts) > count and pictures and pictures[-1][1] < line.top:
                self.drafts.insert(count, _picture(pictures.pop(), line.page))
                count += 1
        self.drafts += (_picture(box, self._page_number(page)) for box in reversed(pictures))

    def _take_line(self, line: Line, following: Line | None, page: PageLines, code: set[int]) -> None:
        key = id(line)
        if key in page.tables:
            self._take_table(line, page.tables[key])
        elif key in page.taken:
            return
        elif key in page.headings:
            self._take_heading(line, *page.headings[key])
        elif key in code:
            self._take_code(line)
        else:
            self._take_text(line, following)

    def _take_table(self, line: Line, table: TableDraft) -> None:
        last = self._last
        if last and last.table and last.lines[0].page < line.page and extended(last.table, table):
            return
        self.drafts.append(Draft("table", [line], table=table, at=Place(table.page, table.box)))

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
        """Two blocks of code one after the other are set apart by more than one empty line, or by their tags."""
        if line.tag and above.tag and line.tag.block != above.tag.block:
            return True
        return above.page == line.page and line.base - above.base > 3.2 * self._measures.leading * line.size

    def _take_text(self, line: Line, following: Line | None) -> None:
        if line.tag and line.tag.kind != "container":
            self._take_tagged(line, line.tag)
            return
        marker = marker_of(line)
        if marker and self._opens_item(marker, line, following):
            self._open_item(marker, line)
            return
        last = self._last
        if last and last.kind in ("paragraph", "item") and not last.block and self._continues(last, line):
            last.lines.append(line)
            return
        self._lists.close_beyond(line.left)
        self.drafts.append(Draft("paragraph", [line]))

    def _take_tagged(self, line: Line, tag: Tag) -> None:
        """A line whose element is known: the same element goes on, another one opens a block."""
        last = self._last
        if last and last.block == tag.block and last.kind in ("paragraph", "item"):
            last.lines.append(line)
        elif tag.labelled and tag.item not in self._items:
            self._items.add(tag.item)
            labels = [word for word in line.words if word.mark in line.labels]
            ordered = any(map(str.isalnum, "".join(word.text for word in labels)))
            number = int("".join(filter(str.isdigit, labels[0].text))[:6] or 1) if labels else 1
            depth = max(tag.depth - 1, 0)
            self.drafts.append(Draft("item", [line], depth, ordered, number, len(labels), block=tag.block))
        else:
            self.drafts.append(Draft("paragraph", [line], block=tag.block))

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
        if self._would_have_fitted(above, line) and not _runs_on(above, line):
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
        return above.right + (first.right - first.left) + (0.3 + FIT_SLACK) * line.size < self._limits.get(above.column, self._limits[line.column])

    def _expected_left(self, draft: Draft, line: Line) -> float:
        """Where the next line of a draft starts: under its second line; under the text of an item."""
        same_page = [one for one in draft.lines if one.page == line.page]
        if len(same_page) > 1:
            return same_page[-1].left
        first = draft.lines[0]
        if draft.kind == "item" and draft.skip < len(first.words):
            return first.words[draft.skip].left
        return line.left if len(draft.lines) == 1 else draft.lines[-1].left


def _runs_on(above: Line, line: Line) -> bool:
    """Whether a sentence goes on although its line ends early, as in a box that is narrower than the page."""
    return line.text[:1].islower() and above.text[-1] not in ".:;!?" and abs(line.left - above.left) < 2


def right_limits(lines: Sequence[Line]) -> dict[int, float]:
    """How far running text reaches in each column; code and stray lines may reach further."""
    prose: dict[int, list[float]] = {}
    others: dict[int, list[float]] = {}
    for line in lines:
        (prose if line.fixed < PROSE_SHARE else others).setdefault(line.column, []).append(line.right)
    return {column: _edge(rights) for column, rights in (others | prose).items()}


def _edge(rights: list[float]) -> float:
    """The outermost place at which a good part of the lines end; in ragged text, where the longest ends."""
    rights.sort(reverse=True)
    counted = Counter(round(right / 2) for right in rights)
    flush = [place for place, count in counted.items() if count >= FLUSH_SHARE * len(rights) and count >= FLUSH_LINES]
    return 2.0 * max(flush) + 1 if flush else rights[0]


def _same_style(marker: Marker, other: Marker | None) -> bool:
    if other is None or other.style != marker.style:
        return False
    return not marker.ordered or any(number + 1 in other.numbers for number in marker.numbers)


def code_lines(lines: Sequence[Line], page: PageLines, measures: Measures) -> set[int]:
    """The ids of the lines that are code."""
    fixed = [line.fixed >= CODE_SHARE and id(line) not in page.headings and _may_be_code(line) for line in lines]
    for place in range(1, len(lines)):
        if fixed[place - 1] and not fixed[place] and _goes_on_as_code(lines[place - 1], lines[place], measures):
            fixed[place] = True
    found: set[int] = set()
    for start, end in _stretches(fixed):
        if not _is_inline(lines, start, end, measures):
            start = _after_terms(lines, start, end, measures)
            found.update(map(id, lines[start:end]))
    return found


def _goes_on_as_code(above: Line, line: Line, measures: Measures) -> bool:
    """Whether a line of mixed type belongs to the code above it, such as one with a comment in roman."""
    near = 0 < line.base - above.base < PARAGRAPH_GAP * measures.leading * above.size
    return near and line.fixed >= CODE_COMPANY and line.words[0].font.fixed and _may_be_code(line)


def _may_be_code(line: Line) -> bool:
    """An element that is a paragraph or an item is none, even when all of it is set in fixed pitch."""
    if line.words[0].text in SURE_BULLETS:
        return False
    return line.tag is None or line.tag.kind == "container"


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
    limit = right_limits(lines)[above.column]
    full = above.right + (first.words[0].right - first.words[0].left) + FIT_SLACK * first.size >= limit
    return near and flush and full


def _after_terms(lines: Sequence[Line], start: int, end: int, measures: Measures) -> int:
    """Where the code of a stretch starts behind the terms that it may open with.

    A term stands further left than what defines it, be that text or more code, and is set apart from it.
    """
    first = lines[start]
    level = next((at for at in range(start, end) if abs(lines[at].left - first.left) >= 2), end)
    if level == len(lines):
        return start
    last, below = lines[level - 1], lines[level]
    step = (below.base - last.base) / (measures.leading * last.size)
    indented = below.left >= last.left + TERM_INDENT * last.size
    if not indented or not 0 < step < TERM_GAP:
        return start
    if level == end:
        return end
    return level if step > CODE_STEP and level - start <= 2 else start
