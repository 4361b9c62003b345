"""Spreadsheet cells to tables, split at blank rows and columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from refdesk.documents.model import Block, Cell, Heading, Paragraph, Place, Table

from .blocks import MAX_GRID_CELLS

MAX_CELLS: Final = 200_000
"""Cells kept per workbook: some 20,000 rows of ten, far more than can be read."""

MAX_CHARACTERS: Final = 20_000_000
"""Characters kept per workbook; a shared string counts for each cell."""

MAX_SHEET_COLUMNS: Final = 16_384
"""Column limit of Excel and LibreOffice."""

MAX_MERGED_PLACES: Final = 10_000
"""A larger merged area, such as a whole sheet, is a mistake or an attack and ignored."""

MAX_CUTS: Final = 16
"""Alternating splits of a region; real sheets need two or three."""


@dataclass(frozen=True, slots=True)
class Area:
    """A rectangle of cells, both ends included, counted from 0."""

    top: int
    left: int
    bottom: int
    right: int

    @property
    def cell_count(self) -> int:
        """Number of cells in the area."""
        return (self.bottom - self.top + 1) * (self.right - self.left + 1)


@dataclass(slots=True)
class Budget:
    """Cells and characters that a workbook may still hold."""

    cells: int = MAX_CELLS
    characters: int = MAX_CHARACTERS

    @property
    def is_spent(self) -> bool:
        return self.cells <= 0 or self.characters <= 0


@dataclass(slots=True)
class Sheet:
    """The non-empty cells of a sheet."""

    name: str
    budget: Budget
    merges: list[Area] = field(default_factory=list)
    _cells: dict[tuple[int, int], _FilledCell] = field(default_factory=dict)

    def put(self, row: int, column: int, text: str, tall: int = 1, wide: int = 1, *, is_text: bool) -> None:
        """Set a cell, which may be merged with others, at the expense of the budget."""
        self._cells[row, column] = _FilledCell(row, column, row, column, text, is_text)
        self.budget.cells -= 1
        self.budget.characters -= len(text)
        if tall > 1 or wide > 1:
            self.merges.append(Area(row, column, row + tall - 1, column + wide - 1))

    def list_cells(self) -> list[_FilledCell]:
        """Return the cells in reading order, each extended to its merged area."""
        for area in self.merges:
            cell = self._cells.get((area.top, area.left))
            if cell and area.cell_count <= MAX_MERGED_PLACES:
                self._cells[area.top, area.left] = replace(cell, bottom=area.bottom, right=area.right)
        return [self._cells[at] for at in sorted(self._cells)]


@dataclass(frozen=True, slots=True)
class _FilledCell(Area):
    text: str
    is_text: bool


def build_sheet_blocks(sheet: Sheet, number: int) -> Iterator[Block]:
    """Yield a heading with the sheet's name, then its tables from top to bottom."""
    place = Place(number)
    yield Heading(sheet.name or f"Sheet {number}", 2, place)
    regions = _split_regions(sheet.list_cells())
    for region in sorted(regions, key=lambda cells: (cells[0].top, min(cell.left for cell in cells))):
        if len(region) == 1:
            yield Paragraph(region[0].text, place=place)
        else:
            yield _build_table(region, place)


def _split_regions(cells: list[_FilledCell]) -> Iterator[list[_FilledCell]]:
    """Split at blank rows and columns in turn; a region too large to render is halved."""
    pending = [(cells, 0)] if cells else []
    while pending:
        region, cuts = pending.pop()
        parts = [region]
        if cuts < MAX_CUTS:
            rows = [(cell.top, cell.bottom) for cell in region]
            parts = _split_at_gaps(sorted(region, key=lambda cell: cell.top), rows)
        if cuts < MAX_CUTS and len(parts) == 1:
            columns = [(cell.left, cell.right) for cell in region]
            parts = _split_at_gaps(sorted(region, key=lambda cell: cell.left), columns)
            parts = [sorted(part, key=lambda cell: (cell.top, cell.left)) for part in parts]
        if len(parts) > 1:
            pending += ((part, cuts + 1) for part in reversed(parts))
        elif _bounding_area(region).cell_count > MAX_GRID_CELLS and len(region) > 1:
            middle = len(region) // 2
            pending += ((region[middle:], 0), (region[:middle], 0))
        else:
            yield region


def _split_at_gaps(ordered: list[_FilledCell], stretches: list[tuple[int, int]]) -> list[list[_FilledCell]]:
    """Split sorted cells wherever none reaches the next row or column."""
    runs: list[list[_FilledCell]] = []
    reach = -2
    for cell, (start, end) in zip(ordered, sorted(stretches), strict=True):
        if start > reach + 1:
            runs.append([])
        runs[-1].append(cell)
        reach = max(reach, end)
    return runs


def _bounding_area(region: list[_FilledCell]) -> Area:
    return Area(
        min(cell.top for cell in region),
        min(cell.left for cell in region),
        max(cell.bottom for cell in region),
        max(cell.right for cell in region),
    )


def _build_table(region: list[_FilledCell], place: Place) -> Table:
    """Build a table; a title merged across all columns becomes its caption."""
    area = _bounding_area(region)
    caption = ""
    if region[0].left == area.left < area.right == region[0].right and region[0].bottom < region[1].top:
        caption, region = region[0].text, region[1:]
        area = _bounding_area(region)
    header = _count_header_rows(region, area)
    cells = tuple(
        Cell(
            cell.text,
            cell.top - area.top,
            cell.left - area.left,
            cell.bottom - cell.top + 1,
            cell.right - cell.left + 1,
            cell.top - area.top < header,
        )
        for cell in region
    )
    return Table(cells, area.bottom - area.top + 1, area.right - area.left + 1, caption, place)


def _count_header_rows(region: list[_FilledCell], area: Area) -> int:
    """Count header rows: the first if it is all text and not the only one; also the second if the first is a title."""
    rows: dict[int, list[_FilledCell]] = {}
    for cell in region:
        rows.setdefault(cell.top - area.top, []).append(cell)
    count = 0
    for row in range(min(2, area.bottom - area.top)):
        cells = rows.get(row, [])
        if not cells or not all(cell.is_text for cell in cells):
            break
        count += 1
        if len(cells) > 1 or area.right == area.left:
            break
    return count


def warn_hidden(names: Sequence[str]) -> Iterator[str]:
    """Yield a warning if sheets are hidden."""
    if names:
        yield f"Hidden sheets were left out: {', '.join(names)}."
