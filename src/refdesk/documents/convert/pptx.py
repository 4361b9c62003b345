"""PowerPoint decks (PPTX): each slide is a page with a heading, list items and a note.

Shapes are read from top to bottom and left to right, the title first. The deck's title is a heading of level 1, those
of slides have level 2. Hidden slides are converted, with a warning. Repeated placeholders (dates, footers, numbers) are
left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.model import Block, Box, Cell, Code, Document, Heading, ListItem, Paragraph, Picture, Place
from refdesk.errors import CannotConvert

from .blocks import MAX_COLUMNS, PLAIN, BlockBuilder, Runs, RunStyle, is_fixed_pitch
from .charts import read_chart
from .omml import to_latex
from .ooxml import RELATIONSHIP_ID, Package, find_path, open_package, parse_int, strip_namespace
from .source import SourceFile

_EMU_PER_POINT = 12_700
ROW_TOLERANCE_POINTS: Final = 12
"""Shapes whose tops differ by at most a line of text are in one row."""
_PLACEHOLDER = ("{p}nvPr", "{p}ph")
_FRAME = ("{p}spPr", "{a}xfrm")
_OTHER_FRAMES = {"{p}graphicFrame": ("{p}xfrm",), "{p}grpSp": ("{p}grpSpPr", "{a}xfrm")}
"""Path to the position of a shape, by tag."""
_REPEATED = frozenset(("dt", "ftr", "hdr", "sldNum", "sldImg"))
_TITLES = frozenset(("title", "ctrTitle"))


def convert(source: SourceFile) -> Document:
    """Convert the selected slides of a presentation."""
    package = open_package(source.data)
    main = package.find_main_part("ppt/presentation.xml")
    root = package.read_xml(main)
    if root is None or strip_namespace(root.tag) != "presentation":
        raise CannotConvert(
            "The file is not a presentation: it has no list of slides; check what it is and send it again"
        )
    names = _list_slides(package, main, root)
    wanted = source.select_pages(len(names))
    blocks: list[Block] = []
    hidden: list[int] = []
    missing: list[int] = []

    @cache
    def read_layout(name: str) -> _LayoutDefaults:
        """Read a layout, which many slides share."""
        return _LayoutDefaults(package.read_xml(name), package.read_related(name, "slideMaster") if name else None)

    for done, number in enumerate(wanted):
        source.progress(done, len(wanted), f"slide {number}")
        name = names[number - 1]
        slide_root = package.read_xml(name)
        if slide_root is None:
            missing.append(number)
            continue
        if slide_root.get("show") in ("0", "false"):
            hidden.append(number)
        slide = _Slide(number, name, package, read_layout(package.find_related(name, "slideLayout") or ""))
        slide.read(slide_root)
        slide.read_notes(package.read_related(name, "notesSlide"))
        blocks += slide.blocks.build()
    warnings = [
        f"{sentence}: slide {', '.join(map(str, numbers))}."
        for sentence, numbers in (
            ("Hidden in the presentation, but converted like the others", hidden),
            ("Not in the file although the presentation lists them", missing),
        )
        if numbers
    ]
    warnings += package.warn_macros()
    node = root.find("{p}sldSz")
    size = (_to_points(node, "cx"), _to_points(node, "cy")) if node is not None else (0, 0)
    return source.build_document("slide", len(names), blocks, *package.read_properties(), size=size, warnings=warnings)


def _list_slides(package: Package, main: str, root: Element) -> list[str]:
    """Return the part names of the slides; empty for one that is missing or listed twice."""
    relationships = package.read_relationships(main)
    names: list[str] = []
    listed: set[str] = set()
    for entry in root.iter("{p}sldId"):
        relationship = relationships.get(entry.get(RELATIONSHIP_ID, ""))
        name = relationship.target if relationship else ""
        names.append("" if name in listed else name)
        listed.add(name)
    return names


def _to_points(node: Element, name: str) -> float:
    value = node.get(name, "0")
    emu = parse_int(value.removeprefix("-"))
    return round((-emu if value.startswith("-") else emu) / _EMU_PER_POINT, 2)


class _LayoutDefaults:
    """Placeholder defaults from a slide's layout and master, by index and kind."""

    def __init__(self, layout: Element | None, master: Element | None) -> None:
        self._boxes: dict[tuple[str, str], tuple[int, Box]] = {}
        """By attribute and value, with a rank: the first definition counts, and the layout before the master."""
        self._of_layout: dict[str, tuple[str | None, Element | None]] = {}
        """Kind and list style of a placeholder, by index."""
        self._of_master: dict[str, Element | None] = {}
        """List styles by placeholder kind."""
        self._body_style = find_path(master, "{p}txStyles", "{p}bodyStyle")
        for shape, own in _iter_placeholders(layout):
            style = find_path(shape, "{p}txBody", "{a}lstStyle")
            self._of_layout.setdefault(own.get("idx", "0"), (own.get("type"), style))
            self._add_box(shape, own)
        for shape, own in _iter_placeholders(master):
            self._of_master.setdefault(own.get("type", "obj"), find_path(shape, "{p}txBody", "{a}lstStyle"))
            self._add_box(shape, own)

    def _add_box(self, shape: Element, own: Element) -> None:
        if box := _read_box(shape):
            ranked = (len(self._boxes), box)
            self._boxes.setdefault(("type", own.get("type", "obj")), ranked)
            self._boxes.setdefault(("idx", own.get("idx", "")), ranked)

    def find_box(self, placeholder: Element | None) -> Box | None:
        """Return the position of a placeholder in the layout or master."""
        if placeholder is None:
            return None
        same = ("type", placeholder.get("type", "obj")), ("idx", placeholder.get("idx", "none"))
        found = [self._boxes[key] for key in same if key in self._boxes]
        return min(found)[1] if found else None

    def iter_list_styles(self, placeholder: Element | None) -> Iterator[Element]:
        """Yield the inherited list styles of a placeholder, nearest first."""
        if placeholder is None:
            return
        known, style = self._of_layout.get(placeholder.get("idx", "0"), (None, None))
        if style is not None:
            yield style
        wanted = known or placeholder.get("type") or "obj"
        if wanted in ("obj", "tbl", "chart", "dgm", "media", "clipArt"):
            wanted = "body"
        style = self._of_master.get(wanted)
        if style is not None:
            yield style
        if wanted == "body" and self._body_style is not None:
            yield self._body_style


