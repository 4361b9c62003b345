"""Tables without rules: rows whose words leave common vertical strips of white."""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from refdesk.documents.convert.pdf.layout import LEAST_STEP, Line, enclose_boxes
from refdesk.documents.convert.pdf.lists import parse_marker
from refdesk.documents.convert.pdf.page_reader import Word
from refdesk.documents.convert.pdf.tables import CAPTION, CellDraft, RowDraft, TableDraft
from refdesk.documents.model import Box

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
        table = _build_table(region, across, leading) if end - start >= MIN_ROWS else None
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


def _subtract_word(strip: Strip, word: Word) -> list[Strip]:
    left, right = strip
    return [piece for piece in ((left, min(right, word.left)), (max(left, word.right), right)) if piece[1] > piece[0]]


def _build_table(region: list[Line], across: Sequence[Box], leading: float) -> TableDraft | None:
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
    rows = _group_rows(region, cut_lines, leading)
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


def _group_rows(region: Sequence[Line], cut_lines: Sequence[list[list[Word]]], leading: float) -> list[RowDraft]:
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


Group = list[list[list[Word]]]


def _group_lines(cut_lines: Sequence[list[list[Word]]], starts: Sequence[bool]) -> list[Group]:
    """Group lines; `starts` tells for each line after the first one whether it starts a group."""
    groups: list[Group] = [[cut_lines[0]]]
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
