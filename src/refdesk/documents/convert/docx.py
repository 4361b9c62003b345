"""Word documents (DOCX), read from their XML: styles say what a paragraph is, numbering says which item of which list.

Headers, footers, comments, tables of contents and tracked deletions are left out; notes stand at the end of the section
that refers to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from string import hexdigits
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.convert.anydoc import convert_text
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
    used_styles,
)
from refdesk.documents.convert.grids import MAX_COLUMNS, checked, with_header
from refdesk.documents.convert.office_xml import RELATIONSHIP_ID, below, local_name, parse_xml, whole
from refdesk.documents.convert.omml import MATH, latex_of
from refdesk.documents.convert.ooxml import Package, Relationship, is_zip, open_package
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
    Span,
    Table,
)
from refdesk.errors import CannotConvert

MEDIA_TYPE: Final = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"

_COMPATIBILITY = "{mc}"
_UNSEEN = frozenset(
    f"{W}{name}"
    for name in "del moveFrom pPr rPr sdtPr sectPr tblPr tcPr bookmarkStart bookmarkEnd proofErr commentRangeStart "
    "commentRangeEnd".split()
)
"""What shows nothing: properties, marks, and what was deleted."""
_P = f"{W}p"
_TR, _TR_PR, _TC, _TC_PR = f"{W}tr", f"{W}trPr", f"{W}tc", f"{W}tcPr"
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
_BOLD, _ITALIC, _FONTS, _ASCII = f"{W}b", f"{W}i", f"{W}rFonts", f"{W}ascii"


def convert(source: Source) -> Document:
    """Convert a text: a DOCX file, or one of the formats that are left to a library."""
    package = open_package(source.data) if is_zip(source.data) else None
    if package is None or package.kind != "docx":
        return convert_text(source)
    main = package.main_part("word/document.xml")
    text = package.read(main)
    root = parse_xml(with_joined_runs(text), main) if text else None
    body = below(root, f"{W}body")
    if body is None:
        raise CannotConvert("The file is not a Word document: it has no text part; check what it is and send it again")
    reader = _Reader(_parts(package, main, text))
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


def with_joined_runs(data: bytes) -> bytes:
    """The text with plain runs as one that follow one another: many programs write a run for every word.

    Unless there are sections of raw text, every `<` begins a tag, so that what is looked for cannot be part of a text.
    """
    if b"<![CDATA[" in data:
        return data
    data = data.replace(_SPACED, b"<w:t>").replace(b"<w:rPr></w:rPr>", b"")
    texts = data.split(_NEXT_RUN)
    return b"".join([texts[0], *[text if _is_plain(before) else _NEXT_RUN + text for before, text in pairwise(texts)]])


def _is_plain(xml: bytes) -> bool:
    """Whether this ends within a run that has nothing but text."""
    tag = xml.rfind(b"<")
    return tag < 0 or xml[tag - 5 : tag + 5] == b"<w:r><w:t>"


_SPACED, _NEXT_RUN = b'<w:t xml:space="preserve">', b"</w:t></w:r><w:r><w:t>"


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
    looks: _Looks
    notes: Mapping[str, Element]
    """Footnotes and endnotes by kind and id."""


def _parts(package: Package, main: str, text: bytes) -> _Parts:
    def part(kind: str) -> Element | None:
        name = package.related(main, kind)
        return package.xml(name) if name else None

    styles_name = package.related(main, "styles")
    styles = Styles(parse_xml(used_styles(package.read(styles_name), text), styles_name) if styles_name else None)
    numbering, looks = Numbering(part("numbering")), _Looks(styles)
    notes = {
        f"{kind}{note.get(f'{W}id')}": note
        for kind in ("footnote", "endnote")
        for note in _children(part(f"{kind}s"))
        if note.get(f"{W}type") in (None, "normal")
    }
    return _Parts(styles, numbering, package, main, package.relationships(main), looks, notes)


def _children(node: Element | None) -> Sequence[Element]:
    return list(node) if node is not None else ()


_Said = Mapping[str, Element]
"""What a paragraph says of itself, by the names of its properties."""


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
            elif node.tag not in _UNSEEN:
                waiting += reversed(_alternative(node))
        self._tell_notes()

    def _paragraph(self, node: Element, content: _Content) -> None:
        properties = node.find(_P_PR)
        said = {child.tag: child for child in properties} if properties is not None else {}
        style = self._style(said)
        role = self._role(style, said)
        for drawn in content.drawn:
            self.blocks.add(drawn)
        if role == "contents":
            return
        if not content.runs.text():
            self.blocks.blank_line()
        elif role == "title":
            self._add_title(content.runs.one_line())
        elif role == "heading":
            self._add_heading(content.runs.one_line(), style, said)
        elif role == "code":
            self.blocks.add(Code(content.runs.raw().rstrip()))
        else:
            self._running_text(role, style, said, content.runs)

    def _style(self, said: _Said) -> Style:
        named = said.get(_P_STYLE)
        return self._parts.styles.get(named.get(VALUE, "") if named is not None else self._parts.styles.default_id)

    def _role(self, style: Style, said: _Said) -> Role:
        if style.role != "text":
            return style.role
        outline = said.get(_OUTLINE_LVL)
        if outline is not None and level_of(outline.get(VALUE, "")):
            return "heading"
        return "code" if style.fixed_pitch and not self._parts.styles.typewritten else "text"

    def _add_title(self, text: str) -> None:
        if self.title:
            self.blocks.add(Paragraph(text))
            return
        self.title = text
        self.blocks.add_title(Heading(text, 1))

    def _add_heading(self, text: str, style: Style, said: _Said) -> None:
        self._tell_notes()
        outline = said.get(_OUTLINE_LVL)
        level = style.level or (level_of(outline.get(VALUE, "")) if outline is not None else None) or 1
        place = self._list_place(style, said)
        if place:
            self._parts.numbering.next(place)
            text = f"{self._parts.numbering.label(place)} {text}".strip()
        self.blocks.add(Heading(text, min(level, MAX_HEADING_LEVEL)))

    def _list_place(self, style: Style, said: _Said) -> ListPlace | None:
        """Where in which list a paragraph stands: what it says itself counts more than its style."""
        own = said.get(_NUM_PR)
        list_node, depth_node = below(own, _NUM_ID), below(own, _ILVL)
        list_id = list_node.get(VALUE, "") if list_node is not None else style.list_id
        depth = depth_node.get(VALUE, "") if depth_node is not None else ""
        if not list_id or list_id == "0":
            return None
        return ListPlace(list_id, min(whole(depth, style.list_depth or 0), 8))

    def _running_text(self, role: Role, style: Style, said: _Said, runs: Runs) -> None:
        text, spans = runs.text_and_spans()
        place = self._list_place(style, said)
        if role == "caption":
            self.blocks.add(Paragraph(text, spans, "caption"))
        elif role == "quote":
            self.blocks.add(Paragraph(text, spans, "quote"))
        elif place:
            self._list_item(place, style, text, spans)
        elif runs.all_code() and style.role != "term":
            # A style for code within text says so; a font that was chosen by hand is more likely a command line.
            sure = " " in text and not runs.has_code_style()
            self.blocks.add_typed_code(runs.raw().rstrip(), Paragraph(text, spans), sure=sure)
        elif self.blocks.in_list and self._continues_item(said):
            self.blocks.continue_item(text, spans)
        else:
            self._item_indent = 0
            self.blocks.add(Paragraph(text, spans))

    def _list_item(self, place: ListPlace, style: Style, text: str, spans: tuple[Span, ...]) -> None:
        level = self._parts.numbering.level(place)
        if level and not level.marked:
            if self.blocks.in_list:
                self.blocks.continue_item(text, spans)
            else:
                self.blocks.add(Paragraph(text, spans))
            return
        self._item_indent = level.indent if level else 0
        number = self._parts.numbering.next(place)
        depth = max(place.depth, style.list_depth or 0)
        self.blocks.add(ListItem(text, spans, depth, bool(level and level.ordered), number))

    def _continues_item(self, said: _Said) -> bool:
        """A paragraph without a marker, indented as far as the item's text above it."""
        return 0 < self._item_indent <= left_indent(said.get(_IND))

    def _table(self, node: Element) -> Sequence[Element]:
        """Add a table; the content of one that has a single cell is given back, since it is only a frame."""
        rows = [_row(row) for row in _rows(node)]
        if len(rows) == 1 and len(rows[0].cells) == 1:
            return list(reversed(rows[0].cells[0].node))
        placed = list(_placed(rows))
        cells = tuple(
            Cell(self._cell_text(cell.node), row, column, tall, cell.span, rows[row].header)
            for (row, column, cell), tall in zip(placed, _heights(placed), strict=True)
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
            elif node.tag not in _UNSEEN:
                waiting += reversed(_alternative(node))
        return "\n".join(filter(None, lines))

    def _tell_notes(self) -> None:
        """Notes stand at the end of the section, where they can be read together with it."""
        for note in self._notes.tell(lambda note_id: self._cell_text(self._parts.notes[note_id])):
            self.blocks.add(note)


def _controlled(node: Element) -> Sequence[Element]:
    """What a content control holds; nothing for a table of contents."""
    gallery = below(node, f"{W}sdtPr", f"{W}docPartObj", f"{W}docPartGallery")
    if gallery is not None and gallery.get(VALUE) == "Table of Contents":
        return ()
    return _children(node.find(f"{W}sdtContent"))


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
        self.boxes: list[Element] = []
        self._fields: list[str] = []
        """The instructions of the fields that are open, and what they link to once their result begins."""
        self._links: list[str] = []

    def read(self, paragraph: Element) -> None:
        """Read all that the paragraph shows."""
        waiting: list[tuple[Iterator[Element], str]] = [(iter(paragraph), "")]
        while waiting:
            nodes, link = waiting[-1]
            for node in nodes:
                if node.tag == _R:
                    self._run(node, link)
                elif node.tag == _FORMULA:
                    self.runs.add(f"${latex_of(node)}$")
                elif node.tag not in _UNSEEN:
                    waiting.append((iter(self._children(node)), self._target(node) or link))
                    break
            else:
                waiting.pop()

    def _children(self, node: Element) -> Sequence[Element]:
        return _controlled(node) if node.tag == _SDT else _alternative(node)

    def _target(self, node: Element) -> str:
        if node.tag != _HYPERLINK:
            return ""
        relationship = self._parts.relationships.get(node.get(RELATIONSHIP_ID, ""))
        return relationship.target if relationship and relationship.external else ""

    def _run(self, run: Element, link: str) -> None:
        if self._links:
            link = link or next(filter(None, reversed(self._links)), "")
        look = Look(link=link) if link else PLAIN
        add = self.runs.add
        for node in run:
            if node.tag == _T:
                add(node.text or "", look)
            elif node.tag == _R_PR:
                own_look = self._parts.looks.of(node, link)
                if own_look is None:
                    return
                look = own_look
            elif node.tag in _TEXTS:
                add(_TEXTS[node.tag], look)
            else:
                self._special(node, look)

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
}


