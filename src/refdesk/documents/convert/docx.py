"""Word documents (DOCX), read from their XML: styles give the role of a paragraph, numbering its list item.

Headers, footers, comments, tables of contents and tracked deletions are left out. Notes follow the section that refers
to them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from string import hexdigits
from xml.etree.ElementTree import Element

from refdesk.documents.model import Cell, Code, Document, ListItem, Paragraph, Picture, Table
from refdesk.errors import CannotConvert

from .blocks import MAX_COLUMNS, PLAIN, BlockBuilder, NoteCollector, Runs, RunStyle
from .charts import read_chart
from .docx_styles import (
    DocxStyle,
    ListPosition,
    Numbering,
    Role,
    Styles,
    filter_used_styles,
    is_on,
    parse_outline_level,
    read_left_indent,
)
from .omml import to_latex
from .ooxml import RELATIONSHIP_ID, Package, find_path, open_package, parse_int, parse_xml, strip_namespace
from .source import SourceFile

_INVISIBLE = frozenset(
    f"{{w}}{name}"
    for name in "del moveFrom pPr rPr sdtPr sectPr tblPr tcPr bookmarkStart bookmarkEnd proofErr commentRangeStart "
    "commentRangeEnd".split()
)
"""Elements that display nothing: properties, markers and deletions."""

_SCRIPTS = {"superscript": "sup", "subscript": "sub"}


def convert(source: SourceFile) -> Document:
    """Convert a DOCX file."""
    package = open_package(source.data)
    main = package.find_main_part("word/document.xml")
    text = package.read(main)
    root = parse_xml(join_plain_runs(text), main) if text else None
    body = find_path(root, "{w}body")
    if body is None:
        raise CannotConvert("The file is not a Word document: it has no text part; check what it is and send it again")
    reader = _Reader(_Parts(package, main, text))
    reader.read(body)
    properties, tags = package.read_properties()
    blocks = reader.blocks.build()
    return Document(
        title=reader.title or source.choose_title(properties, blocks),
        blocks=blocks,
        tags=tags,
        properties=properties,
        warnings=tuple(package.warn_macros()),
    )


def join_plain_runs(data: bytes) -> bytes:
    """Join adjacent plain runs, since many programs write one for every word.

    Without CDATA sections every `<` starts a tag, so the searched patterns can't be part of a text.
    """
    if b"<![CDATA[" in data:
        return data
    data = data.replace(_SPACED, b"<w:t>").replace(b"<w:rPr></w:rPr>", b"")
    first, *rest = data.split(_NEXT_RUN)
    joined, before = [first], first
    for text in rest:
        # A run is plain if the XML before it ends within a run that has nothing but text.
        tag = before.rfind(b"<")
        if tag >= 0 and before[tag - 5 : tag + 5] != b"<w:r><w:t>":
            joined.append(_NEXT_RUN)
        joined.append(text)
        before = text
    return b"".join(joined)


_SPACED, _NEXT_RUN = b'<w:t xml:space="preserve">', b"</w:t></w:r><w:r><w:t>"


class _Parts:
    """Main part of a document, and the parts that it refers to."""

    def __init__(self, package: Package, name: str, text: bytes) -> None:
        self.package = package
        self.name = name
        styles = package.find_related(name, "styles")
        self.styles = Styles(parse_xml(filter_used_styles(package.read(styles), text), styles) if styles else None)
        self.numbering = Numbering(package.read_related(name, "numbering"))
        self.notes = {
            f"{kind}{note.get('{w}id')}": note
            for kind in ("footnote", "endnote")
            for root in (package.read_related(name, f"{kind}s"),)
            if root is not None
            for note in root
            if note.get("{w}type") in (None, "normal")
        }
        """Footnotes and endnotes by kind and id."""
        self.relationships = package.read_relationships(name)


_DirectProperties = Mapping[str, Element]
"""Direct formatting of a paragraph, by property name."""


class _Reader:
    """Reads a body from top to bottom, with a stack instead of recursion."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self.blocks = BlockBuilder()
        self.title = ""
        self._notes = NoteCollector()
        self._item_indent = 0
        """Text indent of the last list item."""

    def read(self, body: Element) -> None:
        for node, content in self._iter_paragraphs(body, self._add_table):
            self._add_paragraph(node, content)
        self._add_notes()

    def _iter_paragraphs(
        self, root: Element, open_table: Callable[[Element], Sequence[Element]]
    ) -> Iterator[tuple[Element, _Content]]:
        """Yield the paragraphs with their content; `open_table` returns the elements of a table to read as well."""
        pending = list(reversed(root))
        while pending:
            node = pending.pop()
            if node.tag == "{w}p":
                content = _Content(self._parts, self._notes)
                content.read(node)
                yield node, content
                pending += (child for box in reversed(content.boxes) for child in reversed(box))
            elif node.tag == "{w}tbl":
                pending += reversed(open_table(node))
            elif node.tag not in _INVISIBLE:
                pending += reversed(_list_children(node))

    def _add_paragraph(self, node: Element, content: _Content) -> None:
        properties = node.find("{w}pPr")
        direct = {child.tag: child for child in properties} if properties is not None else {}
        named = direct.get("{w}pStyle")
        style = self._parts.styles.get(named.get("{w}val", "") if named is not None else self._parts.styles.default_id)
        outline = direct.get("{w}outlineLvl")
        own_level = parse_outline_level(outline.get("{w}val", "")) if outline is not None else None
        role = style.role
        if role == "text" and own_level:
            role = "heading"
        elif role == "text" and style.fixed_pitch and not self._parts.styles.is_monospaced:
            role = "code"
        for drawn in content.drawn:
            self.blocks.add(drawn)
        if role == "contents":
            return
        text = content.runs.one_line()
        if not text:
            self.blocks.add_blank_line()
        elif role == "title" and self.title:
            self.blocks.add(Paragraph(text))
        elif role == "title":
            self.title = text
            self.blocks.add_title(text)
        elif role == "heading":
            self._add_notes()
            place = self._find_list_position(style, direct)
            if place:
                self._parts.numbering.next(place)
                text = f"{self._parts.numbering.format_label(place)} {text}".strip()
            self.blocks.add_heading(text, style.level or own_level or 1)
        elif role == "code":
            self.blocks.add(Code(content.runs.raw().rstrip()))
        else:
            self._add_text(role, style, direct, content.runs)

    def _find_list_position(self, style: DocxStyle, direct: _DirectProperties) -> ListPosition | None:
        """Return the list position of a paragraph; direct formatting takes precedence over the style."""
        own = direct.get("{w}numPr")
        list_node, depth_node = find_path(own, "{w}numId"), find_path(own, "{w}ilvl")
        list_id = list_node.get("{w}val", "") if list_node is not None else style.list_id
        depth = depth_node.get("{w}val", "") if depth_node is not None else ""
        if not list_id or list_id == "0":
            return None
        return ListPosition(list_id, min(parse_int(depth, style.list_depth or 0), 8))

    def _add_text(self, role: Role, style: DocxStyle, direct: _DirectProperties, runs: Runs) -> None:
        text, spans = runs.text_and_spans()
        place = self._find_list_position(style, direct)
        level = self._parts.numbering.level(place) if place else None
        if role in ("caption", "quote"):
            self.blocks.add(Paragraph(text, spans, "caption" if role == "caption" else "quote"))
        elif place and level and not level.marked:
            if self.blocks.is_in_list:
                self.blocks.continue_item(text, spans)
            else:
                self.blocks.add(Paragraph(text, spans))
        elif place:
            self._item_indent = level.indent if level else 0
            number = self._parts.numbering.next(place)
            depth = max(place.depth, style.list_depth or 0)
            self.blocks.add(ListItem(text, spans, depth, bool(level and level.ordered), number))
        elif runs.is_all_code() and style.role != "term":
            # A character style marks inline code; a font set by hand is more likely a command line.
            sure = " " in text and not runs.has_code_style()
            self.blocks.add_monospaced(runs.raw().rstrip(), Paragraph(text, spans), sure=sure)
        elif self.blocks.is_in_list and 0 < self._item_indent <= read_left_indent(direct.get("{w}ind")):
            # Without a marker, but indented like the item above it.
            self.blocks.continue_item(text, spans)
        else:
            self._item_indent = 0
            self.blocks.add(Paragraph(text, spans))

    def _add_table(self, node: Element) -> Sequence[Element]:
        """Add a table; the content of a single-cell table is returned, since that is only a frame."""
        rows = [(row.find("{w}trPr"), list(_iter_cells(row))) for row in _iter_rows(node)]
        if len(rows) == 1 and len(rows[0][1]) == 1:
            return list(rows[0][1][0])
        cells: list[Cell] = []
        openings: dict[int, int] = {}
        """Position of the last cell that begins in a column."""
        for at, (properties, nodes) in enumerate(rows):
            header = find_path(properties, "{w}tblHeader")
            is_header = header is not None and is_on(header)
            column = _read_number(find_path(properties, "{w}gridBefore"))
            for cell in nodes:
                merge = find_path(cell, "{w}tcPr", "{w}vMerge")
                span = max(_read_number(find_path(cell, "{w}tcPr", "{w}gridSpan")), 1)
                if merge is None or merge.get("{w}val", "continue") != "continue":
                    openings[column] = len(cells)
                    cells.append(Cell(self._read_cell_text(cell), at, column, 1, span, is_header))
                elif column in openings:
                    above = cells[openings[column]]
                    cells[openings[column]] = replace(above, row_span=above.row_span + 1)
                column += span
        self.blocks.add_table(tuple(cells), len(rows))
        return ()

    def _read_cell_text(self, cell: Element) -> str:
        """Join all paragraphs of a cell, nested tables included, one per line."""
        paragraphs = self._iter_paragraphs(cell, _list_children)
        return "\n".join(filter(None, (content.runs.text() for _, content in paragraphs)))

    def _add_notes(self) -> None:
        for note in self._notes.take(lambda note_id: self._read_cell_text(self._parts.notes[note_id])):
            self.blocks.add(note)


