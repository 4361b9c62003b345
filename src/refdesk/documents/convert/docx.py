"""Word documents (DOCX), read from their XML: styles say what a paragraph is, numbering says which item of which list.

Headers, footers, comments, tables of contents and tracked deletions are left out; notes stand at the end of the section
that refers to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.convert.blocks import Blocks
from refdesk.documents.convert.docx_styles import (
    VALUE,
    ListPlace,
    Numbering,
    Role,
    Style,
    Styles,
    W,
    is_on,
    left_indent,
    level_of,
    numbering_of,
)
from refdesk.documents.convert.grids import MAX_COLUMNS, checked
from refdesk.documents.convert.omml import MATH, latex_of
from refdesk.documents.convert.package import RELATIONSHIP_ID, Package, Relationship, local_name, open_package
from refdesk.documents.convert.runs import Look, Runs, is_fixed_pitch
from refdesk.documents.convert.source import Source
from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Cell,
    Code,
    Document,
    Heading,
    ListItem,
    Paragraph,
    Picture,
    Table,
)
from refdesk.errors import CannotConvert

MEDIA_TYPE: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"

_COMPATIBILITY = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_DELETED = frozenset(f"{W}{name}" for name in ("del", "moveFrom", "pPr", "rPr", "sdtPr", "sectPr", "tblPr", "tcPr"))
_ALWAYS_PLAIN = Look()


def convert(source: Source) -> Document:
    """Convert a DOCX file."""
    package = open_package(source.data)
    main = package.main_part("word/document.xml")
    root = package.xml(main)
    body = root.find(f"{W}body") if root is not None else None
    if body is None:
        raise CannotConvert("The file is not a Word document: it has no text part; check what it is and send it again")
    reader = _Reader(_parts(package, main))
    reader.read(body)
    properties = package.properties()
    keywords = properties.pop("keywords", "")
    title = reader.title or properties.get("title", "") or _first_heading(reader.blocks) or PurePath(source.name).stem
    return Document(
        title=title,
        blocks=reader.blocks.done(),
        name=source.name,
        media_type=MEDIA_TYPE,
        tags=tags_of(keywords),
        properties=properties,
        warnings=("Macros in the file were left out.",) if package.has_macros else (),
    )


def tags_of(keywords: str) -> tuple[str, ...]:
    """Keywords as people write them into one field, between commas or semicolons."""
    words = (word.strip() for word in keywords.replace(";", ",").split(","))
    return tuple(dict.fromkeys(word for word in words if word))


def _first_heading(blocks: Blocks) -> str:
    return next((block.text for block in blocks.done() if isinstance(block, Heading)), "")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a document's text refers to."""

    styles: Styles
    numbering: Numbering
    relationships: Mapping[str, Relationship]
    notes: Mapping[str, Element]
    """Footnotes and endnotes by kind and id."""


def _parts(package: Package, main: str) -> _Parts:
    def part(kind: str) -> Element | None:
        name = package.related(main, kind)
        return package.xml(name) if name else None

    notes = {
        f"{kind}{note.get(f'{W}id')}": note
        for kind in ("footnote", "endnote")
        for note in (part(f"{kind}s") or ())
        if note.get(f"{W}type") in (None, "normal")
    }
    return _Parts(Styles(part("styles")), numbering_of(part("numbering")), package.relationships(main), notes)