def _iter_placeholders(root: Element | None) -> Iterator[tuple[Element, Element]]:
    for shape in root.iter("{p}sp") if root is not None else ():
        placeholder = _find_placeholder(shape)
        if placeholder is not None:
            yield shape, placeholder


def _find_placeholder(shape: Element) -> Element | None:
    return find_path(shape[0], *_PLACEHOLDER) if len(shape) else None


class _Slide:
    def __init__(self, number: int, name: str, package: Package, defaults: _LayoutDefaults) -> None:
        self._number = number
        self._name = name
        self._package = package
        self._relationships = package.read_relationships(name)
        self._defaults = defaults
        self.blocks = BlockBuilder()

    def read(self, root: Element) -> None:
        tree = find_path(root, "{p}cSld", "{p}spTree")
        placed = [(self._find_box(node), node) for node in _iter_children(tree)] if tree is not None else []
        shapes = [shape for node in sort_in_reading_order(placed) for shape in _iter_shapes(node)]
        kinds = [(shape, _get_kind(shape)) for shape in shapes]
        for shape, kind in sorted(kinds, key=lambda pair: pair[1] not in _TITLES):
            self._add_shape(shape, kind)

    def _find_box(self, node: Element) -> Box | None:
        """Return the position of a shape or group, by its layout if necessary."""
        return _read_box(node) or self._defaults.find_box(_find_placeholder(node))

    def read_notes(self, notes: Element | None) -> None:
        shapes = notes.iter("{p}sp") if notes is not None else ()
        bodies = [shape.find("{p}txBody") for shape in shapes if _get_kind(shape) == "body"]
        lines = [self._read_runs(line).text() for body in bodies if body is not None for line in body.iter("{a}p")]
        if text := "\n".join(filter(None, lines)):
            self.blocks.add(Paragraph(text, role="note", place=Place(self._number)))

    def _add_shape(self, shape: Element, kind: str) -> None:
        place = Place(self._number, self._find_box(shape))
        name = strip_namespace(shape.tag)
        if name == "pic":
            self.blocks.add(Picture(_read_alt_text(shape), place))
        elif name == "graphicFrame":
            self._add_frame(shape, place)
        elif kind in _TITLES:
            body = shape.find("{p}txBody")
            lines = [self._read_runs(line).one_line() for line in body.iterfind("{a}p")] if body is not None else []
            text = " ".join(filter(None, lines))
            level = 1 if self._number == 1 and kind == "ctrTitle" else 2
            if text:
                self.blocks.add(Heading(text, level, place))
        elif kind not in _REPEATED:
            self._add_text(shape, place)

    def _add_frame(self, frame: Element, place: Place) -> None:
        data = find_path(frame, "{a}graphic", "{a}graphicData")
        table, diagram, chart = (find_path(data, name) for name in ("{a}tbl", "{dgm}relIds", "{c}chart"))
        if table is not None:
            self._add_table(table, place)
        elif diagram is not None:
            # The texts of a diagram are in a part of their own.
            relationship = self._relationships.get(diagram.get("{r}dm", ""))
            root = self._package.read_xml(relationship.target) if relationship else None
            for point in root.iter("{dgm}pt") if root is not None else ():
                text = " ".join(node.text or "" for node in point.iter("{a}t")).strip()
                if text:
                    self.blocks.add(ListItem(text, place=place))
        else:
            drawn = read_chart(self._package, self._name, chart, place) if chart is not None else None
            self.blocks.add(drawn or Picture(_read_alt_text(frame), place))

    def _add_table(self, table: Element, place: Place) -> None:
        properties = table.find("{a}tblPr")
        headed = properties is not None and properties.get("firstRow") in ("1", "true")
        rows = table.findall("{a}tr")
        cells = tuple(
            Cell(
                "\n".join(filter(None, (self._read_runs(line).text() for line in node.iter("{a}p")))),
                row,
                column,
                _read_span(node, "rowSpan"),
                _read_span(node, "gridSpan"),
                headed and not row,
            )
            for row, cells in enumerate(rows)
            for column, node in enumerate(cells.findall("{a}tc"))
            if not (node.get("hMerge") or node.get("vMerge"))
        )
        self.blocks.add_table(cells, len(rows), place)

    def _add_text(self, shape: Element, place: Place) -> None:
        body = shape.find("{p}txBody")
        if body is None:
            return
        styles = [*body.findall("{a}lstStyle"), *self._defaults.iter_list_styles(_find_placeholder(shape))]
        counts: dict[int, int] = {}
        for paragraph in body.findall("{a}p"):
            runs = self._read_runs(paragraph)
            text, spans = runs.text_and_spans()
            depth, bullet = _find_bullet(paragraph, styles)
            if not text:
                self.blocks.add_blank_line()
            elif runs.is_all_code() and bullet is None:
                self.blocks.add(Code(runs.raw().rstrip(), place=place))
            elif bullet is None:
                self.blocks.add(Paragraph(text, spans, place=place))
            elif strip_namespace(bullet.tag) == "buAutoNum":
                counts = {known: count for known, count in counts.items() if known <= depth}
                first = parse_int(bullet.get("startAt"), 1)
                counts[depth] = max(counts.get(depth, first - 1) + 1, first)
                self.blocks.add(ListItem(text, spans, depth, ordered=True, number=counts[depth], place=place))
            else:
                self.blocks.add(ListItem(text, spans, depth, place=place))

    def _read_runs(self, paragraph: Element) -> Runs:
        runs = Runs()
        for node in paragraph:
            if node.tag in ("{a}r", "{a}fld"):
                runs.add(node.findtext("{a}t", ""), self._read_style(node.find("{a}rPr")))
            elif node.tag == "{a}br":
                runs.add("\n", self._read_style(node.find("{a}rPr")))
            elif strip_namespace(node.tag) in ("AlternateContent", "m"):
                runs.add("".join(f"${to_latex(formula)}$" for formula in node.iter("{m}oMath")))
        return runs

    def _read_style(self, properties: Element | None) -> RunStyle:
        if properties is None:
            return PLAIN
        font, clicked = properties.find("{a}latin"), properties.find("{a}hlinkClick")
        relationship = self._relationships.get(clicked.get(RELATIONSHIP_ID, "")) if clicked is not None else None
        link = relationship.target if relationship and relationship.external else ""
        strong, emphasis = properties.get("b") in ("1", "true"), properties.get("i") in ("1", "true")
        code = font is not None and is_fixed_pitch(font.get("typeface", ""))
        return RunStyle(strong, emphasis, code, link) if strong or emphasis or code or link else PLAIN