def _list_children(node: Element) -> Sequence[Element]:
    """Return the children of a node, the first of alternative versions, or the content of a content control.

    A table of contents has none.
    """
    if node.tag == "{w}sdt":
        gallery = find_path(node, "{w}sdtPr", "{w}docPartObj", "{w}docPartGallery")
        if gallery is not None and gallery.get("{w}val") == "Table of Contents":
            return ()
        return list(content) if (content := node.find("{w}sdtContent")) is not None else ()
    return list(node)[:1] if node.tag == "{mc}AlternateContent" else list(node)


class _Content:
    """Content of a paragraph: runs, pictures and text boxes."""

    def __init__(self, parts: _Parts, notes: NoteCollector) -> None:
        self._parts = parts
        self._notes = notes
        self.runs = Runs()
        self.drawn: list[Picture | Table] = []
        self.boxes: list[Element] = []
        self._fields: list[str] = []
        """Instructions of the open fields."""
        self._links: list[str] = []

    def read(self, paragraph: Element) -> None:
        pending: list[tuple[Iterator[Element], str]] = [(iter(paragraph), "")]
        while pending:
            nodes, link = pending[-1]
            for node in nodes:
                if node.tag == "{w}r":
                    self._read_run(node, link)
                elif node.tag == "{m}oMath":
                    self.runs.add(f"${to_latex(node)}$")
                elif node.tag not in _INVISIBLE:
                    is_link = node.tag == "{w}hyperlink"
                    linked = self._parts.relationships.get(node.get(RELATIONSHIP_ID, "")) if is_link else None
                    target = linked.target if linked and linked.external else ""
                    pending.append((iter(_list_children(node)), target or link))
                    break
            else:
                pending.pop()

    def _read_run(self, run: Element, link: str) -> None:
        if self._links:
            link = link or next(filter(None, reversed(self._links)), "")
        run_style = RunStyle(link=link) if link else PLAIN
        add = self.runs.add
        for node in run:
            if node.tag == "{w}t":
                add(node.text or "", run_style)
            elif node.tag == "{w}rPr":
                align = node.find("{w}vertAlign")
                if script := _SCRIPTS.get(align.get("{w}val", "")) if align is not None else None:
                    add = partial(self.runs.add_script, script)
                own_style = self._parts.styles.resolve_run(node, link)
                if own_style is None:
                    return
                run_style = own_style
            elif node.tag in _TEXTS:
                add(_TEXTS[node.tag], run_style)
            else:
                self._read_special(node, run_style)

    def _read_special(self, node: Element, run_style: RunStyle) -> None:
        match strip_namespace(node.tag):
            case "br":
                self.runs.add("" if node.get("{w}type") in ("page", "column") else "\n", run_style)
            case "sym":
                code = int("0" + "".join(digit for digit in node.get("{w}char", "")[:4] if digit in hexdigits), 16)
                self.runs.add(_SYMBOLS.get(code, chr(code) if code < 0xE000 else ""), run_style)
            case "fldChar":
                # A field is an instruction, then its result; that of a link is its text.
                mark = node.get("{w}fldCharType", "")
                if mark == "begin":
                    self._fields.append("")
                    self._links.append("")
                elif mark == "separate" and self._fields:
                    words = self._fields[-1].split('"')
                    self._links[-1] = words[1].strip() if words[0].strip() == "HYPERLINK" and len(words) > 1 else ""
                elif mark == "end" and self._fields:
                    self._fields.pop()
                    self._links.pop()
            case "instrText" if self._fields:
                self._fields[-1] += node.text or ""
            case "footnoteReference" | "endnoteReference" as kind:
                note_id = kind.removesuffix("Reference") + node.get("{w}id", "")
                if note_id in self._parts.notes:
                    self.runs.add(self._notes.cite(note_id))
            case "drawing" | "pict" | "object" | "AlternateContent":
                self._read_drawing(node)

    def _read_drawing(self, drawing: Element) -> None:
        """Read a drawing: a picture, a chart, or text boxes that belong to the document."""
        alt, is_picture = "", False
        chart: Element | None = None
        pending = [drawing]
        while pending:
            node = pending.pop()
            name = strip_namespace(node.tag)
            if name == "txbxContent":
                self.boxes.append(node)
                continue
            if name == "docPr" or (name == "shape" and not alt):
                alt = alt or node.get("descr") or node.get("title") or node.get("alt") or ""
            is_picture = is_picture or name in ("blip", "imagedata", "chart", "relIds")
            chart = node if node.tag == "{c}chart" else chart
            pending += reversed(list(node)[:1] if node.tag == "{mc}AlternateContent" else node)
        if is_picture:
            table = read_chart(self._parts.package, self._parts.name, chart) if chart is not None else None
            self.drawn.append(table or Picture(" ".join(alt.split())))


