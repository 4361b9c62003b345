"""Lines in reading order to drafts of headings, paragraphs, items, code and tables, and drafts to blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Block,
    Box,
    Code,
    Heading,
    ListItem,
    Paragraph,
    ParagraphRole,
    Picture,
    Place,
)

from .boilerplate import has_leaders
from .code import PROSE_SHARE, find_code_lines, find_wrap_place, render_code
from .headings import HeadingMap
from .layout import PARAGRAPH_GAP, Line, Measures, enclose_boxes
from .lists import Marker, OpenLists, parse_marker
from .page_reader import PageContent
from .tables import CAPTION, TableDraft, build_table, extend_table
from .text import Vocabulary, join_lines, learn_words

INDENT = 0.8
"""In letter sizes: indent of a first line that opens a paragraph."""

SIZE_CHANGE = 0.12
"""In letter sizes: lines that differ more belong to different blocks."""

FLUSH_SHARE = 0.2
"""Share of a column's lines that end at one place in justified text."""

FLUSH_LINES = 4
"""Fewer lines that end at one place do so by chance."""

FIT_SLACK = 0.6
"""In letter sizes: a word that would have fitted by less may still have been wrapped."""

SPACE = 0.3
"""In letter sizes: width of a space."""

NOTE_SIZE = 0.93
"""Share of the body's letter size below which footnotes are set."""

DraftKind = Literal["heading", "paragraph", "item", "code", "table", "picture"]


@dataclass(slots=True)
class Draft:
    """A block whose lines are still being collected."""

    kind: DraftKind
    lines: list[Line]
    level: int = 0
    """Level of a heading, or depth of an item."""
    ordered: bool = False
    number: int = 1
    skip: int = 0
    """Words at the start of the first line that are a marker."""
    block: int = 0
    """Its structure element, or the index of the heading on its page."""
    role: ParagraphRole = "text"
    table: TableDraft | None = None
    at: Place | None = None
    """Position of a picture or a table."""

    @property
    def place(self) -> Place:
        """Position on the page where it starts."""
        if self.at:
            return self.at
        first = self.lines[0].page
        return Place(first, enclose_boxes([line.box for line in self.lines if line.page == first]))

    def text_lines(self) -> list[Line]:
        """Return the lines without the leading marker."""
        first = self.lines[0]
        rest = first.words[self.skip :]
        if not self.skip or not rest:
            return self.lines[bool(self.skip) :] or self.lines
        return [Line(rest, first.page), *self.lines[1:]]


@dataclass(slots=True)
class PageLines:
    """Lines of a page in reading order without boilerplate, with what is known about them."""

    content: PageContent
    lines: list[Line]
    headings: HeadingMap
    tables: Mapping[int, TableDraft] = field(default_factory=dict)
    """Table by the id of its first line."""
    taken: frozenset[int] = frozenset()
    """Ids of lines inside of tables."""
    pictures: Sequence[Box] = ()
    """From top to bottom."""


