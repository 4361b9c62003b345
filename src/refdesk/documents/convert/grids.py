"""What all tables have in common: a header row, and bounds, since a few bytes can ask for a million columns."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from refdesk.documents.model import Cell, Table
from refdesk.errors import CannotConvert

MAX_COLUMNS: Final = 1_000
"""Columns of a table in a text or on a slide; Word itself stops at 63."""

MAX_GRID_CELLS: Final = 2_000_000
"""Rows times columns: what a table takes when it is written out."""


def check_size(table: Table) -> Table:
    """The table, if it can be written out."""
    if table.columns > MAX_COLUMNS or table.rows * table.columns > MAX_GRID_CELLS:
        raise CannotConvert(f"A table of {table.rows} rows and {table.columns} columns is too large; split the file")
    return table


def ensure_header(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
    """A table that names no header row has its first row for one."""
    if any(cell.header for cell in cells):
        return cells
    return tuple(replace(cell, header=True) if cell.row == 0 else cell for cell in cells)