class _Looks:
    """How runs look. A document has few looks, so that each is worked out once."""

    def __init__(self, styles: Styles) -> None:
        self._styles = styles
        self._known: dict[tuple[str | None, bool | None, bool | None, str, str], Look] = {}

    def of(self, properties: Element, link: str) -> Look | None:
        """How a run with these properties looks; None when it is hidden."""
        style_id = strong = emphasis = None
        font = ""
        for node in properties:
            if node.tag == _R_STYLE:
                style_id = node.get(VALUE)
            elif node.tag == _BOLD:
                strong = is_on(node)
            elif node.tag == _ITALIC:
                emphasis = is_on(node)
            elif node.tag == _FONTS:
                font = node.get(_ASCII, "")
            elif node.tag == _VANISH and is_on(node):
                return None
        key = (style_id, strong, emphasis, font, link)
        if key not in self._known:
            self._known[key] = self._look(*key)
        return self._known[key]

    def _look(self, style_id: str | None, strong: bool | None, emphasis: bool | None, font: str, link: str) -> Look:
        """What a run says itself counts more than its style."""
        style = self._styles.get(style_id) if style_id is not None else PLAIN_STYLE
        by_style = style.fixed_pitch or style.role == "code"
        code = is_fixed_pitch(font) if font else by_style
        look = Look(
            strong=style.strong if strong is None else strong,
            emphasis=style.emphasis if emphasis is None else emphasis,
            code=code and not self._styles.typewritten,
            link=link,
            code_by_style=by_style,
        )
        return PLAIN if look == PLAIN else look


