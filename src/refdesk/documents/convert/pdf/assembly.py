"""Drafts to the blocks of a document: captions find their tables, lines become text."""

from __future__ import annotations

from collections.abc import Iterable

from refdesk.documents.convert.pdf.blocks import Draft, Drafting
from refdesk.documents.convert.pdf.code import code_text, wrap_place
from refdesk.documents.convert.pdf.layout import Line
from refdesk.documents.convert.pdf.measures import Measures
from refdesk.documents.convert.pdf.reading import PageContent
from refdesk.documents.convert.pdf.tables import CAPTION, finished
from refdesk.documents.convert.pdf.text import Vocabulary, learn, without_breaks
from refdesk.documents.model import MAX_HEADING_LEVEL, Block, Code, Heading, ListItem, Paragraph, Picture, Place

CAPTION_LINES = 6
"""A longer paragraph that starts with `Table 3` talks about the table."""

PENDING = 3
"""Drafts that wait for the next batch: a paragraph that goes on there, and notes below it."""


class Assembly:
    """Finishes drafts as they come."""

    def __init__(self, drafting: Drafting, measures: Measures, *, breaks_code: bool) -> None:
        self._drafting = drafting
        self._measures = measures
        self._breaks_code = breaks_code
        self._vocabulary: Vocabulary = set()
        self._sizes: dict[int, tuple[float, float]] = {}
        self._blocks: list[Block] = []

    def learn(self, page: PageContent, lines: Iterable[Line]) -> None:
        """Note a page's size, and the words that hyphenation will be mended with."""
        self._sizes[page.number] = (page.width, page.height)
        learn(self._vocabulary, lines)

    def finish_all_but_last(self) -> None:
        """Finish what the next page cannot change."""
        self._finish(max(0, len(self._drafting.drafts) - PENDING))

    def finish(self) -> tuple[Block, ...]:
        """Finish the rest; all blocks are the answer."""
        self._finish(len(self._drafting.drafts))
        return tuple(self._blocks)

    def _finish(self, count: int) -> None:
        drafts = self._drafting.drafts
        ready = drafts[:count]
        del drafts[:count]
        wrap_at = self._wrap_place() if self._breaks_code else None
        self._blocks += (self._block(draft, wrap_at) for draft in _with_captions(ready))

    def _wrap_place(self) -> float | None:
        return wrap_place(self._drafting.prose_reach, self._drafting.code_reach, self._measures.body_size)

    def _block(self, draft: Draft, wrap_at: float | None) -> Block:
        place = self._on_page(draft.place)
        if draft.table:
            return finished(draft.table, self._vocabulary, place)
        if draft.kind == "picture":
            return Picture(without_breaks(draft.lines, self._vocabulary)[0], place)
        if draft.kind == "code":
            return Code(code_text(draft.lines, wrap_at), place=place)
        text, spans = without_breaks(draft.text_lines(), self._vocabulary)
        if draft.kind == "heading":
            return Heading(text, min(draft.level, MAX_HEADING_LEVEL), place)
        if draft.kind == "item":
            return ListItem(text, spans, draft.level, draft.ordered, draft.number, place)
        return Paragraph(text, spans, draft.role, place)

    def _on_page(self, place: Place) -> Place:
        """The place with its box cut to the page."""
        width, height = self._sizes[place.page]
        left, top, right, bottom = place.box or (0.0, 0.0, width, height)
        left, top = min(max(left, 0.0), width), min(max(top, 0.0), height)
        return Place(place.page, (left, top, min(max(right, left), width), min(max(bottom, top), height)))


def _with_captions(drafts: list[Draft]) -> list[Draft]:
    """Give tables and pictures the captions that stand above or below them."""
    kept: list[Draft] = []
    for place, draft in enumerate(drafts):
        if not _is_caption(draft):
            kept.append(draft)
            continue
        below = drafts[place + 1] if place + 1 < len(drafts) else None
        above = kept[-1] if kept else None
        if not any(_took(other, draft) for other in (below, above) if other):
            draft.role = "caption"
            kept.append(draft)
    return kept


def _is_caption(draft: Draft) -> bool:
    return draft.kind == "paragraph" and len(draft.lines) <= CAPTION_LINES and bool(CAPTION.match(draft.lines[0].text))


def _took(draft: Draft, caption: Draft) -> bool:
    """Attach the caption, if the draft is a table or picture on the same page that has none."""
    named = draft.table.caption if draft.table else draft.lines if draft.kind == "picture" else None
    if named is None or named or draft.place.page != caption.place.page:
        return False
    named += caption.lines
    return True
