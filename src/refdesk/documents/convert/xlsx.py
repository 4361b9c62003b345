"""Excel workbooks (XLSX): each visible sheet is a page with a heading.

Sheets are split into tables at blank rows and columns; a single cell becomes a paragraph. Cells are formatted as in
Excel, formulas by their saved value. Sheets are streamed, so only the start of a huge one is unpacked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any, Final
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from refdesk.documents.model import Block, Document, Place
from refdesk.errors import CannotConvert

from . import sheets
from .charts import read_sheet_charts
from .number_format import BUILT_IN, format_value
from .ooxml import RELATIONSHIP_ID, SPREADSHEET, STRICT_SPREADSHEET, Package, open_package, parse_int, strip_namespace
from .source import SourceFile

S: Final = f"{{{SPREADSHEET}}}"
_REFERENCE = re.compile(r"\$?([A-Z]{1,3})\$?(\d{1,7})")
_CHUNK_BYTES = 65_536
_MAX_MERGES = 100_000
"""Merged areas read per sheet."""


def convert(source: SourceFile, *, max_cells: int = sheets.MAX_CELLS) -> Document:
    """Convert the selected sheets of a workbook."""
    package = open_package(source.data)
    main = package.find_main_part("xl/workbook.xml")
    root = package.read_xml(main)
    if root is None or strip_namespace(root.tag) != "workbook":
        raise CannotConvert("The file is not a workbook: it has no list of sheets; check what it is and send it again")
    workbook = _Workbook(package, main, root, max_cells)
    visible = [sheet for sheet in workbook.sheets if not sheet.hidden]
    wanted = source.select_pages(len(visible))
    blocks: list[Block] = []
    for done, number in enumerate(wanted):
        sheet = visible[number - 1]
        source.progress(done, len(wanted), f"sheet {sheet.name}")
        blocks += sheets.build_sheet_blocks(workbook.read(sheet), number)
        blocks += read_sheet_charts(package, sheet.part, Place(number))
    properties, tags = package.read_properties()
    return source.build_document("sheet", len(visible), blocks, properties, tags, warnings=workbook.list_warnings())


@dataclass(frozen=True, slots=True)
class _SheetEntry:
    name: str
    part: str
    hidden: bool


class _Workbook:
    """Sheet list, shared strings and formats of a workbook."""

    def __init__(self, package: Package, main: str, root: Element, max_cells: int) -> None:
        self._package = package
        self.sheets: list[_SheetEntry] = []
        relationships = package.read_relationships(main)
        for node in root.iterfind(f"{S}sheets/{S}sheet"):
            relationship = relationships.get(node.get(RELATIONSHIP_ID, ""))
            hidden = node.get("state", "visible") != "visible"
            self.sheets.append(_SheetEntry(node.get("name", ""), relationship.target if relationship else "", hidden))
        properties = root.find(f"{S}workbookPr")
        self._from_1904 = properties is not None and properties.get("date1904") in ("1", "true")
        self._texts: list[str] = []
        """Strings that cells refer to by index."""
        self._formats: list[str] = []
        """Number format of each cell style, by index."""
        self._budget = sheets.Budget(max_cells)
        self._omissions: list[str] = []
        self._read_shared_strings(package.find_related(main, "sharedStrings"))
        styles = package.read_related(main, "styles")
        if styles is not None:
            nodes = styles.iterfind(f"{S}numFmts/{S}numFmt")
            custom = {node.get("numFmtId", ""): node.get("formatCode", "") for node in nodes}
            ids = [node.get("numFmtId", "0") for node in styles.iterfind(f"{S}cellXfs/{S}xf")]
            self._formats = [custom.get(id_) or BUILT_IN.get(parse_int(id_), "General") for id_ in ids]

    def _read_shared_strings(self, part: str | None) -> None:
        if part is None:
            return
        characters = 0
        with self._package.open(part) as stream:
            for node in _iter_elements(stream, part, "si", "sst"):
                self._texts.append(_read_rich_text(node))
                characters += len(self._texts[-1])
                if characters > sheets.MAX_CHARACTERS:
                    raise CannotConvert(
                        f"The workbook holds more than {sheets.MAX_CHARACTERS} characters of text; split it"
                    )

    def list_warnings(self) -> Iterator[str]:
        yield from sheets.warn_hidden([sheet.name for sheet in self.sheets if sheet.hidden])
        yield from self._omissions
        yield from self._package.warn_macros()

    def read(self, entry: _SheetEntry) -> sheets.Sheet:
        """Read a sheet; one without cells, such as a chart, is empty."""
        sheet = sheets.Sheet(entry.name, self._budget)
        if entry.part not in self._package.names:
            return sheet
        row = last_row = uncomputed = 0
        with self._package.open(entry.part) as stream:
            for node in _iter_elements(stream, entry.part, "row", "dimension", "mergeCell", "sheetData"):
                name = strip_namespace(node.tag)
                if name == "row":
                    index = node.get("r", "")
                    row = (parse_int(index) if len(index) < 8 else 0) or row + 1
                    if self._budget.is_spent:
                        to = f"–{last_row}" if last_row > row else " on"
                        self._omissions.append(
                            f"Sheet {entry.name!r} is too large: its rows from {row}{to} were left out."
                        )
                        break
                    uncomputed += self._read_row(node, row, sheet)
                elif name == "dimension":
                    area = _parse_area(node.get("ref", ""))
                    last_row = area.bottom + 1 if area else 0
                elif len(sheet.merges) < _MAX_MERGES and (area := _parse_area(node.get("ref", ""))):
                    sheet.merges.append(area)
        if uncomputed:
            self._omissions.append(
                f"Sheet {entry.name!r} has formulas without saved values ({uncomputed:,}), which are shown as "
                "formulas; open it in a spreadsheet program and save it."
            )
        return sheet

    def _read_row(self, node: Element, row: int, sheet: sheets.Sheet) -> int:
        """Read the cells of a row; return the number of formulas without a saved value."""
        column, uncomputed = -1, 0
        for cell in node:
            column = _letters_to_column(cell.get("r", "").rstrip("0123456789")) if cell.get("r") else column + 1
            if column >= sheets.MAX_SHEET_COLUMNS:
                break
            text, is_text = self._format_cell(cell)
            if not text and cell.find(f"{S}v") is None and (formula := cell.find(f"{S}f")) is not None:
                text, is_text = f"={formula.text or '…'}", True
                uncomputed += 1
            if text:
                sheet.put(row - 1, column, text, is_text=is_text)
        return uncomputed

    def _format_cell(self, cell: Element) -> tuple[str, bool]:
        """Return a cell's displayed text, and whether it is a string."""
        kind, value = cell.get("t", "n"), cell.find(f"{S}v")
        text = value.text or "" if value is not None else ""
        if kind == "s":
            at = parse_int(text, len(self._texts))
            return self._texts[at] if at < len(self._texts) else "", True
        if kind == "inlineStr":
            return _read_rich_text(cell.find(f"{S}is")), True
        if kind == "b":
            return ("TRUE" if text == "1" else "FALSE") if text else "", False
        if kind == "n" and text:
            at = parse_int(cell.get("s", "0"), len(self._formats))
            code = self._formats[at] if at < len(self._formats) else "General"
            return format_value(text, code, from_1904=self._from_1904), False
        return text.strip(), kind == "str"