def _symbol(node: Element) -> str:
    """A character of a symbol font, which Word moves into a private area; only plain ones can be read."""
    code = int("0" + "".join(digit for digit in node.get(f"{W}char", "")[:4] if digit in hexdigits), 16)
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


@dataclass(frozen=True, slots=True)
class _TableRow:
    cells: Sequence[_TableCell]
    header: bool
    skipped: int
    """Columns that are empty before its first cell."""


def _rows(table: Element) -> Iterator[Element]:
    """Rows, also those inside of content controls; a deleted row is left out."""
    waiting = list(reversed(table))
    while waiting:
        node = waiting.pop()
        if node.tag == _TR:
            if below(node, _TR_PR, f"{W}del") is None:
                yield node
        elif node.tag == _SDT:
            waiting += reversed(_controlled(node))
        elif node.tag in (f"{W}ins", f"{W}customXml"):
            waiting += reversed(node)


def _row(row: Element) -> _TableRow:
    properties = row.find(_TR_PR)
    header, skipped = below(properties, f"{W}tblHeader"), below(properties, f"{W}gridBefore")
    cells: list[_TableCell] = []
    waiting = list(reversed(row))
    while waiting:
        node = waiting.pop()
        if node.tag == _TC:
            cells.append(_cell(node))
        elif node.tag == _SDT:
            waiting += reversed(_controlled(node))
        elif node.tag == f"{W}customXml":
            waiting += reversed(node)
    return _TableRow(cells, header is not None and is_on(header), _number(skipped))


def _cell(node: Element) -> _TableCell:
    properties = node.find(_TC_PR)
    span, merge = below(properties, f"{W}gridSpan"), below(properties, f"{W}vMerge")
    continued = merge is not None and merge.get(VALUE, "continue") == "continue"
    return _TableCell(node, max(_number(span), 1), continued)


def _number(node: Element | None) -> int:
    return min(whole(node.get(VALUE)), MAX_COLUMNS) if node is not None else 0


_Placed = tuple[int, int, _TableCell]
"""A cell with its row and its column."""


def _placed(rows: Sequence[_TableRow]) -> Iterator[_Placed]:
    for at, row in enumerate(rows):
        column = row.skipped
        for cell in row.cells:
            yield at, column, cell
            column += cell.span


def _heights(placed: Sequence[_Placed]) -> list[int]:
    """How many rows each cell spans: itself and the cells right below that continue it."""
    heights = [1] * len(placed)
    openings: dict[int, int] = {}
    for index, (_, column, cell) in enumerate(placed):
        if cell.continued and column in openings:
            heights[openings[column]] += 1
        else:
            openings[column] = index
    return heights
