"""Document model: blocks in reading order, with their positions.

    Document
    ├─ pages      Page · Page · …            only where the format has them: PDF pages, slides, sheets
    └─ blocks     Heading · Term · Paragraph · ListItem · Code · Table · Picture, in reading order

The list of blocks is flat. A heading opens a section that lasts to the next heading of its level or a higher one, a
term opens one that has as many blocks as its definition, and a list item has a depth. Sections, chunks, Markdown, HTML
and DoclingDocument JSON are derived from it. This module is pure data and opens no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal, TypeGuard

MAX_HEADING_LEVEL = 6
"""Limit of Markdown and HTML; deeper headings get this level."""

MAX_TERM_DEPTH = 4
"""Nested definitions that are sections: a class, its method and its parameters take three."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in points, from the page's top left corner."""

SpanKind = Literal["code", "strong", "emphasis", "link"]
ParagraphRole = Literal["text", "quote", "note", "caption", "footnote"]
PageKind = Literal["page", "slide", "sheet"]


@dataclass(frozen=True, slots=True)
class Place:
    """Position of a block: its page, counted from 1, and its box on it where known."""

    page: int
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Inline markup of `text[start:end]`."""

    start: int
    end: int
    kind: SpanKind
    target: str = ""
    """Target of a link."""


@dataclass(frozen=True, slots=True)
class Heading:
    """Heading that opens a section; level 1 is the highest."""

    text: str
    level: int
    place: Place | None = None
    is_notice: bool = False
    """Whether it only titles a note or a warning and opens no section."""
    anchor: str = ""
    """Anchor within its page, as in `page.html#anchor`; empty if the file has none."""


@dataclass(frozen=True, slots=True)
class Term:
    """What a definition list explains, such as an option, a parameter or a method. It opens a section."""

    text: str
    """The whole term, such as a signature; synonyms are on lines of their own."""
    title: str
    """Short form for heading paths, such as `subprocess.run()`."""
    spans: tuple[Span, ...] = ()
    size: int = 0
    """Number of blocks in its definition, which follow."""
    anchor: str = ""
    """Anchor within its page; empty if the file has none."""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text without soft line breaks. The role `note` is for speaker notes."""

    text: str
    spans: tuple[Span, ...] = ()
    role: ParagraphRole = "text"
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class ListItem:
    """List item; depth 0 is the outermost list."""

    text: str
    spans: tuple[Span, ...] = ()
    depth: int = 0
    ordered: bool = False
    number: int = 1
    """Number of an ordered item."""
    place: Place | None = None
    has_more: bool = False
    """Whether the next block belongs to it, too."""


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted lines, indentation included."""

    text: str
    language: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """Table cell at its top left position in the grid, with its spans."""

    text: str
    row: int
    column: int
    row_span: int = 1
    column_span: int = 1
    header: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells on a grid of `rows` by `columns`; positions without a cell are empty."""

    cells: tuple[Cell, ...]
    rows: int
    columns: int
    caption: str = ""
    place: Place | None = None

    def grid(self) -> list[list[str]]:
        """Return the texts by row and column; a spanning cell repeats at each of its positions."""
        grid = [[""] * self.columns for _ in range(self.rows)]
        for cell in self.cells:
            for row in range(cell.row, min(cell.row + cell.row_span, self.rows)):
                for column in range(cell.column, min(cell.column + cell.column_span, self.columns)):
                    grid[row][column] = cell.text
        return grid

    def header_rows(self) -> int:
        """Return the number of leading rows that consist of header cells."""
        plain = {cell.row for cell in self.cells if not cell.header}
        headed = {cell.row for cell in self.cells if cell.header}
        return sum(1 for _ in takewhile(lambda row: row in headed and row not in plain, range(self.rows)))


@dataclass(frozen=True, slots=True)
class Picture:
    """Picture, of which only the caption is kept."""

    caption: str = ""
    place: Place | None = None


Block = Heading | Term | Paragraph | ListItem | Code | Table | Picture


@dataclass(frozen=True, slots=True)
class Page:
    """Page, slide or sheet, counted from 1; its size is in points, 0 if the format has none."""

    number: int
    width: float = 0
    height: float = 0
    scanned: bool = False
    """Whether it is an image of text that needs OCR."""