class _Reader:
    """Reads a body from top to bottom; what is still to be read waits on a stack, so that nesting costs no recursion."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self.blocks = Blocks()
        self.title = ""
        self._notes: list[str] = []

    def read(self, body: Element) -> None:
        """Read all blocks."""
        waiting = list(reversed(body))
        while waiting:
            node = waiting.pop()
            if node.tag == f"{W}p":
                content = _Content(self._parts, self._notes)
                content.read(node)
                self._paragraph(node, content)
                waiting += (child for box in reversed(content.boxes) for child in reversed(box))
            elif node.tag == f"{W}tbl":
                waiting += self._table(node)
            elif node.tag == f"{W}sdt":
                waiting += reversed(_controlled(node))
            elif node.tag not in _DELETED:
                waiting += reversed(_alternative(node))
        self._flush_notes()

    def _paragraph(self, node: Element, content: _Content) -> None:
        properties = node.find(f"{W}pPr")
        style = self._style(properties)
        role = self._role(style, properties, content.runs)
        for alt in content.pictures:
            self.blocks.add(Picture(alt))
        if role == "contents":
            return
        if not content.runs.text():
            self.blocks.blank_line()
        elif role == "title":
            self._add_title(content.runs.one_line())
        elif role == "heading":
            self._add_heading(content.runs.one_line(), style, properties)
        elif role == "code":
            self.blocks.add(Code(content.runs.raw().rstrip()))
        else:
            self._running_text(role, style, properties, content.runs)

    def _style(self, properties: Element | None) -> Style:
        named = properties.find(f"{W}pStyle") if properties is not None else None
        return self._parts.styles.get(named.get(VALUE, "") if named is not None else self._parts.styles.default_id)

    def _role(self, style: Style, properties: Element | None, runs: Runs) -> Role:
        if style.role != "text":
            return style.role
        outline = properties.find(f"{W}outlineLvl") if properties is not None else None
        if outline is not None and level_of(outline.get(VALUE, "")):
            return "heading"
        set_as_code = style.fixed_pitch or runs.all_code()
        return "code" if set_as_code and not self._parts.styles.typewritten else "text"

    def _add_title(self, text: str) -> None:
        if self.title:
            self.blocks.add(Paragraph(text))
            return
        self.title = text
        self.blocks.add_title(text)

    def _add_heading(self, text: str, style: Style, properties: Element | None) -> None:
        self._flush_notes()
        outline = properties.find(f"{W}outlineLvl") if properties is not None else None
        level = style.level or (level_of(outline.get(VALUE, "")) if outline is not None else None) or 1
        place = self._list_place(style, properties)
        if place:
            self._parts.numbering.next(place)
            text = f"{self._parts.numbering.label(place)} {text}".strip()
        self.blocks.add(Heading(text, min(level, MAX_HEADING_LEVEL)))

    def _list_place(self, style: Style, properties: Element | None) -> ListPlace | None:
        """Where in which list a paragraph stands: what it says itself counts more than its style."""
        own = properties.find(f"{W}numPr") if properties is not None else None
        list_node = own.find(f"{W}numId") if own is not None else None
        depth_node = own.find(f"{W}ilvl") if own is not None else None
        list_id = list_node.get(VALUE, "") if list_node is not None else style.list_id
        depth = depth_node.get(VALUE, "") if depth_node is not None else ""
        if not list_id or list_id == "0":
            return None
        return ListPlace(list_id, min(int(depth), 8) if depth.isdecimal() else style.list_depth or 0)

    def _running_text(self, role: Role, style: Style, properties: Element | None, runs: Runs) -> None:
        text, spans = runs.text_and_spans()
        place = self._list_place(style, properties)
        if role == "caption":
            self.blocks.add(Paragraph(text, spans, "caption"))
        elif role == "quote":
            self.blocks.add(Paragraph(text, spans, "quote"))
        elif place:
            self._list_item(place, style, ListItem(text, spans))
        elif self.blocks.in_list and self._continues_item(properties):
            self.blocks.continue_item(text, spans)
        else:
            self._item_indent = 0
            self.blocks.add(Paragraph(text, spans))

    _item_indent = 0

    def _list_item(self, place: ListPlace, style: Style, item: ListItem) -> None:
        level = self._parts.numbering.level(place)
        if level and not level.marked:
            if self.blocks.in_list:
                self.blocks.continue_item(item.text, item.spans)
            else:
                self.blocks.add(Paragraph(item.text, item.spans))
            return
        self._item_indent = level.indent if level else 0
        number = self._parts.numbering.next(place)
        depth = max(place.depth, style.list_depth or 0)
        self.blocks.add(replace(item, depth=depth, ordered=bool(level and level.ordered), number=number))

    def _continues_item(self, properties: Element | None) -> bool:
        """A paragraph without a marker, indented as far as the item's text above it."""
        indent = left_indent(properties.find(f"{W}ind")) if properties is not None else 0
        return 0 < self._item_indent <= indent

    def _table(self, node: Element) -> Sequence[Element]:
        """Add a table; the content of one that has a single cell is given back, since it is only a frame."""
        rows = [_cells(row) for row in _rows(node)]
        if len(rows) == 1 and len(rows[0]) == 1:
            return list(reversed(rows[0][0].node))
        placed = list(_placed(rows))
        cells = tuple(
            Cell(self._cell_text(cell.node), cell.row, cell.column, tall, cell.span, cell.header)
            for cell, tall in zip(placed, _heights(placed), strict=True)
            if not cell.continued
        )
        if any(cell.text for cell in cells):
            columns = max(cell.column + cell.column_span for cell in cells)
            self.blocks.add(checked(Table(with_header(cells), len(rows), columns)))
        return ()

    def _cell_text(self, cell: Element) -> str:
        """All paragraphs of a cell, those of tables inside of it included, one to a line."""
        lines: list[str] = []
        waiting = list(reversed(cell))
        while waiting:
            node = waiting.pop()
            if node.tag == f"{W}p":
                content = _Content(self._parts, self._notes)
                content.read(node)
                lines.append(content.runs.text())
                waiting += (child for box in reversed(content.boxes) for child in reversed(box))
            elif node.tag == f"{W}sdt":
                waiting += reversed(_controlled(node))
            elif node.tag not in _DELETED:
                waiting += reversed(_alternative(node))
        return "\n".join(filter(None, lines))

    def _flush_notes(self) -> None:
        """Put the notes that were referred to since the last heading where they can be read together with it."""
        for number, note_id in enumerate(self._notes[self._flushed :], self._flushed + 1):
            text = self._cell_text(self._parts.notes[note_id])
            self.blocks.add(Paragraph(f"[{number}] {text}", role="footnote"))
        self._flushed = len(self._notes)

    _flushed = 0


