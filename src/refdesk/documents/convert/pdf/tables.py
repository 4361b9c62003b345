"""Table drafts from tags, rules or alignment, and their conversion to a grid."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from refdesk.documents.model import Box, Cell, Place, Table

from .layout import LEAST_STEP, Line, enclose_boxes, group_rows
from .lists import parse_marker
from .page_reader import PageContent, Word
from .tags import CellTag, Tags
from .text import Vocabulary, join_lines

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
            text, _ = join_lines(cell.lines, vocabulary)
            cells.append(Cell(text, at, column, rows, cell.column_span, cell.header))
            column += cell.column_span
    columns = max((cell.column + cell.column_span for cell in cells), default=0)
    caption, _ = join_lines(table.caption, vocabulary)
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
    tables = [_build_ruled_table(content, *group) for group in _group_rules(merge_rules(across), merge_rules(down))]
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


def _build_ruled_table(content: PageContent, across: list[RulingLine], down: list[RulingLine]) -> TableDraft | None:
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


SEED_GAP = 1.4
"""In letter sizes: a gap wider than in running text, which seeds a table."""

MIN_STRIP = 0.45
"""In letter sizes: minimum white between two columns."""

MIN_STRIP_UNDER_HEADER = 0.2
"""The same below a bold header row; browsers leave hardly more than a space."""

MAX_LINE_GAP = 2.4
"""In usual baseline distances: lines farther apart aren't in one table."""

ROW_GAP = 1.1
"""In line distances within a cell: a wider step starts a row."""

FIXED_SHARE = 0.9
"""Share of fixed-pitch letters from which a line may be code."""

CODE_LINES = 0.6
"""Share of fixed-pitch lines from which an aligned region is code."""

ALIGN_TOLERANCE = 2.5
"""Points by which cells of a column may be misaligned."""

MIN_ROWS = 3
"""Fewer rows may be a numbered heading or a line of signatures."""

MAX_HEADER_LINES = 4
"""Bold lines of a header row; more are bold text."""

COLUMN_FILL = 0.5
"""Share of filled rows; an emptier column is accidental spacing."""

_LEADERS = re.compile(r"(?:\.\s?){4,}|(?:…\s?){2,}")

Strip = tuple[float, float]


def find_aligned_tables(
    lines: Sequence[Line], across: Sequence[Box], leading: float
) -> list[tuple[TableDraft, list[Line]]]:
    """Return the tables among lines that are neither headings nor code, each with its lines."""
    found: list[tuple[TableDraft, list[Line]]] = []
    start = 0
    while start < len(lines):
        seed = start
        end = _find_region_end(lines, start, leading)
        while end - seed >= MIN_ROWS - 1 and start and _is_header_row(lines[start - 1], lines[start], leading):
            start -= 1
        region = list(lines[start:end])
        table = _build_aligned_table(region, across, leading) if end - start >= MIN_ROWS else None
        if table:
            found.append((table, region))
            start = end
        else:
            start = max(start + 1, seed + 1)
    return found


def _find_region_end(lines: Sequence[Line], start: int, leading: float) -> int:
    """Return how far the white strips of a line or its successors stay open."""
    strips = _find_gaps(lines[start], SEED_GAP)
    if not strips or _is_list_or_contents(lines[start]) or lines[start].fixed > FIXED_SHARE:
        return start
    end = start + 1
    while end < len(lines):
        line, above = lines[end], lines[end - 1]
        step = line.base - above.base
        if step <= 0 or step > MAX_LINE_GAP * leading * above.size or _LEADERS.search(line.text):
            break
        remaining = _narrow_strips(strips, line)
        if len(remaining) < len(strips):
            break
        strips = remaining
        end += 1
    while end > start + 1:
        last, above = lines[end - 1], lines[end - 2]
        if last.right > strips[0][1] or last.base - above.base <= 1.25 * leading * last.size:
            break
        end -= 1
    return end


def _is_header_row(above: Line, line: Line, leading: float) -> bool:
    near = 0 < line.base - above.base < MAX_LINE_GAP * leading * line.size
    return near and above.bold and len(above.words) > 1 and not CAPTION.match(above.text)


def _is_list_or_contents(line: Line) -> bool:
    """Whether a line belongs to a list or a contents page, which are aligned, too."""
    return bool(_LEADERS.search(line.text)) or (parse_marker(line) is not None and len(_find_gaps(line, SEED_GAP)) < 2)


def _find_gaps(line: Line, least: float) -> list[Strip]:
    gaps: list[Strip] = []
    reached = line.words[0].right
    for word in line.words[1:]:
        if word.left - reached > least * word.size:
            gaps.append((reached, word.left))
        reached = max(reached, word.right)
    return gaps


def _narrow_strips(strips: Sequence[Strip], line: Line) -> list[Strip]:
    """Return what a line leaves of the strips, without those that it closes."""
    kept: list[Strip] = []
    for left, right in strips:
        pieces = [(left, right)]
        for word in line.words:
            if word.right > left and word.left < right:
                parts = [((one, min(other, word.left)), (max(one, word.right), other)) for one, other in pieces]
                pieces = [piece for pair in parts for piece in pair if piece[1] > piece[0]]
        widest = max(pieces, key=lambda piece: piece[1] - piece[0], default=(0.0, 0.0))
        if widest[1] - widest[0] >= MIN_STRIP_UNDER_HEADER * line.size:
            kept.append(widest)
    return kept