def _read_rich_text(node: Element | None) -> str:
    """Return the text of a cell's runs, without phonetic guides."""
    if node is None:
        return ""
    direct = node.find(f"{S}t")
    runs = [direct] if direct is not None else node.findall(f"{S}r/{S}t")
    return "".join(run.text or "" for run in runs).replace("_x000D_", "").strip()


def _iter_elements(stream: IO[bytes], part: str, *names: str) -> Iterator[Element]:
    """Yield the elements of these names as they end; the last name is their parent, which is kept empty."""
    parser: XMLPullParser[Any] = XMLPullParser(("start", "end"))
    parent: Element | None = None
    wanted = {f"{S}{name}" for name in names[:-1]}
    has_begun = False
    try:
        while chunk := stream.read(_CHUNK_BYTES):
            if not has_begun and b"<!DOCTYPE" in chunk:
                raise CannotConvert(f"The part {part!r} of the file declares a DTD, which no office program writes")
            parser.feed(chunk.replace(STRICT_SPREADSHEET.encode(), SPREADSHEET.encode()))
            events: Any = parser.read_events()
            for event, node in events:
                has_begun = True
                if event == "start":
                    parent = node if node.tag == f"{S}{names[-1]}" else parent
                elif node.tag in wanted:
                    yield node
                    if parent is not None:
                        parent.clear()
    except ParseError as error:
        raise CannotConvert(f"The file is broken: its part {part!r} is not well-formed XML; save it again") from error


@lru_cache(maxsize=20_000)
def _letters_to_column(letters: str) -> int:
    """Convert column letters: `A` is 0, `AA` is 26."""
    number = 0
    for letter in letters[:3].upper():
        number = number * 26 + max(ord(letter) - 64, 0)
    return max(number - 1, 0)


def _parse_area(reference: str) -> sheets.Area | None:
    corners = _REFERENCE.findall(reference)
    if not corners:
        return None
    (left, top), (right, bottom) = corners[0], corners[-1]
    return sheets.Area(int(top) - 1, _letters_to_column(left), int(bottom) - 1, _letters_to_column(right))
