"""OpenDocument presentations and spreadsheets (ODP, ODS), read from their XML.

As in the Microsoft formats, slides and sheets are pages, and hidden sheets are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from xml.etree.ElementTree import Element

from refdesk.documents.model import Block, Cell, Code, Document, Heading, ListItem, Paragraph, Picture, Place, Table
from refdesk.errors import CannotConvert

from . import sheets
from .blocks import MAX_COLUMNS, BlockBuilder, Runs, RunStyle, check_size, is_fixed_pitch
from .ooxml import Package, open_package, parse_int, strip_namespace
from .source import SourceFile

MAX_REPEATS: Final = 1_000
"""Repeated cells or spaces that one element may stand for."""

_MAX_DEPTH = 8
"""Depth of nested lists; deeper ones get this depth."""
_INVISIBLE = frozenset(("{office}annotation", "{text}note", "{text}tracked-changes"))
_WHITESPACE = {"{text}tab": "\t", "{text}line-break": "\n"}
_REPEATED = frozenset(("date-time", "footer", "header", "page-number", "page"))
"""Placeholders that repeat on every slide."""


class _File:
    def __init__(self, source: SourceFile) -> None:
        self.package: Package = open_package(source.data)
        content = self.package.read_xml("content.xml")
        body = content.find("{office}body") if content is not None else None
        if content is None or body is None or not len(body):
            raise CannotConvert("The file is broken: it has no content; save it again")
        self.body = body[0]
        self.numbered_levels = {
            (style.get("{style}name", ""), level.get("{text}level", ""))
            for style in content.iter("{text}list-style")
            for level in style.findall("{text}list-level-style-number")
            if level.get("{style}num-format")
        }
        """Style and depth, from 1, of list levels with numbers instead of bullets."""
        self._styles = {node.get("{style}name", ""): node for node in content.iter("{style}style")}

    def is_hidden(self, node: Element) -> bool:
        style = self._styles.get(node.get("{table}style-name", ""))
        shown = style.find("{style}table-properties") if style is not None else None
        return shown is not None and shown.get("{table}display") == "false"

    def read_runs(self, paragraph: Element) -> Runs:
        """Read the text of a paragraph, with elements and tails on a stack."""
        runs = Runs()
        pending: list[tuple[Element | str, RunStyle]] = [(paragraph, RunStyle())]
        while pending:
            node, run_style = pending.pop()
            if isinstance(node, str):
                runs.add(node, run_style)
            elif node.tag not in _INVISIBLE:
                inner = self._inherit_style(node, run_style)
                spaces = min(_read_count(node, "{text}c"), MAX_REPEATS) if node.tag == "{text}s" else 0
                runs.add(" " * spaces + _WHITESPACE.get(node.tag, "") + (node.text or ""), inner)
                for child in reversed(node):
                    pending += ((child.tail or "", inner), (child, inner))
        return runs

    def _inherit_style(self, node: Element, run_style: RunStyle) -> RunStyle:
        if node.tag == "{text}a":
            target = node.get("{xlink}href", "")
            return RunStyle(run_style.strong, run_style.emphasis, run_style.code, target if "://" in target else "")
        if node.tag != "{text}span":
            return run_style
        style = self._styles.get(node.get("{text}style-name", ""))
        properties = style.find("{style}text-properties") if style is not None else None
        if properties is None:
            return RunStyle(link=run_style.link)
        strong, emphasis = properties.get("{fo}font-weight") == "bold", properties.get("{fo}font-style") == "italic"
        font = properties.get("{style}font-name") or properties.get("{fo}font-family") or ""
        return RunStyle(strong, emphasis, is_fixed_pitch(font.strip("'")), run_style.link)

    def join_text(self, node: Element) -> str:
        """Join all paragraphs below a node, one per line."""
        paragraphs = (child for child in node.iter() if child.tag in ("{text}p", "{text}h"))
        return "\n".join(filter(None, (self.read_runs(paragraph).text() for paragraph in paragraphs)))


def _read_count(node: Element, name: str) -> int:
    return max(parse_int(node.get(name)), 1)


def convert(source: SourceFile) -> Document:
    """Convert the selected slides of an ODP file."""
    file = _File(source)
    slides = file.body.findall("{drawing}page")
    wanted = source.select_pages(len(slides))
    blocks = [block for number in wanted for block in _read_slide(file, slides[number - 1], number)]
    return source.build_document("slide", len(slides), blocks, *file.package.read_properties())


def _read_slide(file: _File, slide: Element, number: int) -> Sequence[Block]:
    found = BlockBuilder()
    place = Place(number)
    shapes = list(_iter_shapes(slide))
    has_subtitle = any(_get_role(shape) == "subtitle" for shape in shapes)
    for shape in sorted(shapes, key=lambda shape: _get_role(shape) != "title"):
        if _get_role(shape) == "title":
            if text := " ".join(file.join_text(shape).split()):
                found.add(Heading(text, 1 if number == 1 and has_subtitle else 2, place))
        elif _get_role(shape) not in _REPEATED:
            table = shape.find("{table}table")
            if table is not None:
                rows = list(table.iter("{table}table-row"))
                cells = tuple(
                    Cell(file.join_text(cell), row, column, *_read_spans(cell), header=row == 0)
                    for row, line in enumerate(rows)
                    for column, cell in _iter_cells(line)
                )
                columns = max((cell.column + cell.column_span for cell in cells), default=0)
                found.add(check_size(Table(cells, len(rows), columns, place=place)))
            elif shape.find("{drawing}image") is not None:
                alt = shape.findtext("{svg}desc") or shape.findtext("{svg}title") or ""
                found.add(Picture(" ".join(alt.split()), place))
            else:
                _add_texts(file, shape, place, found)
    notes = slide.find("{presentation}notes")
    noted = [shape for shape in _iter_shapes(notes) if _get_role(shape) == "notes"] if notes is not None else []
    if text := "\n".join(filter(None, map(file.join_text, noted))):
        found.add(Paragraph(text, role="note", place=place))
    return found.build()


def _iter_shapes(slide: Element) -> Iterator[Element]:
    pending = list(reversed(slide))
    while pending:
        node = pending.pop()
        if node.tag == "{drawing}g":
            pending += reversed(node)
        elif node.tag.startswith("{drawing}"):
            yield node


def _get_role(shape: Element) -> str:
    return shape.get("{presentation}class", "")


def _add_texts(file: _File, shape: Element, place: Place, found: BlockBuilder) -> None:
    """Add paragraphs and lists in order; depth is the number of enclosing lists."""
    numbers: list[int] = []
    pending: list[tuple[Element, int, str]] = [(child, -1, "") for child in reversed(shape)]
    while pending:
        node, depth, style = pending.pop()
        name = strip_namespace(node.tag)
        if name in ("p", "h"):
            runs = file.read_runs(node)
            text, spans = runs.text_and_spans()
            numbers[depth + 1 :] = []
            if not text:
                found.add_blank_line()
            elif depth >= 0:
                numbers += [0] * (depth + 1 - len(numbers))
                numbers[depth] += 1
                ordered = (style, str(depth + 1)) in file.numbered_levels
                found.add(ListItem(text, spans, depth, ordered, numbers[depth] if ordered else 1, place))
            elif runs.is_all_code():
                found.add(Code(runs.raw().rstrip(), place=place))
            else:
                found.add(Paragraph(text, spans, place=place))
        elif name in ("list", "list-item", "list-header", "text-box"):
            own = node.get("{text}style-name", style)
            inner = min(depth + (name == "list"), _MAX_DEPTH)
            pending += ((child, inner, own) for child in reversed(node))


def _read_spans(cell: Element) -> tuple[int, int]:
    tall, wide = _read_count(cell, "{table}number-rows-spanned"), _read_count(cell, "{table}number-columns-spanned")
    return min(tall, MAX_COLUMNS), min(wide, MAX_COLUMNS)


def _iter_cells(row: Element) -> Iterator[tuple[int, Element]]:
    """Yield the cells of a row by column; a repeated cell with content is yielded at each position."""
    column = 0
    for node in row:
        name = strip_namespace(node.tag)
        if name not in ("table-cell", "covered-table-cell"):
            continue
        repeats = _read_count(node, "{table}number-columns-repeated")
        if name == "table-cell" and len(node):
            yield from ((column + at, node) for at in range(min(repeats, MAX_REPEATS)))
        column += repeats
        if column >= sheets.MAX_SHEET_COLUMNS:
            return


def convert_sheets(source: SourceFile, *, max_cells: int = sheets.MAX_CELLS) -> Document:
    """Convert the selected sheets of an ODS file."""
    file = _File(source)
    nodes = file.body.findall("{table}table")
    hidden = [node.get("{table}name", "") for node in nodes if file.is_hidden(node)]
    visible = [node for node in nodes if not file.is_hidden(node)]
    budget = sheets.Budget(max_cells)
    warnings = list(sheets.warn_hidden(hidden))
    blocks: list[Block] = []
    for number in source.select_pages(len(visible)):
        blocks += sheets.build_sheet_blocks(_read_sheet(file, visible[number - 1], budget, warnings), number)
    return source.build_document("sheet", len(visible), blocks, *file.package.read_properties(), warnings=warnings)


def _read_sheet(file: _File, node: Element, budget: sheets.Budget, warnings: list[str]) -> sheets.Sheet:
    """Read a sheet, up to where the workbook's budget is spent."""
    sheet = sheets.Sheet(node.get("{table}name", ""), budget)
    row = 0
    for line in node.iter("{table}table-row"):
        repeats = _read_count(line, "{table}number-rows-repeated")
        texts = ((column, cell, file.join_text(cell)) for column, cell in _iter_cells(line))
        filled = [(column, cell, text) for column, cell, text in texts if text]
        for at in range(row, row + repeats if filled else row):
            if budget.is_spent:
                warnings.append(f"Sheet {sheet.name!r} is too large: its rows from {at + 1} on were left out.")
                return sheet
            for column, cell, text in filled:
                is_text = cell.get("{office}value-type", "string") == "string"
                sheet.put(at, column, text, *_read_spans(cell), is_text=is_text)
        row += repeats
    return sheet
