"""PowerPoint decks (PPTX): each slide is a page; its title a heading, its bullets list items, its notes a note.

Shapes are read as they stand on the slide, from top to bottom and in each row from left to right, the title first.

The deck's own title is a heading of level 1 and those of slides are of level 2. A hidden slide is converted like any
other, and a warning names it. What repeats on every slide (dates, footers, numbers) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.convert import opendocument
from refdesk.documents.convert.asked import pages_asked_for
from refdesk.documents.convert.blocks import Blocks
from refdesk.documents.convert.charts import CHART, chart_of
from refdesk.documents.convert.grids import MAX_COLUMNS, checked, with_header
from refdesk.documents.convert.omml import MATH, latex_of
from refdesk.documents.convert.other_office import convert_text
from refdesk.documents.convert.package import RELATIONSHIP_ID, Package, Relationship, kind_of, local_name, open_package
from refdesk.documents.convert.runs import PLAIN, Look, Runs, is_fixed_pitch
from refdesk.documents.convert.source import Source
from refdesk.documents.model import (
    Block,
    Box,
    Cell,
    Code,
    Document,
    Heading,
    ListItem,
    Page,
    Paragraph,
    Picture,
    Place,
    Table,
)
from refdesk.errors import CannotConvert

MEDIA_TYPE: Final = "application/vnd.openxmlformats-officedocument.presentationml.presentation"

A: Final = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
P: Final = "{http://schemas.openxmlformats.org/presentationml/2006/main}"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}"
_DIAGRAM_DATA = RELATIONSHIP_ID.removesuffix("id") + "dm"
_EMU_PER_POINT = 12_700
ROW_TOLERANCE_POINTS: Final = 12
"""Shapes whose tops are no farther apart than a line of text stand beside one another."""
_REPEATED = frozenset(("dt", "ftr", "hdr", "sldNum", "sldImg"))
_TITLES = frozenset(("title", "ctrTitle"))


def convert(source: Source) -> Document:
    """Convert a presentation, or the slides of it that were asked for."""
    kind = kind_of(source.data)
    if kind == "odp":
        return opendocument.convert_slides(source)
    if kind != "pptx":
        return convert_text(source)
    package = open_package(source.data)
    main = package.main_part("ppt/presentation.xml")
    root = package.xml(main)
    if root is None or local_name(root.tag) != "presentation":
        raise CannotConvert(
            "The file is not a presentation: it has no list of slides; check what it is and send it again"
        )
    names = list(_slide_names(package, main, root))
    wanted = pages_asked_for(source, len(names))
    deck = _Deck(package, _size(root))
    for done, number in enumerate(wanted):
        source.progress(done, len(wanted), f"slide {number}")
        deck.read(number, names[number - 1])
    properties, tags = package.properties()
    blocks = tuple(deck.blocks)
    return Document(
        title=properties.get("title") or _first_heading(blocks) or PurePath(source.name).stem,
        blocks=blocks,
        pages=tuple(Page(number, *deck.size) for number in wanted),
        page_kind="slide",
        total_pages=len(names) if len(wanted) < len(names) else 0,
        name=source.name,
        media_type=MEDIA_TYPE,
        tags=tags,
        properties=properties,
        warnings=tuple(_warnings(deck, package)),
    )


def _warnings(deck: _Deck, package: Package) -> Iterator[str]:
    if deck.hidden:
        yield f"Hidden in the presentation, but converted like the others: slide {', '.join(map(str, deck.hidden))}."
    if deck.missing:
        yield f"Not in the file although the presentation lists them: slide {', '.join(map(str, deck.missing))}."
    if package.has_macros:
        yield "Macros in the file were left out."


def _first_heading(blocks: Iterable[Block]) -> str:
    return next((block.text for block in blocks if isinstance(block, Heading)), "")


def _slide_names(package: Package, main: str, root: Element) -> Iterator[str]:
    relationships = package.relationships(main)
    for entry in root.iter(f"{P}sldId"):
        relationship = relationships.get(entry.get(RELATIONSHIP_ID, ""))
        yield relationship.target if relationship else ""


def _size(root: Element) -> tuple[float, float]:
    node = root.find(f"{P}sldSz")
    return (_points(node, "cx"), _points(node, "cy")) if node is not None else (0, 0)


def _points(node: Element, name: str) -> float:
    value = node.get(name, "0")
    return round(int(value) / _EMU_PER_POINT, 2) if value.lstrip("-").isdecimal() else 0


@dataclass(slots=True)
class _Deck:
    """The slides read so far."""

    package: Package
    size: tuple[float, float]
    blocks: list[Block] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    _layouts: dict[str, _Inherited] = field(default_factory=dict)

    def read(self, number: int, name: str) -> None:
        """Read a slide and the notes to it."""
        root = self.package.xml(name)
        if root is None:
            self.missing.append(number)
            return
        if root.get("show") in ("0", "false"):
            self.hidden.append(number)
        relationships = self.package.relationships(name)
        slide = _Slide(number, name, self.package, self._inherited(_named(relationships, "slideLayout")))
        slide.read(root)
        slide.read_notes(self.package.xml(_named(relationships, "notesSlide")))
        self.blocks += slide.blocks.done()

    def _inherited(self, layout: str) -> _Inherited:
        """Many slides share a layout, so that it is read once."""
        known = self._layouts.get(layout)
        if known is None:
            master = self.package.related(layout, "slideMaster") if layout in self.package.names else None
            roots = (self.package.xml(layout), self.package.xml(master) if master else None)
            known = self._layouts[layout] = _Inherited.of(*roots)
        return known


def _named(relationships: Mapping[str, Relationship], kind: str) -> str:
    return next((each.target for each in relationships.values() if each.kind == kind and not each.external), "")


@dataclass(frozen=True, slots=True)
class _Inherited:
    """What the layout and the master of a slide say of its placeholders."""

    layout: tuple[Element, ...]
    master: tuple[Element, ...]
    body_style: Element | None

    @classmethod
    def of(cls, layout: Element | None, master: Element | None) -> _Inherited:
        """Take both apart."""
        style = master.find(f"{P}txStyles/{P}bodyStyle") if master is not None else None
        return cls(_all_shapes(layout), _all_shapes(master), style)

    def box(self, placeholder: Element | None) -> Box | None:
        """Where the layout, or else the master, puts a placeholder."""
        if placeholder is None:
            return None
        kind, index = placeholder.get("type", "obj"), placeholder.get("idx")
        for shape in (*self.layout, *self.master):
            own = _placeholder(shape)
            same_index = index is not None and own is not None and own.get("idx") == index
            if own is not None and (same_index or own.get("type", "obj") == kind) and (box := _box(shape)):
                return box
        return None

    def list_styles(self, placeholder: Element | None) -> Iterator[Element]:
        """The list styles that a placeholder falls back to, nearest first."""
        if placeholder is None:
            return
        kind, index = placeholder.get("type", "obj"), placeholder.get("idx", "0")
        for shape in self.layout:
            own = _placeholder(shape)
            if own is not None and own.get("idx", "0") == index:
                yield from shape.findall(f"{P}txBody/{A}lstStyle")
                kind = own.get("type", kind)
        wanted = "body" if kind in ("obj", "body", "tbl", "chart", "dgm", "media", "clipArt") else kind
        for shape in self.master:
            own = _placeholder(shape)
            if own is not None and own.get("type", "obj") == wanted:
                yield from shape.findall(f"{P}txBody/{A}lstStyle")
        if wanted == "body" and self.body_style is not None:
            yield self.body_style


def _all_shapes(root: Element | None) -> tuple[Element, ...]:
    return tuple(root.iter(f"{P}sp")) if root is not None else ()


def _placeholder(shape: Element) -> Element | None:
    return shape.find(f"*/{P}nvPr/{P}ph")


class _Slide:
    """One slide."""

    def __init__(self, number: int, name: str, package: Package, inherited: _Inherited) -> None:
        self._number = number
        self._name = name
        self._package = package
        self._relationships = package.relationships(name)
        self._inherited = inherited
        self.blocks = Blocks()

    def read(self, root: Element) -> None:
        """Read all shapes."""
        tree = root.find(f"{P}cSld/{P}spTree")
        placed = [(self._box(node), node) for node in _alternatives(tree)] if tree is not None else []
        shapes = [shape for node in in_reading_order(placed) for shape in _shapes(node)]
        for shape in sorted(shapes, key=lambda shape: _kind(shape) not in _TITLES):
            self._shape(shape)

    def _box(self, node: Element) -> Box | None:
        """Where a shape or a group stands, be it by its layout."""
        return _box(node) or self._inherited.box(_placeholder(node))

    def read_notes(self, notes: Element | None) -> None:
        """What the speaker says to the slide."""
        shapes = notes.iter(f"{P}sp") if notes is not None else ()
        bodies = [shape.find(f"{P}txBody") for shape in shapes if _kind(shape) == "body"]
        lines = [self._runs(line).text() for body in bodies if body is not None for line in body.iter(f"{A}p")]
        text = "\n".join(filter(None, lines))
        if text:
            self.blocks.add(Paragraph(text, role="note", place=Place(self._number)))

    def _shape(self, shape: Element) -> None:
        place = Place(self._number, self._box(shape))
        name = local_name(shape.tag)
        if name == "pic":
            self.blocks.add(Picture(_alt(shape), place))
        elif name == "graphicFrame":
            self._frame(shape, place)
        elif _kind(shape) in _TITLES:
            self._title(shape, place)
        elif _kind(shape) not in _REPEATED:
            self._text(shape, place)

    def _title(self, shape: Element, place: Place) -> None:
        lines = [self._runs(line).one_line() for line in shape.iterfind(f"{P}txBody/{A}p")]
        text = " ".join(filter(None, lines))
        level = 1 if self._number == 1 and _kind(shape) == "ctrTitle" else 2
        if text:
            self.blocks.add(Heading(text, level, place))

    def _frame(self, frame: Element, place: Place) -> None:
        """A table, a diagram or a chart."""
        table = frame.find(f"{A}graphic/{A}graphicData/{A}tbl")
        diagram = frame.find(f"{A}graphic/{A}graphicData/{_DIAGRAM}relIds")
        chart = frame.find(f"{A}graphic/{A}graphicData/{CHART}")
        if table is not None:
            self._table(table, place)
        elif diagram is not None:
            self._diagram(diagram.get(_DIAGRAM_DATA, ""), place)
        else:
            drawn = chart_of(self._package, self._name, chart, place) if chart is not None else None
            self.blocks.add(drawn or Picture(_alt(frame), place))

    def _diagram(self, data_id: str, place: Place) -> None:
        """The words of a diagram stand in a part of their own."""
        relationship = self._relationships.get(data_id)
        root = self._package.xml(relationship.target) if relationship else None
        for point in root.iter(f"{_DIAGRAM}pt") if root is not None else ():
            text = " ".join(node.text or "" for node in point.iter(f"{A}t")).strip()
            if text:
                self.blocks.add(ListItem(text, place=place))

    def _table(self, table: Element, place: Place) -> None:
        properties = table.find(f"{A}tblPr")
        headed = properties is not None and properties.get("firstRow") in ("1", "true")
        rows = table.findall(f"{A}tr")
        cells = tuple(
            Cell(
                self._cell_text(node), row, column, _span(node, "rowSpan"), _span(node, "gridSpan"), headed and not row
            )
            for row, cells in enumerate(rows)
            for column, node in enumerate(cells.findall(f"{A}tc"))
            if not (node.get("hMerge") or node.get("vMerge"))
        )
        if any(cell.text for cell in cells):
            columns = max(cell.column + cell.column_span for cell in cells)
            self.blocks.add(checked(Table(with_header(cells), len(rows), columns, place=place)))

    def _cell_text(self, cell: Element) -> str:
        return "\n".join(filter(None, (self._runs(line).text() for line in cell.iter(f"{A}p"))))

    def _text(self, shape: Element, place: Place) -> None:
        body = shape.find(f"{P}txBody")
        if body is None:
            return
        styles = [*body.findall(f"{A}lstStyle"), *self._inherited.list_styles(_placeholder(shape))]
        numbers = _Numbers()
        for paragraph in body.findall(f"{A}p"):
            self._paragraph(paragraph, styles, numbers, place)

    def _paragraph(self, node: Element, styles: Sequence[Element], numbers: _Numbers, place: Place) -> None:
        runs = self._runs(node)
        text, spans = runs.text_and_spans()
        if not text:
            self.blocks.blank_line()
            return
        depth, bullet = _bullet(node, styles)
        if runs.all_code() and bullet is None:
            self.blocks.add(Code(runs.raw().rstrip(), place=place))
        elif bullet is None:
            self.blocks.add(Paragraph(text, spans, place=place))
        else:
            ordered = local_name(bullet.tag) == "buAutoNum"
            number = numbers.next(depth, bullet) if ordered else 1
            self.blocks.add(ListItem(text, spans, depth, ordered, number, place))

    def _runs(self, paragraph: Element) -> Runs:
        runs = Runs()
        for node in paragraph:
            name = local_name(node.tag)
            if name in ("r", "fld"):
                runs.add(node.findtext(f"{A}t", ""), self._look(node.find(f"{A}rPr")))
            elif name == "br":
                runs.add("\n", self._look(node.find(f"{A}rPr")))
            elif name in ("AlternateContent", "m"):
                runs.add("".join(f"${latex_of(formula)}$" for formula in node.iter(f"{MATH}oMath")))
        return runs

    def _look(self, properties: Element | None) -> Look:
        if properties is None:
            return PLAIN
        font, link = properties.find(f"{A}latin"), properties.find(f"{A}hlinkClick")
        relationship = self._relationships.get(link.get(RELATIONSHIP_ID, "")) if link is not None else None
        return Look(
            strong=properties.get("b") in ("1", "true"),
            emphasis=properties.get("i") in ("1", "true"),
            code=font is not None and is_fixed_pitch(font.get("typeface", "")),
            link=relationship.target if relationship and relationship.external else "",
        )


def in_reading_order(placed: Sequence[tuple[Box | None, Element]]) -> list[Element]:
    """From top to bottom, and from left to right what begins at about the same height."""
    entries: list[tuple[float, float, int, Element]] = []
    for at, (box, node) in enumerate(placed):
        left, top = (box[0], box[1]) if box else (entries[-1][1], entries[-1][0]) if entries else (0, 0)
        entries.append((top, left, at, node))
    rows: list[list[tuple[float, int, Element]]] = []
    height = 0.0
    for top, left, at, node in sorted(entries, key=lambda entry: (entry[0], entry[2])):
        if not rows or top - height > ROW_TOLERANCE_POINTS:
            rows.append([])
            height = top
        rows[-1].append((left, at, node))
    return [node for row in rows for _, _, node in sorted(row, key=lambda entry: entry[:2])]


def _alternatives(node: Element) -> Iterator[Element]:
    """The children of a node; of several versions of one, the first."""
    for child in node:
        if local_name(child.tag) == "AlternateContent":
            yield from (shape for version in list(child)[:1] for shape in version)
        else:
            yield child


def _shapes(node: Element) -> Iterator[Element]:
    """A shape, or all shapes of a group in their order."""
    waiting = [node]
    while waiting:
        shape = waiting.pop()
        name = local_name(shape.tag)
        if name in ("sp", "pic", "graphicFrame"):
            yield shape
        elif name == "grpSp":
            waiting += reversed(list(_alternatives(shape)))


def _kind(shape: Element) -> str:
    """A placeholder's kind; empty for a shape that is none."""
    placeholder = _placeholder(shape)
    return placeholder.get("type", "obj") if placeholder is not None else ""