@dataclass(frozen=True, slots=True)
class Document:
    """A converted document."""

    title: str
    blocks: tuple[Block, ...]
    pages: tuple[Page, ...] = ()
    page_kind: PageKind = "page"
    total_pages: int = 0
    """Pages of the whole file if only some were converted, otherwise 0."""
    name: str = ""
    media_type: str = ""
    digest: str = ""
    """SHA-256 of the file, in hexadecimal."""
    tags: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """Metadata of the file: author, language, dates."""
    warnings: tuple[str, ...] = ()
    """Sentences on content that was lost, left out or unreadable."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading or term and everything below it, subsections included: `blocks[start:end]`."""

    id: str
    title: str
    level: int
    page: int | None
    path: tuple[str, ...]
    """Titles from the top down to this section, inclusive."""
    start: int
    end: int
    anchors: tuple[str, ...] = ()
    """Anchors of the titles in `path`, empty ones included."""

    @property
    def anchor(self) -> str:
        """Anchor of this section, or an empty string."""
        return self.anchors[-1] if self.anchors else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a document that is searched and read by itself."""

    id: str
    text: str
    path: tuple[str, ...]
    section: str
    first_page: int | None
    last_page: int | None
    tokens: int
    anchors: tuple[str, ...] = ()
    """Anchors of the titles in `path`, empty ones included."""

    @property
    def anchor(self) -> str:
        """Anchor of its section, or an empty string."""
        return self.anchors[-1] if self.anchors else ""


def table_from_rows(
    rows: Sequence[Sequence[str]], *, header_rows: int = 1, caption: str = "", place: Place | None = None
) -> Table:
    """Build a table from rows of texts; short rows are padded with empty cells."""
    cells = tuple(
        Cell(text, row, column, header=row < header_rows)
        for row, texts in enumerate(rows)
        for column, text in enumerate(texts)
    )
    return Table(cells, len(rows), max(map(len, rows), default=0), caption, place)


def list_sections(blocks: Sequence[Block]) -> list[Section]:
    """Return the sections in order; blocks before the first heading form an untitled section of level 0.

    Terms are below all headings, the outermost ones at level `MAX_HEADING_LEVEL + 1`.
    """
    headings = [(index, block) for index, block in enumerate(blocks) if is_section_heading(block)]
    first = headings[0][0] if headings else len(blocks)
    found = [Section("start", "", 0, get_page(blocks[0]), (), 0, first)] if first else []
    # A section ends at the next heading of its level or a higher one.
    ends = [len(blocks)] * len(headings)
    unfinished: list[int] = []
    for index, (start, heading) in enumerate(headings):
        while unfinished and headings[unfinished[-1]][1].level >= heading.level:
            ends[unfinished.pop()] = start
        unfinished.append(index)
    ids = SectionIds()
    above: list[Heading] = []
    for (start, heading), end in zip(headings, ends, strict=True):
        above = [*(higher for higher in above if higher.level < heading.level), heading]
        path = tuple(higher.text for higher in above)
        anchors = tuple(higher.anchor for higher in above)
        id, page = ids.next(heading.text), get_page(heading)
        found.append(Section(id, heading.text, heading.level, page, path, start, end, anchors))
    starts = [*(section.start for section in found[1:]), len(blocks)]
    return [
        each for own, end in zip(found, starts, strict=False) for each in (own, *_list_terms(blocks, own, end, ids))
    ]


def _list_terms(blocks: Sequence[Block], above: Section, end: int, ids: SectionIds) -> Iterator[Section]:
    """Yield the terms in the own text of a section, which ends at the next heading."""
    around = [replace(above, level=MAX_HEADING_LEVEL, end=end)]
    for index in range(above.start, end):
        block = blocks[index]
        if not isinstance(block, Term):
            continue
        while around[-1].end <= index:
            around.pop()
        outer = around[-1]
        if len(around) > MAX_TERM_DEPTH:
            continue
        section = Section(
            id=ids.next(block.title),
            title=block.title,
            level=outer.level + 1,
            page=get_page(block),
            path=(*outer.path, block.title),
            start=index,
            end=min(index + 1 + max(block.size, 0), outer.end),
            # A term without an anchor is reached by that of its section.
            anchors=(*outer.anchors, block.anchor or outer.anchor),
        )
        around.append(section)
        yield section


def is_section_heading(block: Block) -> TypeGuard[Heading]:
    """Whether a block is the heading of a section."""
    return isinstance(block, Heading) and not block.is_notice


class SectionIds:
    """Generator of readable, unique section ids: `install`, `install-2`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._seen: dict[str, int] = {"start": 1, **dict.fromkeys(taken, 1)}

    def next(self, title: str) -> str:
        """Return the id of the next section with this title."""
        slug = slug_of(title) or "section"
        while True:
            count = self._seen[slug] = self._seen.get(slug, 0) + 1
            if count == 1:
                return slug
            numbered = f"{slug}-{count}"
            if numbered not in self._seen:
                self._seen[numbered] = 1
                return numbered


def slug_of(title: str) -> str:
    """Return the words in lower case joined by hyphens, in any script, at most 60 characters."""
    return "-".join(re.findall(r"\w+", title.lower()))[:60].strip("-")


def get_page(block: Block) -> int | None:
    """Return the page of a block, or None if its format has no pages."""
    return block.place.page if block.place else None
