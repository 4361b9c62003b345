"""Table drafts from tags and rules, and their conversion to a grid."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from refdesk.documents.convert.pdf.layout import Line, enclose_boxes, group_rows
from refdesk.documents.convert.pdf.page_reader import PageContent, Word
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
        known = {row.key: row for row in table.rows}
        for row in more.rows:
            if row.key not in known:
                table.rows.append(row)
                continue
            for cell, rest in zip(known[row.key].cells, row.cells, strict=False):
                if not cell.header or not cell.lines:
                    cell.lines += rest.lines
        return True
    repeats = _read_texts(more.rows[0]) == _read_texts(table.rows[0])
    has_same_columns = len(table.columns) == len(more.columns) > 0 and all(
        abs(one - other) < 6 for one, other in zip(table.columns, more.columns, strict=True)
    )
    if table.key or more.key or not (has_same_columns or repeats):
        return False
    table.rows += more.rows[repeats:]
    return True


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
    tables: list[TableDraft] = []
    for key, rows in cells.items():
        drafts = [
            RowDraft([_build_tagged_cell(row.get(place), page) for place in range(max(row) + 1)], number)
            for number, row in rows.items()
        ]
        boxes = [line.box for row in drafts for cell in row.cells for line in cell.lines]
        drafts.sort(key=lambda row: min(line.base for cell in row.cells for line in cell.lines))
        tables.append(TableDraft(drafts, page, enclose_boxes(boxes), key))
    return tables


def _build_tagged_cell(found: tuple[CellTag, list[Word]] | None, page: int) -> CellDraft:
    if found is None:
        return CellDraft([])
    tag, words = found
    lines = [Line(row, page) for row in group_rows(words)]
    return CellDraft(lines, tag.header, None, tag.rows, tag.columns)


TOUCH = 3.0
"""Points up to which rules meet."""

MAX_RULES = 1_500
"""Rules read per direction; a page with more is a plot."""

MIN_FILLED = 0.4
"""Share of filled cells below which the rules are a drawing."""

SPLIT_LINES = 3
"""Lines in a cell of the first column from which it may hold rows without rules between them."""


@dataclass(slots=True)
class RulingLine:
    """A straight line: its position across its direction, and its extent."""

    at: float
    start: float
    end: float

    def covers(self, place: float) -> bool:
        return self.start - TOUCH <= place <= self.end + TOUCH


def find_ruled_tables(content: PageContent) -> list[TableDraft]:
    """Return the tables that the page's rules draw."""
    if not content.down or len(content.across) < 2:
        return []
    across = [RulingLine((top + bottom) / 2, left, right) for left, top, right, bottom in content.across[:MAX_RULES]]
    down = [RulingLine((left + right) / 2, top, bottom) for left, top, right, bottom in content.down[:MAX_RULES]]
    for left, top, right, bottom in content.areas[:MAX_RULES]:
        across += (RulingLine(top, left, right), RulingLine(bottom, left, right))
        down += (RulingLine(left, top, bottom), RulingLine(right, top, bottom))
    tables = [_build_table(content, *group) for group in _group_rules(merge_rules(across), merge_rules(down))]
    return [table for table in tables if table]


def merge_rules(rules: Iterable[RulingLine]) -> list[RulingLine]:
    """Merge collinear pieces."""
    whole: list[RulingLine] = []
    for rule in sorted(rules, key=lambda rule: (round(rule.at / TOUCH), rule.start)):
        last = whole[-1] if whole else None
        if last and abs(last.at - rule.at) <= TOUCH and last.start - TOUCH <= rule.start <= last.end + TOUCH:
            last.end = max(last.end, rule.end)
        else:
            whole.append(RulingLine(rule.at, rule.start, rule.end))
    return whole


def _group_rules(
    across: Sequence[RulingLine], down: Sequence[RulingLine]
) -> list[tuple[list[RulingLine], list[RulingLine]]]:
    """Group rules that meet, directly or through others."""
    group_of = list(range(len(across)))
    crossing: list[list[int]] = []
    for upright in down:
        met = [place for place, level in enumerate(across) if level.covers(upright.at) and upright.covers(level.at)]
        crossing.append(met)
        groups = {group_of[place] for place in met}
        if len(groups) > 1:
            first = min(groups)
            group_of = [first if group in groups else group for group in group_of]
    found: dict[int, tuple[list[RulingLine], list[RulingLine]]] = {}
    for place, level in enumerate(across):
        found.setdefault(group_of[place], ([], []))[0].append(level)
    for upright, met in zip(down, crossing, strict=True):
        if met:
            found[group_of[met[0]]][1].append(upright)
    return [group for group in found.values() if group[1] and len(group[0]) > 1]


