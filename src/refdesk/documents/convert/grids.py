"""Size limits and header rows of tables; a few bytes can claim a million columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from refdesk.documents.model import Cell, Table
from refdesk.errors import CannotConvert

MAX_COLUMNS: Final = 1_000
"""Columns of a table in a text or on a slide; Word's own limit is 63."""

MAX_GRID_CELLS: Final = 2_000_000
"""Rows times columns, the size of a rendered table."""


def check_size(table: Table) -> Table:
    """Return the table, or raise if it is too large to render."""
    if table.columns > MAX_COLUMNS or table.rows * table.columns > MAX_GRID_CELLS:
        raise CannotConvert(f"A table of {table.rows} rows and {table.columns} columns is too large; split the file")
    return table


def ensure_header(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """Make the first row the header if the table declares none."""
    if any(cell.header for cell in cells):
        return cells
    return tuple(replace(cell, header=True) if cell.row == 0 else cell for cell in cells)