class DraftBuilder:
    """Collects drafts page by page; lists and paragraphs continue across pages."""

    def __init__(self, measures: Measures) -> None:
        self.drafts: list[Draft] = []
        self.prose_reach = 0.0
        """Rightmost extent of running text on any page."""
        self.code_reach = 0.0
        """Rightmost extent of code on any page."""
        self._measures = measures
        self._lists = OpenLists()
        self._items: set[int] = set()
        self._limits: dict[int, float] = {}
        self._height = 0.0

    def add_page(self, page: PageLines) -> None:
        lines = page.lines
        self._height = page.content.height
        self._limits = find_right_limits(lines)
        code = find_code_lines(lines, page.headings, self._limits, self._measures)
        self.prose_reach = max([self.prose_reach, *self._limits.values()])
        self.code_reach = max([self.code_reach, *(line.right for line in lines if id(line) in code)])
        pictures = list(reversed(page.pictures))
        for line, following in zip_longest(lines, lines[1:]):
            count = len(self.drafts)
            self._add_line(line, following, page, code)
            while len(self.drafts) > count and pictures and pictures[-1][1] < line.top:
                self.drafts.insert(count, _make_picture(pictures.pop(), page.content.number))
                count += 1
        self.drafts += (_make_picture(box, page.content.number) for box in reversed(pictures))

    def _add_line(self, line: Line, following: Line | None, page: PageLines, code: set[int]) -> None:
        key = id(line)
        last = self.drafts[-1] if self.drafts else None
        if key in page.tables:
            table = page.tables[key]
            continued = last.table if last and last.lines and last.lines[0].page < line.page else None
            if not (continued and extend_table(continued, table)):
                self.drafts.append(Draft("table", [line], table=table, at=Place(table.page, table.box)))
        elif key in page.taken:
            return
        elif key in page.headings:
            self._lists.clear()
            level, block = page.headings[key]
            if last and last.kind == "heading" and last.block == block and last.lines[0].page == line.page:
                last.lines.append(line)
            else:
                self.drafts.append(Draft("heading", [line], level, block=block))
        elif key in code:
            if last and last.kind == "code" and not self._is_separate(last.lines[-1], line):
                last.lines.append(line)
            else:
                self.drafts.append(Draft("code", [line]))
        elif line.tag and line.tag.kind != "container":
            tag = line.tag
            if last and last.block == tag.block and last.kind in ("paragraph", "item"):
                last.lines.append(line)
            elif tag.labelled and tag.item not in self._items:
                self._items.add(tag.item)
                # The label, if it is text, tells whether the list is numbered.
                labels = [word.text for word in line.words if word.mark in line.labels]
                label = "".join(labels)
                digits = "".join(filter(str.isdecimal, label))[:6]
                depth, ordered, number = max(tag.depth - 1, 0), any(map(str.isalnum, label)), int(digits or 1)
                self.drafts.append(Draft("item", [line], depth, ordered, number, len(labels), tag.block))
            else:
                self.drafts.append(Draft("paragraph", [line], block=tag.block))
        else:
            self._add_text(line, following)

    def _is_separate(self, above: Line, line: Line) -> bool:
        """Whether two code lines belong to different blocks, by distance or tags."""
        if line.tag and above.tag and line.tag.block != above.tag.block:
            return True
        return above.page == line.page and line.base - above.base > 3.2 * self._measures.leading * line.size

    def _add_text(self, line: Line, following: Line | None) -> None:
        marker = parse_marker(line)
        if marker and self._opens_item(marker, line, following):
            depth = self._lists.open(marker)
            number = min(marker.numbers, default=1)
            self.drafts.append(Draft("item", [line], depth, marker.is_ordered, number, marker.words))
            return
        open_draft = self._find_open_draft(line)
        if open_draft and not has_leaders(line.text) and self._continues(open_draft, line):
            open_draft.lines.append(line)
            return
        self._lists.close_beyond(line.left)
        self.drafts.append(Draft("paragraph", [line], role=self._classify_role(line)))

    def _find_open_draft(self, line: Line) -> Draft | None:
        """Return the draft that a line may continue; footnotes of the previous page are skipped."""
        for draft in reversed(self.drafts):
            if draft.role == "footnote" and draft.lines[-1].page < line.page:
                continue
            return draft if draft.kind in ("paragraph", "item") and not draft.block else None
        return None

    def _classify_role(self, line: Line) -> ParagraphRole:
        """Classify a small line in the lower half that starts with a raised number as footnote."""
        first = line.words[0]
        small = line.size < NOTE_SIZE * self._measures.body_size and line.base > self._height / 2
        raised = first.size < 0.9 * line.size or first.base < line.base - 1
        if not (small and raised and len(line.words) > 1 and len(first.text) <= 3):
            return "text"
        line.words[1].glued = False
        return "footnote"

    def _opens_item(self, marker: Marker, line: Line, following: Line | None) -> bool:
        if marker.sure or self._lists.accepts(marker):
            return True
        if following is None or (marker.is_ordered and 1 not in marker.numbers):
            return False
        if abs(following.left - marker.body) < 2 and following.left > line.left + 4:
            return True
        other = parse_marker(following)
        if other is None or other.style != marker.style or following.left <= line.left - 2:
            return False
        return not marker.is_ordered or any(number + 1 in other.numbers for number in marker.numbers)

    def _continues(self, draft: Draft, line: Line) -> bool:
        above = draft.lines[-1]
        if abs(line.size - above.size) > SIZE_CHANGE * above.size:
            return False
        if line.page != above.page or line.base < above.base:
            return self._continues_on_next_page(draft, line)
        if line.base - above.base > PARAGRAPH_GAP * self._measures.leading * above.size:
            return False
        # A sentence may continue although its line ends early, as in a narrow box.
        is_sentence = line.text[:1].islower() and above.text[-1] not in ".:;!?" and abs(line.left - above.left) < 2
        if not is_sentence and self._has_early_break(above, line):
            return False
        return abs(line.left - self._predict_left(draft, line)) <= INDENT * line.size

    def _continues_on_next_page(self, draft: Draft, line: Line) -> bool:
        above = draft.lines[-1]
        if above.text.endswith((".", ":", "!", "?")) and not line.text[:1].islower():
            return False
        if draft.kind == "item" and abs(line.left - self._predict_left(draft, line)) > INDENT * line.size:
            return False
        return not self._has_early_break(above, line) or line.text[:1].islower()

    def _has_early_break(self, above: Line, line: Line) -> bool:
        """Whether the line above ends early, so that its break is intended."""
        first = line.words[0]
        limit = self._limits.get(above.column, self._limits[line.column])
        return above.right + (first.right - first.left) + (SPACE + FIT_SLACK) * line.size < limit

    def _predict_left(self, draft: Draft, line: Line) -> float:
        """Return where the next line of a draft starts: below its second line, or below an item's text."""
        last = draft.lines[-1]
        if len(draft.lines) > 1 and last.page == line.page == draft.lines[-2].page:
            return last.left
        first = draft.lines[0]
        if draft.kind == "item" and draft.skip < len(first.words):
            return first.words[draft.skip].left
        return last.left if len(draft.lines) > 1 and last.page == line.page else line.left