def _find_divisions(rules: Iterable[RulingLine], outer: tuple[float, float]) -> list[float]:
    """Return the positions where a grid is divided, including its outer edges."""
    places: list[float] = []
    for at in sorted([*(rule.at for rule in rules), *outer]):
        if not places or at - places[-1] > 2 * TOUCH:
            places.append(at)
    return places


def _build_table(content: PageContent, across: list[RulingLine], down: list[RulingLine]) -> TableDraft | None:
    xs = _find_divisions(down, (min(rule.start for rule in across), max(rule.end for rule in across)))
    ys = _find_divisions(across, (min(rule.start for rule in down), max(rule.end for rule in down)))
    if len(xs) < 3 or len(ys) < 3 or len(xs) * len(ys) > 20_000:
        return None
    grid = _Grid(xs, ys, across, down)
    rows = grid.build_rows(content)
    cells = [cell for row in rows for cell in row.cells]
    filled = sum(1 for cell in cells if cell.lines)
    several = sum(1 for row in rows if sum(1 for cell in row.cells if cell.lines) > 1)
    if filled < MIN_FILLED * len(cells) or not several or len(rows) < 2:
        return None
    return TableDraft(rows, content.number, (xs[0], ys[0], xs[-1], ys[-1]), columns=tuple(xs))


class _Grid:
    """Grid between rules; cells that no rule separates are merged."""

    def __init__(
        self, xs: Sequence[float], ys: Sequence[float], across: Sequence[RulingLine], down: Sequence[RulingLine]
    ) -> None:
        self._xs, self._ys = xs, ys
        self._across, self._down = across, down
        self._owner: dict[tuple[int, int], tuple[int, int]] = {}
        for row in range(len(ys) - 1):
            for column in range(len(xs) - 1):
                self._owner[row, column] = self._find_owner(row, column)

    def _find_owner(self, row: int, column: int) -> tuple[int, int]:
        """Return the top left position of the cell that this position belongs to."""
        middle_x = (self._xs[column] + self._xs[column + 1]) / 2
        middle_y = (self._ys[row] + self._ys[row + 1]) / 2
        if column and not _is_drawn(self._down, self._xs[column], middle_y):
            return self._owner[row, column - 1]
        if row and not _is_drawn(self._across, self._ys[row], middle_x):
            above = self._owner[row - 1, column]
            if above[1] == column:
                return above
        return row, column

    def build_rows(self, content: PageContent) -> list[RowDraft]:
        """Build the rows with the page's words in their cells."""
        words: dict[tuple[int, int], list[Word]] = {}
        for word in content.words:
            column = bisect(self._xs, (word.left + word.right) / 2) - 1
            row = bisect(self._ys, word.base - 0.3 * word.size) - 1
            if (row, column) in self._owner:
                words.setdefault(self._owner[row, column], []).append(word)
        drafts: list[RowDraft] = []
        for row in range(len(self._ys) - 1):
            columns = [column for column in range(len(self._xs) - 1) if self._owner[row, column] == (row, column)]
            cells = [self._build_cell(row, column, words.get((row, column), []), content.number) for column in columns]
            drafts += _split_row(cells)
        return [row for row in drafts if any(cell.lines for cell in row.cells)]

    def _build_cell(self, row: int, column: int, words: list[Word], page: int) -> CellDraft:
        rows = columns = 1
        while self._owner.get((row + rows, column)) == (row, column):
            rows += 1
        while self._owner.get((row, column + columns)) == (row, column):
            columns += 1
        lines = [Line(line, page) for line in group_rows(words)]
        return CellDraft(lines, row == 0, column, rows, columns)


def _is_drawn(rules: Sequence[RulingLine], at: float, through: float) -> bool:
    return any(abs(rule.at - at) <= 2 * TOUCH and rule.covers(through) for rule in rules)


def _split_row(cells: list[CellDraft]) -> list[RowDraft]:
    """Split a row at common baselines, if it holds several rows without rules between them."""
    first = cells[0].lines if cells else []
    if len(first) < SPLIT_LINES or any(cell.row_span > 1 for cell in cells):
        return [RowDraft(cells)]
    bases = [line.base for line in first]
    others = [line.base for cell in cells[1:] for line in cell.lines]
    shared = sum(1 for base in bases if any(abs(base - other) < 2 for other in others))
    if shared < 0.8 * len(bases) or len(others) > 1.2 * len(bases) * (len(cells) - 1):
        return [RowDraft(cells)]
    return [
        RowDraft([replace(cell, lines=[line for line in cell.lines if top <= line.base < bottom]) for cell in cells])
        for top, bottom in pairwise([-1e9, *(base - 2 for base in bases[1:]), 1e9])
    ]