def _controlled(node: Element) -> Sequence[Element]:
    """What a content control holds; nothing for a table of contents."""
    gallery = node.find(f"{W}sdtPr/{W}docPartObj/{W}docPartGallery")
    if gallery is not None and gallery.get(VALUE) == "Table of Contents":
        return ()
    content = node.find(f"{W}sdtContent")
    return list(content) if content is not None else ()


def _alternative(node: Element) -> Sequence[Element]:
    """The children of a node; of several versions of the same content, the first."""
    if node.tag != f"{_COMPATIBILITY}AlternateContent":
        return list(node)
    return list(node)[:1]


class _Content:
    """What stands inside of a paragraph: runs of text, pictures, text boxes."""

    def __init__(self, parts: _Parts, notes: list[str]) -> None:
        self._parts = parts
        self._notes = notes
        self.runs = Runs()
        self.pictures: list[str] = []
        self.boxes: list[Element] = []
        self._look = _ALWAYS_PLAIN
        self._fields: list[str] = []
        """The instructions of the fields that are open, and what they link to once their result begins."""
        self._links: list[str] = []

    def read(self, paragraph: Element) -> None:
        """Read all that the paragraph shows."""
        waiting: list[tuple[Element, str]] = [(child, "") for child in reversed(paragraph)]
        while waiting:
            node, link = waiting.pop()
            if node.tag == f"{W}r":
                self._run(node, link)
            elif node.tag in _DELETED:
                continue
            elif node.tag == f"{MATH}oMath":
                self.runs.add(f"${latex_of(node)}$")
            else:
                inner = self._target(node) or link
                waiting += ((child, inner) for child in reversed(self._children(node)))

    def _children(self, node: Element) -> Sequence[Element]:
        return _controlled(node) if node.tag == f"{W}sdt" else _alternative(node)

    def _target(self, node: Element) -> str:
        if node.tag != f"{W}hyperlink":
            return ""
        relationship = self._parts.relationships.get(node.get(RELATIONSHIP_ID, ""))
        return relationship.target if relationship and relationship.external else ""

    def _run(self, run: Element, link: str) -> None:
        properties = run.find(f"{W}rPr")
        if properties is not None and _is_hidden(properties):
            return
        look = self._look_of(properties, link or next((target for target in reversed(self._links) if target), ""))
        for node in run:
            text = _TEXTS.get(node.tag)
            if text is not None:
                self.runs.add(text, look)
            elif node.tag == f"{W}t":
                self.runs.add(node.text or "", look)
            else:
                self._special(node, look)

    def _look_of(self, properties: Element | None, link: str) -> Look:
        if properties is None:
            return Look(link=link) if link else _ALWAYS_PLAIN
        named = properties.find(f"{W}rStyle")
        style = self._parts.styles.get(named.get(VALUE, "")) if named is not None else Style()
        strong, emphasis, fonts = (properties.find(f"{W}{name}") for name in ("b", "i", "rFonts"))
        own_font = fonts.get(f"{W}ascii", "") if fonts is not None else ""
        code = is_fixed_pitch(own_font) if own_font else style.fixed_pitch or style.role == "code"
        return Look(
            strong=is_on(strong) if strong is not None else style.strong,
            emphasis=is_on(emphasis) if emphasis is not None else style.emphasis,
            code=code and not self._parts.styles.typewritten,
            link=link,
        )

    def _special(self, node: Element, look: Look) -> None:
        match local_name(node.tag):
            case "br":
                self.runs.add("" if node.get(f"{W}type") in ("page", "column") else "\n", look)
            case "sym":
                self.runs.add(_symbol(node), look)
            case "fldChar":
                self._field(node.get(f"{W}fldCharType", ""))
            case "instrText":
                if self._fields:
                    self._fields[-1] += node.text or ""
            case "footnoteReference" | "endnoteReference" as kind:
                self._note(kind.removesuffix("Reference") + node.get(f"{W}id", ""))
            case "drawing" | "pict" | "object" | "AlternateContent":
                self._drawing(node)

    def _field(self, kind: str) -> None:
        """A field is an instruction, then its result; that of a link is the text to click on."""
        if kind == "begin":
            self._fields.append("")
            self._links.append("")
        elif kind == "separate" and self._fields:
            self._links[-1] = _linked(self._fields[-1])
        elif kind == "end" and self._fields:
            self._fields.pop()
            self._links.pop()

    def _note(self, note_id: str) -> None:
        if note_id not in self._parts.notes:
            return
        if note_id not in self._notes:
            self._notes.append(note_id)
        self.runs.add(f"[{self._notes.index(note_id) + 1}]")

    def _drawing(self, drawing: Element) -> None:
        """A drawing holds a picture, or text boxes whose text belongs to the document."""
        alt, is_picture = "", False
        waiting = [drawing]
        while waiting:
            node = waiting.pop()
            name = local_name(node.tag)
            if name == "txbxContent":
                self.boxes.append(node)
                continue
            if name == "docPr" or (name == "shape" and not alt):
                alt = alt or node.get("descr") or node.get("title") or node.get("alt") or ""
            is_picture = is_picture or name in ("blip", "imagedata", "chart", "relIds")
            waiting += reversed(_alternative(node))
        if is_picture:
            self.pictures.append(" ".join(alt.split()))