def _alt(shape: Element) -> str:
    node = next((child for child in shape.iter() if local_name(child.tag) == "cNvPr"), None)
    return " ".join((node.get("descr") or node.get("title") or "").split()) if node is not None else ""


def _box(shape: Element) -> Box | None:
    """Where a shape stands, when it says so itself."""
    paths = (f"{P}spPr/{A}xfrm", f"{P}xfrm", f"{P}grpSpPr/{A}xfrm")
    frame = next((found for path in paths if (found := shape.find(path)) is not None), None)
    offset, extent = (frame.find(f"{A}{name}") if frame is not None else None for name in ("off", "ext"))
    if offset is None or extent is None:
        return None
    left, top = _points(offset, "x"), _points(offset, "y")
    return left, top, left + _points(extent, "cx"), top + _points(extent, "cy")


def _span(cell: Element, name: str) -> int:
    value = cell.get(name, "1")
    return max(min(int(value), MAX_COLUMNS), 1) if value.isdecimal() and len(value) < 10 else 1


def _bullet(paragraph: Element, styles: Sequence[Element]) -> tuple[int, Element | None]:
    """A paragraph's depth and its bullet; what is said nearest to the paragraph counts."""
    own = paragraph.find(f"{A}pPr")
    level = own.get("lvl", "0") if own is not None else "0"
    depth = min(int(level), 8) if level.isdecimal() else 0
    for properties in (own, *(style.find(f"{A}lvl{depth + 1}pPr") for style in styles)):
        for node in properties if properties is not None else ():
            if node.tag in _BULLETS:
                return depth, node
            # Layouts take the bullets away from whole placeholders, but what is set deeper is still below an item.
            if node.tag == f"{A}buNone" and (properties is own or depth == 0):
                return depth, None
    return depth, None


_BULLETS = frozenset(f"{A}{name}" for name in ("buChar", "buAutoNum", "buBlip"))


class _Numbers:
    """How far the numbered items of a shape have counted at each depth."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def next(self, depth: int, bullet: Element) -> int:
        """The number of the next item."""
        self._counts = {known: count for known, count in self._counts.items() if known <= depth}
        start = bullet.get("startAt", "1")
        first = int(start) if start.isdecimal() else 1
        self._counts[depth] = max(self._counts.get(depth, first - 1) + 1, first)
        return self._counts[depth]