def sort_in_reading_order(placed: Sequence[tuple[Box | None, Element]]) -> list[Element]:
    """Sort shapes from top to bottom, and from left to right at about the same height."""
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


def _iter_children(node: Element) -> Iterator[Element]:
    """Yield the children of a node; the first of alternative versions."""
    for child in node:
        if strip_namespace(child.tag) == "AlternateContent":
            yield from (shape for version in list(child)[:1] for shape in version)
        else:
            yield child


def _iter_shapes(node: Element) -> Iterator[Element]:
    """Yield a shape, or all shapes of a group in order."""
    pending = [node]
    while pending:
        shape = pending.pop()
        name = strip_namespace(shape.tag)
        if name in ("sp", "pic", "graphicFrame"):
            yield shape
        elif name == "grpSp":
            pending += reversed(list(_iter_children(shape)))


def _get_kind(shape: Element) -> str:
    """Return the placeholder kind; empty for other shapes."""
    placeholder = _find_placeholder(shape)
    return placeholder.get("type", "obj") if placeholder is not None else ""


def _read_alt_text(shape: Element) -> str:
    node = next((child for child in shape.iter() if strip_namespace(child.tag) == "cNvPr"), None)
    return " ".join((node.get("descr") or node.get("title") or "").split()) if node is not None else ""