_TEXTS: Mapping[str, str] = {
    f"{W}tab": "\t",
    f"{W}cr": "\n",
    f"{W}noBreakHyphen": "-",
    f"{W}softHyphen": "",
    f"{W}rPr": "",
}


def _is_hidden(properties: Element) -> bool:
    hidden = properties.find(f"{W}vanish")
    return hidden is not None and is_on(hidden)


def _symbol(node: Element) -> str:
    """A character of a symbol font, which Word moves into a private area; only plain ones can be read."""
    code = int(node.get(f"{W}char", "0") or "0", 16)
    return {0xF0B7: "•", 0xF0E0: "→", 0xF0FC: "✓", 0xF0A8: "☐", 0xF0FE: "☒"}.get(
        code, chr(code) if code < 0xE000 else ""
    )


def _linked(instruction: str) -> str:
    words = instruction.split('"')
    return words[1].strip() if words[0].strip() == "HYPERLINK" and len(words) > 1 else ""


@dataclass(frozen=True, slots=True)
class _TableCell:
    node: Element
    span: int
    continued: bool
    """Goes on with the cell above it."""
    header: bool
    row: int = 0
    column: int = 0


def _rows(table: Element) -> Iterator[Element]:
    """Rows, also those inside of content controls; a deleted row is left out."""
    waiting = list(reversed(table))
    while waiting:
        node = waiting.pop()
        if node.tag == f"{W}tr":
            if node.find(f"{W}trPr/{W}del") is None:
                yield node
        elif node.tag == f"{W}sdt":
            waiting += reversed(_controlled(node))
        elif node.tag in (f"{W}ins", f"{W}customXml"):
            waiting += reversed(node)


def _cells(row: Element) -> list[_TableCell]:
    header = row.find(f"{W}trPr/{W}tblHeader")
    is_header = header is not None and is_on(header)
    cells: list[_TableCell] = []
    waiting = list(reversed(row))
    while waiting:
        node = waiting.pop()
        if node.tag == f"{W}tc":
            cells.append(_cell(node, is_header))
        elif node.tag == f"{W}sdt":
            waiting += reversed(_controlled(node))
        elif node.tag == f"{W}customXml":
            waiting += reversed(node)
    skipped = row.find(f"{W}trPr/{W}gridBefore")
    offset = _number(skipped)
    return [replace(cell, column=offset) for cell in cells] if offset else cells


def _cell(node: Element, is_header: bool) -> _TableCell:
    span = node.find(f"{W}tcPr/{W}gridSpan")
    merge = node.find(f"{W}tcPr/{W}vMerge")
    continued = merge is not None and merge.get(VALUE, "continue") == "continue"
    return _TableCell(node, max(_number(span), 1), continued, is_header)


def _number(node: Element | None) -> int:
    value = node.get(VALUE, "") if node is not None else ""
    return min(int(value), MAX_COLUMNS) if value.isdecimal() and len(value) < 10 else 0


def _placed(rows: Sequence[Sequence[_TableCell]]) -> Iterator[_TableCell]:
    for row, cells in enumerate(rows):
        column = cells[0].column if cells else 0
        for cell in cells:
            yield replace(cell, row=row, column=column)
            column += cell.span


def _heights(cells: Sequence[_TableCell]) -> list[int]:
    """How many rows each cell spans: itself and the cells right below that continue it."""
    heights = [1] * len(cells)
    openings: dict[int, int] = {}
    for index, cell in enumerate(cells):
        if cell.continued and cell.column in openings:
            heights[openings[cell.column]] += 1
        else:
            openings[cell.column] = index
    return heights


def with_header(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """A table that names no header row has its first row for one."""
    if any(cell.header for cell in cells):
        return cells
    return tuple(replace(cell, header=True) if cell.row == 0 else cell for cell in cells)
