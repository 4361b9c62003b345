"""Bounds for tables: a few bytes of a file can ask for a million columns."""

from __future__ import annotations

from typing import Final

from refdesk.documents.model import Table
from refdesk.errors import CannotConvert

MAX_COLUMNS: Final = 1_000
"""Columns of a table in a text or on a slide; Word itself stops at 63."""

MAX_PLACES: Final = 2_000_000
"""Rows times columns: what a table takes when it is written out."""


def checked(table: Table) -> Table:
    """The table, if it can be written out."""
    if table.columns > MAX_COLUMNS or table.rows * table.columns > MAX_PLACES:
        raise CannotConvert(f"A table of {table.rows} rows and {table.columns} columns is too large; split the file")
    return table
