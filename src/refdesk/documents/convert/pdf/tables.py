"""Table drafts, and their conversion to a grid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from refdesk.documents.convert.pdf.layout import Line, enclose_boxes, group_rows
from refdesk.documents.convert.pdf.page_reader import Word
from refdesk.documents.convert.pdf.tags import CellTag, Tags
from refdesk.documents.convert.pdf.text import Vocabulary, join_text
from refdesk.documents.model import Box, Cell, Place, Table

CAPTION = re.compile(r"(?:Table|Figure|Fig\.|Listing|Example|Tabelle|Tableau|Tabla)\s+[\dA-Z][\d.–-]*[.:)]?(?:\s|$)")
"""Start of a table or figure caption."""


@dataclass(slots=True)
class CellDraft:
    """A cell; its column counts from 0, or is None until spanning cells are placed."""

    lines: list[Line]
    header: bool = False
    column: int | None = None
    row_span: int = 1
    column_span: int = 1


@dataclass(slots=True)
class RowDraft:
    """A row; rows with one key are parts of the same row on two pages."""

    cells: list[CellDraft]
    key: int = 0


@dataclass(slots=True)
class TableDraft:
    """A table, or its part on one page."""

    rows: list[RowDraft]
    page: int
    box: Box
    key: int = 0
    """Its structure element, or 0."""
    columns: tuple[float, ...] = ()
    """Column boundaries, if read from the page."""
    caption: list[Line] = field(default_factory=list)


def extend_table(table: TableDraft, more: TableDraft) -> bool:
    """Append the part of a table on the next page; return whether it is one."""
    if table.key and table.key == more.key:
        _join_tagged(table, more)
        return True
    repeats = _read_texts(more.rows[0]) == _read_texts(table.rows[0])
    if table.key or more.key or not (_has_same_columns(table, more) or repeats):
        return False
    table.rows += more.rows[repeats:]
    return True


def _has_same_columns(table: TableDraft, more: TableDraft) -> bool:
    return len(table.columns) == len(more.columns) > 0 and all(
        abs(one - other) < 6 for one, other in zip(table.columns, more.columns, strict=True)
    )


def _join_tagged(table: TableDraft, more: TableDraft) -> None:
    known = {row.key: row for row in table.rows}
    for row in more.rows:
        if row.key not in known:
            table.rows.append(row)
            continue
        for cell, rest in zip(known[row.key].cells, row.cells, strict=False):
            if not cell.header or not cell.lines:
                cell.lines += rest.lines


def _read_texts(row: RowDraft) -> list[str]:
    return [" ".join(line.text for line in cell.lines) for cell in row.cells]


def build_table(table: TableDraft, vocabulary: Vocabulary, place: Place) -> Table:
    """Build the table with every cell at its grid position."""
    cells: list[Cell] = []
    taken: set[tuple[int, int]] = set()
    for at, row in enumerate(table.rows):
        column = 0
        for cell in row.cells:
            if cell.column is not None:
                column = cell.column
            while (at, column) in taken:
                column += 1
            rows = min(cell.row_span, len(table.rows) - at)
            taken.update((at + down, column + along) for down in range(rows) for along in range(cell.column_span))
            text = join_text(cell.lines, vocabulary)
            cells.append(Cell(text, at, column, rows, cell.column_span, cell.header))
            column += cell.column_span
    columns = max((cell.column + cell.column_span for cell in cells), default=0)
    caption = join_text(table.caption, vocabulary)
    return Table(tuple(cells), len(table.rows), columns, caption, place)


def find_tagged_tables(words: Sequence[Word], tags: Tags, page: int) -> list[TableDraft]:
    """Return the tables of a tagged page, from the words of their cells."""
    cells: dict[int, dict[int, dict[int, tuple[CellTag, list[Word]]]]] = {}
    for word in words:
        tag = tags.get(word.mark)
        if tag and tag.cell and tag.cell.row:
            rows = cells.setdefault(tag.cell.table, {})
            rows.setdefault(tag.cell.row, {}).setdefault(tag.cell.place, (tag.cell, []))[1].append(word)
    return [_build_tagged_table(key, rows, page) for key, rows in cells.items()]


def _build_tagged_table(key: int, rows: dict[int, dict[int, tuple[CellTag, list[Word]]]], page: int) -> TableDraft:
    drafts = [
        RowDraft([_build_tagged_cell(row.get(place), page) for place in range(max(row) + 1)], number)
        for number, row in rows.items()
    ]
    boxes = [line.box for row in drafts for cell in row.cells for line in cell.lines]
    drafts.sort(key=_get_row_top)
    return TableDraft(drafts, page, enclose_boxes(boxes), key)


def _get_row_top(row: RowDraft) -> float:
    return min(line.base for cell in row.cells for line in cell.lines)


def _build_tagged_cell(found: tuple[CellTag, list[Word]] | None, page: int) -> CellDraft:
    if found is None:
        return CellDraft([])
    tag, words = found
    lines = [Line(row, page) for row in group_rows(words)]
    return CellDraft(lines, tag.header, None, tag.rows, tag.columns)