def _read_box(shape: Element) -> Box | None:
    frame = find_path(shape, *_OTHER_FRAMES.get(shape.tag, _FRAME))
    offset, extent = find_path(frame, "{a}off"), find_path(frame, "{a}ext")
    if offset is None or extent is None:
        return None
    left, top = _to_points(offset, "x"), _to_points(offset, "y")
    return left, top, left + _to_points(extent, "cx"), top + _to_points(extent, "cy")


def _read_span(cell: Element, name: str) -> int:
    return max(min(parse_int(cell.get(name)), MAX_COLUMNS), 1)


def _find_bullet(paragraph: Element, styles: Sequence[Element]) -> tuple[int, Element | None]:
    """Return the depth and bullet of a paragraph; the nearest definition counts."""
    own = paragraph.find("{a}pPr")
    depth = min(parse_int(own.get("lvl")), 8) if own is not None else 0
    for properties in (own, *(style.find(f"{{a}}lvl{depth + 1}pPr") for style in styles)):
        for node in properties if properties is not None else ():
            if node.tag in _BULLETS:
                return depth, node
            # Layouts remove bullets from whole placeholders, but deeper levels are still below an item.
            if node.tag == "{a}buNone" and (properties is own or depth == 0):
                return depth, None
    return depth, None


_BULLETS = frozenset(f"{{a}}{name}" for name in ("buChar", "buAutoNum", "buBlip"))
