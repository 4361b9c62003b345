"""HTML tables: data tables as grids; layout tables are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from selectolax.lexbor import LexborNode

from refdesk.documents.model import Cell, Table

from .inline import extract_text

MAX_COLUMNS = 500
"""Wider tables are cut; a cell may claim any column span."""

MAX_GRID_CELLS = 200_000
"""Rows times columns: spans can make a huge grid of a few bytes."""

_LAYOUT_CLASSES = frozenset("highlighttable rouge-table linenotable admonition simplelist footnote citation".split())


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of a `table` with their cells; nested tables stay in their cells."""

    rows: list[list[LexborNode]]
    caption: LexborNode | None


def read_grid(table: LexborNode) -> Grid:
    """Return the rows of a table in document order."""
    rows: list[list[LexborNode]] = []
    caption = None
    for part in table.iter():
        if part.tag == "caption":
            caption = caption or part
        elif part.tag in ("tr", "thead", "tbody", "tfoot"):
            lines = [part] if part.tag == "tr" else [row for row in part.iter() if row.tag == "tr"]
            rows += ([cell for cell in line.iter() if cell.tag in ("td", "th")] for line in lines)
    return Grid([row for row in rows if row], caption)


def is_layout(table: LexborNode, grid: Grid) -> bool:
    """Whether a table is used for layout."""
    attributes = table.attributes
    if attributes.get("role") in ("presentation", "none"):
        return True
    if not _LAYOUT_CLASSES.isdisjoint((attributes.get("class") or "").split()):
        return True
    if table.css_first("h1, h2, h3, h4, h5, h6") is not None:
        return True
    if grid.caption is not None or any(cell.tag == "th" for row in grid.rows for cell in row):
        return False
    widest = max(map(len, grid.rows), default=0)
    return widest < 2 or len(grid.rows) < 2 or len(table.css("table")) > 1 or table.css_first("pre") is not None


def read_table(grid: Grid) -> tuple[Table, int]:
    """Return the table and the number of rows left out."""
    placed = list(_place_cells(grid.rows))
    columns = max((column + 1 for _, _, column, _, _ in placed), default=0)
    rows = min(len(grid.rows), MAX_GRID_CELLS // max(1, columns))
    cells = tuple(
        Cell(extract_text(node), row, column, min(tall, rows - row), min(wide, columns - column), node.tag == "th")
        for node, row, column, tall, wide in placed
        if row < rows
    )
    caption = extract_text(grid.caption) if grid.caption is not None else ""
    return Table(cells, rows, columns, caption), len(grid.rows) - rows


def _place_cells(rows: list[list[LexborNode]]) -> Iterator[tuple[LexborNode, int, int, int, int]]:
    """Yield each cell with its row, its column and its spans, in the first column that is free.

    `free[column]` is the row from which a column is free.
    """
    free: list[int] = []
    for row, nodes in enumerate(rows):
        column = 0
        for node in nodes:
            while column < len(free) and free[column] > row:
                column += 1
            if column >= MAX_COLUMNS:
                break
            tall, wide = _read_span(node, "rowspan") or len(rows), _read_span(node, "colspan") or 1
            wide = min(wide, MAX_COLUMNS - column)
            yield node, row, column, tall, wide
            free += [0] * (column + wide - len(free))
            free[column : column + wide] = [row + tall] * wide
            column += wide


def _read_span(node: LexborNode, name: str) -> int:
    value = (node.attributes.get(name) or "1").strip()
    return int(value[:6]) if value.isdecimal() and value.isascii() else 1
