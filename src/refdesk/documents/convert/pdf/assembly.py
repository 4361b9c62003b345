"""Drafts to document blocks: captions are attached and lines joined to text."""

from __future__ import annotations

from collections.abc import Iterable

from refdesk.documents.convert.pdf.block_drafts import Draft, DraftBuilder
from refdesk.documents.convert.pdf.code import find_wrap_place, render_code
from refdesk.documents.convert.pdf.layout import Line
from refdesk.documents.convert.pdf.measures import Measures
from refdesk.documents.convert.pdf.page_reader import PageContent
from refdesk.documents.convert.pdf.tables import CAPTION, build_table
from refdesk.documents.convert.pdf.text import Vocabulary, join_lines, learn_words
from refdesk.documents.model import MAX_HEADING_LEVEL, Block, Code, Heading, ListItem, Paragraph, Picture, Place

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
        self._blocks: list[Block] = []

    def learn(self, page: PageContent, lines: Iterable[Line]) -> None:
        """Record a page's size, and its words for dehyphenation."""
        self._sizes[page.number] = (page.width, page.height)
        learn_words(self._vocabulary, lines)

    def finish_all_but_last(self) -> None:
        """Finish the drafts that the next page can't change."""
        self._finish(max(0, len(self._drafting.drafts) - HELD_DRAFTS))

    def finish(self) -> tuple[Block, ...]:
        """Finish the remaining drafts and return all blocks."""
        self._finish(len(self._drafting.drafts))
        return tuple(self._blocks)

    def _finish(self, count: int) -> None:
        drafts = self._drafting.drafts
        ready = drafts[:count]
        del drafts[:count]
        wrap_at = self._find_wrap_place() if self._wraps_code else None
        self._blocks += (self._build_block(draft, wrap_at) for draft in _attach_captions(ready))

    def _find_wrap_place(self) -> float | None:
        return find_wrap_place(self._drafting.prose_reach, self._drafting.code_reach, self._measures.body_size)

    def _build_block(self, draft: Draft, wrap_at: float | None) -> Block:
        place = self._clip_to_page(draft.place)
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

    def _clip_to_page(self, place: Place) -> Place:
        """Clip a box to its page."""
        width, height = self._sizes[place.page]
        left, top, right, bottom = place.box or (0.0, 0.0, width, height)
        left, top = min(max(left, 0.0), width), min(max(top, 0.0), height)
        return Place(place.page, (left, top, min(max(right, left), width), min(max(bottom, top), height)))


def _attach_captions(drafts: list[Draft]) -> list[Draft]:
    """Attach captions to the tables and pictures above or below them."""
    kept: list[Draft] = []
    for place, draft in enumerate(drafts):
        if not _is_caption(draft):
            kept.append(draft)
            continue
        below = drafts[place + 1] if place + 1 < len(drafts) else None
        above = kept[-1] if kept else None
        if not any(_attach_caption(other, draft) for other in (below, above) if other):
            draft.role = "caption"
            kept.append(draft)
    return kept


def _is_caption(draft: Draft) -> bool:
    return draft.kind == "paragraph" and len(draft.lines) <= CAPTION_LINES and bool(CAPTION.match(draft.lines[0].text))


def _attach_caption(draft: Draft, caption: Draft) -> bool:
    """Attach a caption to a table or picture on its page without one; return whether it was attached."""
    named = draft.table.caption if draft.table else draft.lines if draft.kind == "picture" else None
    if named is None or named or draft.place.page != caption.place.page:
        return False
    named += caption.lines
    return True
