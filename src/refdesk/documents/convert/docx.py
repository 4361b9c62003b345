"""Word documents (DOCX), read from their XML: styles say what a paragraph is, numbering says which item of which list.

Headers, footers, comments, tables of contents and tracked deletions are left out; notes stand at the end of the section
that refers to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.convert.blocks import Blocks, Notes
from refdesk.documents.convert.charts import CHART, chart_of
from refdesk.documents.convert.docx_styles import (
    PLAIN_STYLE,
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
    without_table_styles,
)
from refdesk.documents.convert.grids import MAX_COLUMNS, checked, with_header
from refdesk.documents.convert.omml import MATH, latex_of
from refdesk.documents.convert.other_office import convert_text
from refdesk.documents.convert.package import RELATIONSHIP_ID, Package, Relationship, kind_of, local_name, open_package
from refdesk.documents.convert.runs import PLAIN, Look, Runs, is_fixed_pitch
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
_P = f"{W}p"
_TBL = f"{W}tbl"
_SDT = f"{W}sdt"
_R = f"{W}r"
_T = f"{W}t"
_P_PR = f"{W}pPr"
_R_PR = f"{W}rPr"
_HYPERLINK = f"{W}hyperlink"
_VANISH = f"{W}vanish"
_R_STYLE = f"{W}rStyle"
_IND = f"{W}ind"
_OUTLINE_LVL = f"{W}outlineLvl"
_NUM_PR = f"{W}numPr"
_NUM_ID = f"{W}numId"
_ILVL = f"{W}ilvl"
_P_STYLE = f"{W}pStyle"
_FORMULA = f"{MATH}oMath"
_BOLD, _ITALIC, _FONTS = f"{W}b", f"{W}i", f"{W}rFonts"


def convert(source: Source) -> Document:
    """Convert a text: a DOCX file, or one of the formats that are left to a library."""
    if kind_of(source.data) != "docx":
        return convert_text(source)
    package = open_package(source.data)
    main = package.main_part("word/document.xml")
    root = package.xml(main)
    body = root.find(f"{W}body") if root is not None else None
    if body is None:
        raise CannotConvert("The file is not a Word document: it has no text part; check what it is and send it again")
    reader = _Reader(_parts(package, main))
    reader.read(body)
    properties, tags = package.properties()
    title = reader.title or properties.get("title", "") or _first_heading(reader.blocks) or PurePath(source.name).stem
    return Document(
        title=title,
        blocks=reader.blocks.done(),
        name=source.name,
        media_type=MEDIA_TYPE,
        tags=tags,
        properties=properties,
        warnings=("Macros in the file were left out.",) if package.has_macros else (),
    )


def _first_heading(blocks: Blocks) -> str:
    return next((block.text for block in blocks.done() if isinstance(block, Heading)), "")


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a document's text refers to."""

    styles: Styles
    numbering: Numbering
    package: Package
    name: str
    """The part that the text itself is."""
    relationships: Mapping[str, Relationship]
    notes: Mapping[str, Element]
    """Footnotes and endnotes by kind and id."""


def _parts(package: Package, main: str) -> _Parts:
    def part(kind: str, prune: Callable[[bytes], bytes] | None = None) -> Element | None:
        name = package.related(main, kind)
        return package.xml(name, prune=prune) if name else None

    notes = {
        f"{kind}{note.get(f'{W}id')}": note
        for kind in ("footnote", "endnote")
        for note in (part(f"{kind}s") or ())
        if note.get(f"{W}type") in (None, "normal")
    }
    styles, numbering = Styles(part("styles", without_table_styles)), numbering_of(part("numbering"))
    return _Parts(styles, numbering, package, main, package.relationships(main), notes)