_TEXTS = {"{w}tab": "\t", "{w}cr": "\n", "{w}noBreakHyphen": "-", "{w}softHyphen": ""}
_SYMBOLS = {0xF0B7: "•", 0xF0E0: "→", 0xF0FC: "✓", 0xF0A8: "☐", 0xF0FE: "☒"}
"""Characters of symbol fonts, which Word maps to a private area."""


def _iter_rows(table: Element) -> Iterator[Element]:
    """Yield the rows, including those in content controls but not deleted ones."""
    rows = _iter_parts(table, "{w}tr", ("{w}sdt", "{w}ins", "{w}customXml"))
    return (row for row in rows if find_path(row, "{w}trPr", "{w}del") is None)


def _iter_cells(row: Element) -> Iterator[Element]:
    return _iter_parts(row, "{w}tc", ("{w}sdt", "{w}customXml"))


def _iter_parts(node: Element, tag: str, wrappers: Collection[str]) -> Iterator[Element]:
    """Yield the children with a tag, including those in wrappers."""
    pending = list(reversed(node))
    while pending:
        child = pending.pop()
        if child.tag == tag:
            yield child
        elif child.tag in wrappers:
            pending += reversed(_list_children(child))


def _read_number(node: Element | None) -> int:
    return min(parse_int(node.get("{w}val")), MAX_COLUMNS) if node is not None else 0
