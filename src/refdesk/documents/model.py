"""What a document is, whatever file it came from: blocks in reading order, and where each stands.

    Document
    ├─ pages      Page · Page · …            only where the format has them: PDF pages, slides, sheets
    └─ blocks     Heading · Paragraph · ListItem · Code · Table · Picture, in reading order

The list of blocks is flat: a heading opens a section that lasts to the next heading of its level or a higher one, and a
list item knows its depth. Everything else (sections, chunks, Markdown, HTML, DoclingDocument JSON) is derived from it.
Pure data: no file is opened here and no library is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal, TypeGuard

MAX_HEADING_LEVEL = 6
"""As deep as Markdown and HTML go; deeper headings are kept at this level."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in points, measured from the page's top left corner."""

SpanKind = Literal["code", "strong", "emphasis", "link"]
ParagraphRole = Literal["text", "quote", "note", "caption", "footnote"]
PageKind = Literal["page", "slide", "sheet"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block stands: its page, counted from 1, and its box on that page where that is known."""

    page: int
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a block's text that is set apart: `text[start:end]`."""

    start: int
    end: int
    kind: SpanKind
    target: str = ""
    """Where a link leads."""


@dataclass(frozen=True, slots=True)
class Heading:
    """Opens a section; level 1 is the highest."""

    text: str
    level: int
    place: Place | None = None
    is_notice: bool = False
    """Whether it only stands above a note or a warning: what follows still belongs to the section around it."""
    anchor: str = ""
    """What leads to it within its page, as in `page.html#anchor`; empty where the file gives it none."""


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text, without line breaks that mean nothing. A note is what a speaker says to a slide."""

    text: str
    spans: tuple[Span, ...] = ()
    role: ParagraphRole = "text"
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class ListItem:
    """One item; depth 0 is the outermost list."""

    text: str
    spans: tuple[Span, ...] = ()
    depth: int = 0
    ordered: bool = False
    number: int = 1
    """The number that an ordered item carries."""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be kept as they are, indentation included."""

    text: str
    language: str = ""
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell at its top left place in the grid, and how far it spans."""

    text: str
    row: int
    column: int
    row_span: int = 1
    column_span: int = 1
    header: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Cells on a grid of `rows` by `columns`; places without a cell are empty."""

    cells: tuple[Cell, ...]
    rows: int
    columns: int
    caption: str = ""
    place: Place | None = None

    def grid(self) -> list[list[str]]:
        """The cells' texts by row and column; a cell that spans several places is read at each of them."""
        grid = [[""] * self.columns for _ in range(self.rows)]
        for cell in self.cells:
            for row in range(cell.row, min(cell.row + cell.row_span, self.rows)):
                for column in range(cell.column, min(cell.column + cell.column_span, self.columns)):
                    grid[row][column] = cell.text
        return grid

    def header_rows(self) -> int:
        """How many rows at the top consist of header cells."""
        plain = {cell.row for cell in self.cells if not cell.header}
        headed = {cell.row for cell in self.cells if cell.header}
        return sum(1 for _ in takewhile(lambda row: row in headed and row not in plain, range(self.rows)))


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture stands here; of it only the words that come with it are kept."""

    caption: str = ""
    place: Place | None = None


Block = Heading | Paragraph | ListItem | Code | Table | Picture


@dataclass(frozen=True, slots=True)
class Page:
    """A page, slide or sheet, counted from 1; its size in points, 0 where the format has none."""

    number: int
    width: float = 0
    height: float = 0
    scanned: bool = False
    """A picture of text: nothing on it can be read without recognising characters."""


@dataclass(frozen=True, slots=True)
class Document:
    """A converted document."""

    title: str
    blocks: tuple[Block, ...]
    pages: tuple[Page, ...] = ()
    page_kind: PageKind = "page"
    total_pages: int = 0
    """Pages of the whole file, when only some of them were converted; otherwise 0."""
    name: str = ""
    media_type: str = ""
    digest: str = ""
    """SHA-256 of the file, in hexadecimal."""
    tags: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    """What the file says of itself: author, language, dates."""
    warnings: tuple[str, ...] = ()
    """Sentences on what was lost, left out or could not be read."""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and all below it, subsections included: `blocks[start:end]`."""

    id: str
    title: str
    level: int
    page: int | None
    path: tuple[str, ...]
    """The titles from the top down to this section, itself included."""
    start: int
    end: int
    anchors: tuple[str, ...] = ()
    """The anchors of the titles in `path`, empty ones included."""

    @property
    def anchor(self) -> str:
        """What leads to this section within its page, or an empty string."""
        return self.anchors[-1] if self.anchors else ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a document to be found and read by itself."""

    id: str
    text: str
    path: tuple[str, ...]
    section: str
    first_page: int | None
    last_page: int | None
    tokens: int
    anchors: tuple[str, ...] = ()
    """The anchors of the titles in `path`, empty ones included: the chunk lies in each of these places."""

    @property
    def anchor(self) -> str:
        """What leads to its section within the page, or an empty string."""
        return self.anchors[-1] if self.anchors else ""


def table_of(
    rows: Sequence[Sequence[str]], *, header_rows: int = 1, caption: str = "", place: Place | None = None
) -> Table:
    """A plain table of rows of texts; short rows are as good as filled with empty cells."""
    cells = tuple(
        Cell(text, row, column, header=row < header_rows)
        for row, texts in enumerate(rows)
        for column, text in enumerate(texts)
    )
    return Table(cells, len(rows), max(map(len, rows), default=0), caption, place)


def list_sections(blocks: Sequence[Block]) -> list[Section]:
    """The sections in order; what stands before the first heading is a section without a title, of level 0."""
    headings = [(index, block) for index, block in enumerate(blocks) if is_section_heading(block)]
    first = headings[0][0] if headings else len(blocks)
    found = [Section("start", "", 0, get_page(blocks[0]), (), 0, first)] if first else []
    ends = _find_section_ends([heading.level for _, heading in headings], [index for index, _ in headings], len(blocks))
    ids = SectionIds()
    above: list[Heading] = []
    for (start, heading), end in zip(headings, ends, strict=True):
        above = [*(higher for higher in above if higher.level < heading.level), heading]
        path = tuple(higher.text for higher in above)
        anchors = tuple(higher.anchor for higher in above)
        id, page = ids.next(heading.text), get_page(heading)
        found.append(Section(id, heading.text, heading.level, page, path, start, end, anchors))
    return found


def is_section_heading(block: Block) -> TypeGuard[Heading]:
    """Whether a block is the heading of a section."""
    return isinstance(block, Heading) and not block.is_notice


def _find_section_ends(levels: Sequence[int], starts: Sequence[int], last: int) -> list[int]:
    """Where each section ends: at the next heading of its level or a higher one."""
    ends = [last] * len(levels)
    unfinished: list[int] = []
    for index, level in enumerate(levels):
        while unfinished and levels[unfinished[-1]] >= level:
            ends[unfinished.pop()] = starts[index]
        unfinished.append(index)
    return ends


class SectionIds:
    """Ids made of titles, so that an agent can tell what it asks for: `install`, `install-2`."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._seen: dict[str, int] = {"start": 1, **dict.fromkeys(taken, 1)}

    def next(self, title: str) -> str:
        """The id of the next section, which has this title."""
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
    """Lower-case words joined by hyphens, in any script, no longer than 60 characters."""
    return "-".join(re.findall(r"\w+", title.lower()))[:60].strip("-")


def get_page(block: Block) -> int | None:
    """The page that a block stands on, where its format has pages."""
    return block.place.page if block.place else None