class _Reader:
    """Reads a body from top to bottom; what is still to be read waits on a stack, so nesting needs no recursion."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self.blocks = Blocks()
        self.title = ""
        self._notes = Notes()
        self._item_indent = 0
        """How far the text of the last list item is indented."""

    def read(self, body: Element) -> None:
        """Read all blocks."""
        waiting = list(reversed(body))
        while waiting:
            node = waiting.pop()
            if node.tag == _P:
                content = _Content(self._parts, self._notes)
                content.read(node)
                self._paragraph(node, content)
                waiting += (child for box in reversed(content.boxes) for child in reversed(box))
            elif node.tag == _TBL:
                waiting += self._table(node)
            elif node.tag == _SDT:
                waiting += reversed(_controlled(node))
            elif node.tag not in _DELETED:
                waiting += reversed(_alternative(node))
        self._tell_notes()

    def _paragraph(self, node: Element, content: _Content) -> None:
        properties = node.find(_P_PR)
        style = self._style(properties)
        role = self._role(style, properties)
        for drawn in content.drawn:
            self.blocks.add(drawn)
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
            self._running_text(role, style, properties, content)

    def _style(self, properties: Element | None) -> Style:
        named = properties.find(_P_STYLE) if properties is not None else None
        return self._parts.styles.get(named.get(VALUE, "") if named is not None else self._parts.styles.default_id)

    def _role(self, style: Style, properties: Element | None) -> Role:
        if style.role != "text":
            return style.role
        outline = properties.find(_OUTLINE_LVL) if properties is not None else None
        if outline is not None and level_of(outline.get(VALUE, "")):
            return "heading"
        return "code" if style.fixed_pitch and not self._parts.styles.typewritten else "text"

    def _add_title(self, text: str) -> None:
        if self.title:
            self.blocks.add(Paragraph(text))
            return
        self.title = text
        self.blocks.add_title(Heading(text, 1))

    def _add_heading(self, text: str, style: Style, properties: Element | None) -> None:
        self._tell_notes()
        outline = properties.find(_OUTLINE_LVL) if properties is not None else None
        level = style.level or (level_of(outline.get(VALUE, "")) if outline is not None else None) or 1
        place = self._list_place(style, properties)
        if place:
            self._parts.numbering.next(place)
            text = f"{self._parts.numbering.label(place)} {text}".strip()
        self.blocks.add(Heading(text, min(level, MAX_HEADING_LEVEL)))

    def _list_place(self, style: Style, properties: Element | None) -> ListPlace | None:
        """Where in which list a paragraph stands: what it says itself counts more than its style."""
        own = properties.find(_NUM_PR) if properties is not None else None
        list_node = own.find(_NUM_ID) if own is not None else None
        depth_node = own.find(_ILVL) if own is not None else None
        list_id = list_node.get(VALUE, "") if list_node is not None else style.list_id
        depth = depth_node.get(VALUE, "") if depth_node is not None else ""
        if not list_id or list_id == "0":
            return None
        return ListPlace(list_id, min(int(depth), 8) if depth.isdecimal() else style.list_depth or 0)

    def _running_text(self, role: Role, style: Style, properties: Element | None, content: _Content) -> None:
        runs = content.runs
        text, spans = runs.text_and_spans()
        place = self._list_place(style, properties)
        if role == "caption":
            self.blocks.add(Paragraph(text, spans, "caption"))
        elif role == "quote":
            self.blocks.add(Paragraph(text, spans, "quote"))
        elif place:
            self._list_item(place, style, ListItem(text, spans))
        elif runs.all_code() and style.role != "term":
            # A style for code within text says so; a font that was chosen by hand is more likely a command line.
            sure = not content.has_code_style and " " in text
            self.blocks.add_typed_code(runs.raw().rstrip(), Paragraph(text, spans), sure=sure)
        elif self.blocks.in_list and self._continues_item(properties):
            self.blocks.continue_item(text, spans)
        else:
            self._item_indent = 0
            self.blocks.add(Paragraph(text, spans))

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
        indent = left_indent(properties.find(_IND)) if properties is not None else 0
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
            if node.tag == _P:
                content = _Content(self._parts, self._notes)
                content.read(node)
                lines.append(content.runs.text())
                waiting += (child for box in reversed(content.boxes) for child in reversed(box))
            elif node.tag == _SDT:
                waiting += reversed(_controlled(node))
            elif node.tag not in _DELETED:
                waiting += reversed(_alternative(node))
        return "\n".join(filter(None, lines))

    def _tell_notes(self) -> None:
        """Notes stand at the end of the section, where they can be read together with it."""
        for note in self._notes.tell(lambda note_id: self._cell_text(self._parts.notes[note_id])):
            self.blocks.add(note)


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

    def __init__(self, parts: _Parts, notes: Notes) -> None:
        self._parts = parts
        self._notes = notes
        self.runs = Runs()
        self.drawn: list[Picture | Table] = []
        self.has_code_style = False
        self.boxes: list[Element] = []
        self._fields: list[str] = []
        """The instructions of the fields that are open, and what they link to once their result begins."""
        self._links: list[str] = []

    def read(self, paragraph: Element) -> None:
        """Read all that the paragraph shows."""
        waiting: list[tuple[Element, str]] = [(child, "") for child in reversed(paragraph)]
        while waiting:
            node, link = waiting.pop()
            if node.tag == _R:
                self._run(node, link)
            elif node.tag in _DELETED:
                continue
            elif node.tag == _FORMULA:
                self.runs.add(f"${latex_of(node)}$")
            else:
                inner = self._target(node) or link
                waiting += ((child, inner) for child in reversed(self._children(node)))

    def _children(self, node: Element) -> Sequence[Element]:
        return _controlled(node) if node.tag == _SDT else _alternative(node)

    def _target(self, node: Element) -> str:
        if node.tag != _HYPERLINK:
            return ""
        relationship = self._parts.relationships.get(node.get(RELATIONSHIP_ID, ""))
        return relationship.target if relationship and relationship.external else ""

    def _run(self, run: Element, link: str) -> None:
        if len(run) == 1 and run[0].tag == _T and not link and not self._links:
            self.runs.add(run[0].text or "")  # what most runs are
            return
        properties = run.find(_R_PR)
        if properties is not None and _is_hidden(properties):
            return
        look = self._look_of(properties, link or next((target for target in reversed(self._links) if target), ""))
        for node in run:
            text = _TEXTS.get(node.tag)
            if text is not None:
                self.runs.add(text, look)
            elif node.tag == _T:
                self.runs.add(node.text or "", look)
            else:
                self._special(node, look)

    def _look_of(self, properties: Element | None, link: str) -> Look:
        if properties is None:
            return Look(link=link) if link else PLAIN
        named = properties.find(_R_STYLE)
        style = self._parts.styles.get(named.get(VALUE, "")) if named is not None else PLAIN_STYLE
        strong, emphasis, fonts = (properties.find(name) for name in (_BOLD, _ITALIC, _FONTS))
        own_font = fonts.get(f"{W}ascii", "") if fonts is not None else ""
        styled = style.fixed_pitch or style.role == "code"
        self.has_code_style = self.has_code_style or styled
        code = is_fixed_pitch(own_font) if own_font else styled
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
        if note_id in self._parts.notes:
            self.runs.add(self._notes.cite(note_id))

    def _drawing(self, drawing: Element) -> None:
        """A drawing holds a picture, or text boxes whose text belongs to the document."""
        alt, is_picture = "", False
        chart: Element | None = None
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
            chart = node if node.tag == CHART else chart
            waiting += reversed(_alternative(node))
        if is_picture:
            table = chart_of(self._parts.package, self._parts.name, chart) if chart is not None else None
            self.drawn.append(table or Picture(" ".join(alt.split())))


_TEXTS: Mapping[str, str] = {
    f"{W}tab": "\t",
    f"{W}cr": "\n",
    f"{W}noBreakHyphen": "-",
    f"{W}softHyphen": "",
    _R_PR: "",
}


def _is_hidden(properties: Element) -> bool:
    hidden = properties.find(_VANISH)
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
        elif node.tag == _SDT:
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
        elif node.tag == _SDT:
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