def _build_aligned_table(region: list[Line], across: Sequence[Box], leading: float) -> TableDraft | None:
    headed = _count_header_lines(region) > 0
    if not headed and sum(line.fixed > FIXED_SHARE for line in region) > CODE_LINES * len(region):
        return None
    cuts = _find_cuts(region)
    if not cuts:
        return None
    cut_lines: list[list[list[Word]]] = []
    for line in region:
        cut_lines.append([[] for _ in range(len(cuts) + 1)])
        for word in line.words:
            cut_lines[-1][bisect(cuts, (word.left + word.right) / 2)].append(word)
    rows = _group_aligned_rows(region, cut_lines, leading)
    if len(rows) < MIN_ROWS or not _are_columns_filled(rows, len(cuts) + 1, headed):
        return None
    if len(cuts) == 1 and not headed and not _has_header_rule(rows, across):
        return None
    for cell in rows[0].cells:
        cell.header = True
    box = enclose_boxes([line.box for line in region])
    return TableDraft(rows, region[0].page, box, columns=(box[0], *cuts, box[2]))


def _find_cuts(region: Sequence[Line]) -> list[float]:
    """Return the column boundaries: strips that no word crosses and with aligned words beside them."""
    heads = region[: _count_header_lines(region)]
    size = region[0].size
    strips: list[Strip] = []
    reached: float | None = None
    for left, right in sorted((word.left, word.right) for line in region for word in line.words):
        if reached is not None and left - reached >= size * (MIN_STRIP_UNDER_HEADER if heads else MIN_STRIP):
            strips.append((reached, left))
        reached = right if reached is None else max(reached, right)
    ends = [*(left for left, _ in strips), float("inf")][1:]
    return [
        (left + right) / 2
        for (left, right), end in zip(strips, ends, strict=True)
        if _is_aligned(region, left, end)
        or (right - left >= MIN_STRIP * size and any(left < word.left < end for line in heads for word in line.words))
    ]


def _count_header_lines(region: Sequence[Line]) -> int:
    """Count the leading bold lines; 0 without a header."""
    bold = next((place for place, line in enumerate(region) if not line.bold), 0)
    return bold if bold <= MAX_HEADER_LINES else 0


def _is_aligned(region: Sequence[Line], start: float, end: float) -> bool:
    """Whether the words between two cuts are flush on one side or centred, and not all equal."""
    parts = [part for line in region if (part := [word for word in line.words if start < word.left < end])]
    if len(parts) < MIN_ROWS or len({" ".join(word.text for word in part) for part in parts}) < 2:
        return False
    lefts = [part[0].left for part in parts]
    rights = [part[-1].right for part in parts]
    middles = [(left + right) / 2 for left, right in zip(lefts, rights, strict=True)]
    for places in (lefts, rights, middles):
        middle = median(places)
        if sum(abs(place - middle) <= ALIGN_TOLERANCE for place in places) >= 0.7 * len(places):
            return True
    return False


def _group_aligned_rows(
    region: Sequence[Line], cut_lines: Sequence[list[list[Word]]], leading: float
) -> list[RowDraft]:
    """Group lines to rows: by wider steps if any, else at each line with a filled first column."""
    within = min(leading * region[0].size, _measure_cell_step(region, cut_lines))
    steps = [line.base - above.base for above, line in pairwise(region)]
    groups = _group_lines(cut_lines, [step > ROW_GAP * within for step in steps])
    # Most groups have to be one row: their first column starts only once.
    single = sum(1 for group in groups if sum(1 for columns in group if columns[0] and any(columns[1:])) <= 1)
    if len(groups) < MIN_ROWS or single < 0.6 * len(groups):
        groups = _group_lines(cut_lines, [bool(columns[0]) for columns in cut_lines[1:]])
    page = region[0].page
    return [
        RowDraft([CellDraft([Line(words, page) for words in column if words]) for column in zip(*group, strict=True)])
        for group in groups
    ]


LineGroup = list[list[list[Word]]]


def _group_lines(cut_lines: Sequence[list[list[Word]]], starts: Sequence[bool]) -> list[LineGroup]:
    """Group lines; `starts` tells for each line after the first one whether it starts a group."""
    groups: list[LineGroup] = [[cut_lines[0]]]
    for is_start, columns in zip(starts, cut_lines[1:], strict=True):
        if is_start:
            groups.append([columns])
        else:
            groups[-1].append(columns)
    return groups


def _measure_cell_step(region: Sequence[Line], cut_lines: Sequence[list[list[Word]]]) -> float:
    """Return the smallest distance of two lines in one column, which are lines of one cell if any are."""
    last: dict[int, float] = {}
    steps: list[float] = []
    for line, columns in zip(region, cut_lines, strict=True):
        for column, words in enumerate(columns):
            if words:
                steps.append(line.base - last.get(column, float("-inf")))
                last[column] = line.base
    return min(step for step in steps if step >= LEAST_STEP * region[0].size)


def _are_columns_filled(rows: Sequence[RowDraft], count: int, headed: bool) -> bool:
    """Whether every column has a header or is filled in many rows."""
    return all(
        (headed and rows[0].cells[column].lines)
        or sum(1 for row in rows if row.cells[column].lines) >= COLUMN_FILL * len(rows)
        for column in range(count)
    )


def _has_header_rule(rows: Sequence[RowDraft], across: Sequence[Box]) -> bool:
    """Whether a rule is drawn below the first row.

    Two columns without a header are terms with definitions.
    """
    first = [line for cell in rows[0].cells for line in cell.lines]
    second = [line for cell in rows[1].cells for line in cell.lines]
    low, high = max(line.base for line in first), min(line.base for line in second)
    left, right = min(line.left for line in first), max(line.right for line in first)
    return any(low <= rule[1] <= high and rule[0] <= left + 3 and rule[2] >= right - 3 for rule in across)