def _make_picture(box: Box, page: int) -> Draft:
    return Draft("picture", [], at=Place(page, box))


def find_right_limits(lines: Sequence[Line]) -> dict[int, float]:
    """Return the right edge of running text in each column; code and stray lines may exceed it."""
    prose: dict[int, list[float]] = {}
    others: dict[int, list[float]] = {}
    for line in lines:
        (prose if line.fixed < PROSE_SHARE else others).setdefault(line.column, []).append(line.right)
    limits: dict[int, float] = {}
    for column, rights in (others | prose).items():
        # The outermost position where many lines end, or the longest line in ragged text.
        counted = Counter(round(right / 2) for right in rights)
        least = max(FLUSH_LINES, FLUSH_SHARE * len(rights))
        flush = [place for place, count in counted.items() if count >= least]
        limits[column] = 2.0 * max(flush) + 1 if flush else max(rights)
    return limits


CAPTION_LINES = 6
"""A longer paragraph that starts with `Table 3` is text about the table."""

HELD_DRAFTS = 3
"""Drafts held back for the next batch: a paragraph that continues there, and notes below it."""


class Assembly:
    """Turns drafts into blocks incrementally."""

    def __init__(self, drafting: DraftBuilder, measures: Measures, *, wraps_code: bool) -> None:
        self._drafting = drafting
        self._measures = measures
        self._wraps_code = wraps_code
        self._vocabulary: Vocabulary = set()
        self._sizes: dict[int, tuple[float, float]] = {}
        self.blocks: list[Block] = []

    def learn(self, page: PageContent, lines: Iterable[Line]) -> None:
        """Record a page's size, and its words for dehyphenation."""
        self._sizes[page.number] = (page.width, page.height)
        learn_words(self._vocabulary, lines)

    def finish(self, held: int = 0) -> None:
        """Turn the drafts into blocks, except for the last ones that the next page may change."""
        drafts = self._drafting.drafts
        count = max(0, len(drafts) - held)
        ready = drafts[:count]
        del drafts[:count]
        reaches = self._drafting.prose_reach, self._drafting.code_reach
        wrap_at = find_wrap_place(*reaches, self._measures.body_size) if self._wraps_code else None
        self.blocks += (self._build_block(draft, wrap_at) for draft in _attach_captions(ready))

    def _build_block(self, draft: Draft, wrap_at: float | None) -> Block:
        page, box = draft.place.page, draft.place.box
        width, height = self._sizes[page]
        left, top, right, bottom = box or (0.0, 0.0, width, height)
        left, top = min(max(left, 0.0), width), min(max(top, 0.0), height)
        place = Place(page, (left, top, min(max(right, left), width), min(max(bottom, top), height)))
        if draft.table:
            return build_table(draft.table, self._vocabulary, place)
        if draft.kind == "picture":
            return Picture(join_lines(draft.lines, self._vocabulary)[0], place)
        if draft.kind == "code":
            return Code(render_code(draft.lines, wrap_at), place=place)
        text, spans = join_lines(draft.text_lines(), self._vocabulary)
        if draft.kind == "heading":
            return Heading(text, min(draft.level, MAX_HEADING_LEVEL), place)
        if draft.kind == "item":
            return ListItem(text, spans, draft.level, draft.ordered, draft.number, place)
        return Paragraph(text, spans, draft.role, place)


def _attach_captions(drafts: list[Draft]) -> list[Draft]:
    kept: list[Draft] = []
    for place, draft in enumerate(drafts):
        is_short = draft.kind == "paragraph" and len(draft.lines) <= CAPTION_LINES
        if not (is_short and CAPTION.match(draft.lines[0].text)):
            kept.append(draft)
            continue
        below = drafts[place + 1] if place + 1 < len(drafts) else None
        above = kept[-1] if kept else None
        if not any(_attach_caption(other, draft) for other in (below, above) if other):
            draft.role = "caption"
            kept.append(draft)
    return kept


def _attach_caption(draft: Draft, caption: Draft) -> bool:
    """Attach a caption to a table or picture on its page without one; return whether it was attached."""
    named = draft.table.caption if draft.table else draft.lines if draft.kind == "picture" else None
    if named is None or named or draft.place.page != caption.place.page:
        return False
    named += caption.lines
    return True
