"""From a PDF's bytes to a Document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from refdesk.documents.convert.pdf import outline
from refdesk.documents.convert.pdf.blocks import DEFAULT_LEADING, Draft, Drafting, Measures, PageLines
from refdesk.documents.convert.pdf.code import code_text
from refdesk.documents.convert.pdf.furniture import Furniture, edge_of
from refdesk.documents.convert.pdf.headings import outlined
from refdesk.documents.convert.pdf.layout import Line, lines_of
from refdesk.documents.convert.pdf.pdfium import open_pdf
from refdesk.documents.convert.pdf.reading import read_page
from refdesk.documents.convert.pdf.text import Vocabulary, learn, without_breaks
from refdesk.documents.convert.source import Source
from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Page, Paragraph


def convert(source: Source) -> Document:
    """The document with its structure."""
    with open_pdf(source.data, source.name) as document:
        return _convert(document, source)


def _convert(document: Any, source: Source) -> Document:
    total = len(document)
    pages = [read_page(document, index, with_marks=False) for index in range(total)]
    lines = [lines_of(page) for page in pages]
    measures = measure(lines)
    edges = [edge_of(page.number, page.height, its) for page, its in zip(pages, lines, strict=True)]
    furniture = Furniture(edges)
    entries = outline.entries_of(document, 0, total - 1)
    drafting = Drafting(measures)
    vocabulary: Vocabulary = set()
    for index, (page, its, edge) in enumerate(zip(pages, lines, edges, strict=True)):
        dropped = furniture.lines(edge)
        kept = [line for line in its if id(line) not in dropped]
        learn(vocabulary, kept)
        headings = outlined(kept, [entry for entry in entries if entry.page == index], page.height)
        drafting.take(PageLines(kept, headings))
    blocks = tuple(_finished(draft, vocabulary) for draft in drafting.drafts)
    return Document("", blocks, tuple(Page(page.number, page.width, page.height) for page in pages))


def measure(pages: Sequence[Sequence[Line]]) -> Measures:
    """The usual letter size and distance of baselines."""
    sizes: Counter[float] = Counter()
    steps: Counter[float] = Counter()
    for lines in pages:
        above: Line | None = None
        for line in lines:
            if line.fixed < 0.5:
                sizes[round(line.size * 4) / 4] += len(line.text)
                if above and abs(above.size - line.size) < 0.3 and 0 < line.base - above.base < 2.5 * line.size:
                    steps[round((line.base - above.base) / line.size, 2)] += 1
            above = line
    body = sizes.most_common(1)[0][0] if sizes else 10.0
    leading = steps.most_common(1)[0][0] if steps else DEFAULT_LEADING
    return Measures(body, leading)


def _finished(draft: Draft, vocabulary: Vocabulary) -> Block:
    if draft.kind == "table" and draft.table:
        return draft.table
    if draft.kind == "code":
        return Code(code_text(draft.lines), place=draft.place)
    place = draft.place
    if draft.skip:
        first = draft.lines[0]
        draft.lines[0] = Line(first.words[draft.skip :], first.page)
    text, spans = without_breaks(draft.lines, vocabulary)
    if draft.kind == "heading":
        return Heading(text, min(draft.level, 6), place)
    if draft.kind == "item":
        return ListItem(text, spans, draft.level, draft.ordered, draft.number, place)
    return Paragraph(text, spans, place=place)
