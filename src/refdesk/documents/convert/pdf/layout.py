"""Words to lines, lines to reading order column by column, and the typical measures of a document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import attrgetter
from statistics import median

from refdesk.documents.model import Box

from .page_reader import PageContent, Word
from .tags import Tag

RAISED = 0.45
"""In letter sizes: words whose baselines differ by less share a line (superscripts, indices)."""

ASCENT = 0.8
"""In letter sizes: height above the baseline."""

DESCENT = 0.25
"""In letter sizes: depth below the baseline."""

BULLET_REACH = 3.0
"""In letter sizes: maximum distance of a drawn bullet from its line."""

WIDE_GAP = 1.5
"""In letter sizes: wider than spaces of justified text, so another cell or column follows."""

GUTTER = 7.0
"""Points of white between columns; typesetters leave 10 to 30."""

COLUMN_GAP = 0.65
"""In letter sizes: gap at which rows are split to find columns."""

COMMON_PAGES = 0.3
"""Share of pages from which a gutter is also assumed on the others."""

STRAY_ROWS = 2
"""Rows that may reach into a gutter: a page number, an overflowing line."""

WHOLE_WIDTH = -1
"""Column of lines that cross all columns."""

COLUMN_ROWS = 8
"""Rows that have to respect a gutter; fewer may be a table or a heading with a page number."""

COLUMN_FILL = 0.55
"""Share of a column's width that running text fills on average, unlike table cells."""

COLUMN_EMS = 11.0
"""Average line length of a text column in letter sizes, whatever the script; cells are shorter."""

CROSSING_ROWS = 0.25
"""Share of rows, such as titles and wide figures, that may cross a gutter."""


@dataclass(slots=True)
class Line:
    """Words on one baseline, from left to right, that belong together."""

    words: list[Word]
    page: int
    column: int = 0
    """Column on the page, or WHOLE_WIDTH."""
    left: float = field(init=False)
    right: float = field(init=False)
    base: float = field(init=False)
    size: float = field(init=False)
    fixed: float = field(init=False)
    """Share of letters in fixed pitch."""
    bold: bool = field(init=False)
    text: str = field(init=False)
    bullet: bool = False
    """Whether a bullet is drawn before it."""
    labels: frozenset[int] = frozenset()
    """Marks of its words that are an item's label."""
    tag: Tag | None = None
    """Structure element of most of its words."""

    def __post_init__(self) -> None:
        words = self.words
        self.left, self.right = words[0].left, max(word.right for word in words)
        main = max(words, key=lambda word: len(word.text) * word.size) if len(words) > 1 else words[0]
        self.base, self.size = main.base, main.size
        self.text = join_words(words)
        total = fixed = 0
        bold = True
        for word in words:
            letters = len(word.text)
            total += letters
            if word.font.fixed:
                fixed += letters
            bold = bold and word.font.bold
        self.fixed = fixed / total
        self.bold = bold

    @property
    def top(self) -> float:
        return self.base - ASCENT * self.size

    @property
    def bottom(self) -> float:
        return self.base + DESCENT * self.size

    @property
    def box(self) -> Box:
        return self.left, self.top, self.right, self.bottom


def join_words(words: Iterable[Word]) -> str:
    """Join words with the spaces between them."""
    pieces: list[str] = []
    for word in words:
        if not word.glued:
            pieces.append(" ")
        pieces.append(word.text)
    return "".join(pieces).strip()


def enclose_boxes(boxes: Sequence[Box]) -> Box:
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def group_rows(words: Sequence[Word]) -> list[list[Word]]:
    """Group words by baseline from top to bottom, each row in reading order."""
    levels = [list(group) for _, group in groupby(sorted(words, key=_get_base), key=_get_base)]
    rows: list[list[Word]] = []
    for level in levels:
        if rows and _shares_line(rows[-1], level):
            rows[-1] += level
        else:
            rows.append(level)
    for row in rows:
        _arrange(row)
    return rows


_get_base, _get_size = attrgetter("base"), attrgetter("size")


def _shares_line(row: list[Word], level: list[Word]) -> bool:
    """Whether words are close enough to the row above to be on one line."""
    tallest: Word = max(row, key=_get_size)
    size = max(tallest.size, max(map(_get_size, level)))
    distance = level[0].base - tallest.base
    return abs(distance) < 0.12 * size or (abs(distance) < RAISED * size and _fits_beside(row, level))


def _fits_beside(row: list[Word], level: list[Word]) -> bool:
    """Whether no words of the two overlap, as they would in overlapping lines."""
    taken = sorted((word.left, word.right) for word in row)
    for word in level:
        for left, right in taken:
            if left >= word.right:
                break
            if min(right, word.right) - max(left, word.left) > 0.3 * word.size:
                return False
    return True


def _arrange(row: list[Word]) -> None:
    """Sort from left to right, or from right to left if most words are in such a script."""
    if len(row) == 1:
        return
    backwards = sum(
        1
        for word in row
        if not word.text.isascii()
        and any("\u0590" <= letter <= "\u08ff" or "\ufb1d" <= letter <= "\ufeff" for letter in word.text)
    )
    if 2 * backwards > len(row):
        row.sort(key=lambda word: -word.right)
        _reset_glue(row, backwards=True)
    else:
        before = row[:]
        row.sort(key=lambda word: word.left)
        if row != before:
            _reset_glue(row)


def _reset_glue(row: list[Word], backwards: bool = False) -> None:
    """Glue only touching words in the new order."""
    row[0].glued = False
    for one, other in pairwise(row):
        gap = one.left - other.right if backwards else other.left - one.right
        other.glued = gap < 0.05 * other.size


def split_row(row: Sequence[Word], gap: float = WIDE_GAP) -> list[list[Word]]:
    """Split a row at wide gaps."""
    pieces = [[row[0]]]
    for one, other in pairwise(row):
        if other.left - one.right > gap * max(one.size, other.size) or other.right < one.left - gap * one.size:
            pieces.append([other])
        else:
            pieces[-1].append(other)
    return pieces


def build_lines(content: PageContent, known_gutters: Sequence[float] = ()) -> list[Line]:
    """Return the page's lines in reading order; `known_gutters` are those of other pages."""
    rows = group_rows(content.words)
    gutters = find_gutters(rows) or [gutter for gutter in known_gutters if _has_gutter(rows, gutter)]
    if gutters:
        lines = [Line(row, content.number, column) for column, row in _order_by_column(rows, gutters)]
    else:
        lines = [Line(row, content.number) for row in rows]
    if content.tags:
        for line in lines:
            # The element of most words that aren't a label.
            found = [(word, content.tags[word.mark]) for word in line.words if word.mark in content.tags]
            line.labels = frozenset(word.mark for word, tag in found if tag.kind == "label")
            counted = Counter[Tag]()
            for word, tag in found:
                if tag.kind != "label":
                    counted[tag] += len(word.text)
            if counted:
                line.tag = counted.most_common(1)[0][0]
    elif content.dots:
        _mark_bullets(lines, content.dots)
    return lines


def _mark_bullets(lines: Sequence[Line], dots: Sequence[Box]) -> None:
    """Mark lines with a drawn bullet; a page with more dots than lines is a plot."""
    if len(dots) > 2 * len(lines):
        return
    for left, top, right, bottom in dots:
        for line in lines:
            beside = line.left - BULLET_REACH * line.size < left and right < line.left
            if beside and line.top < (top + bottom) / 2 < line.base:
                line.bullet = True


def find_gutters(rows: Sequence[list[Word]]) -> list[float]:
    """Return the gutters between text columns; empty on an ordinary page."""
    if len(rows) < 2 * COLUMN_ROWS:
        return []
    spans = [[_measure_extent(piece) for piece in split_row(row, COLUMN_GAP)] for row in rows]
    candidates = _find_white_strips(spans)
    size = median(row[0].size for row in rows)
    return candidates if candidates and _is_running_text(spans, candidates, size) else []


def find_common_gutters(pages: Sequence[Sequence[float]]) -> list[float]:
    """Return the gutters that many pages have."""
    counted = Counter(round(gutter / GUTTER) for gutters in pages for gutter in gutters)
    common = {place for place, count in counted.items() if count >= COMMON_PAGES * len(pages)}
    found = {round(gutter / GUTTER): gutter for gutters in pages for gutter in gutters}
    return sorted(found[place] for place in common)


def _has_gutter(rows: Sequence[list[Word]], gutter: float) -> bool:
    """Whether a page keeps the gutter of other pages free."""
    crossing = sum(1 for row in rows if _split_at_gutters(row, [gutter]) is None)
    right = sum(1 for row in rows if row[-1].left > gutter)
    return right >= COLUMN_ROWS / 2 and crossing <= CROSSING_ROWS * len(rows)


def _measure_extent(words: Sequence[Word]) -> tuple[float, float]:
    return min(word.left for word in words), max(word.right for word in words)


def _find_white_strips(spans: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Return the middles of vertical strips that hardly any row crosses, within the printed area."""
    changes: Counter[int] = Counter()
    for row in spans:
        for left, right in row:
            changes[int(left)] += 1
            changes[int(right) + 1] -= 1
    allowed = CROSSING_ROWS * len(spans)
    strips: list[float] = []
    stretch: list[tuple[int, int]] = []
    covering, begun = 0, False
    for place in sorted(changes):
        if begun and covering <= allowed:
            stretch.append((place, covering))
        covering += changes[place]
        if covering > allowed:
            strips += _find_whitest(stretch)
            stretch, begun = [], True
        elif begun and not stretch:
            stretch = [(place, covering)]
    return strips


def _find_whitest(stretch: Sequence[tuple[int, int]]) -> list[float]:
    """Return the middle of the widest, whitest part of a strip, if it is wide enough.

    The stretch holds positions with the number of rows that cover the part ending there; the first is its start.
    """
    if not stretch:
        return []
    least = min(covering for _, covering in stretch) + STRAY_ROWS
    best, start = (0, 0), stretch[0][0]
    for place, covering in stretch[1:]:
        if covering > least:
            start = place
        elif place - start > best[1] - best[0]:
            best = (start, place)
    return [(best[0] + best[1]) / 2] if best[1] - best[0] >= GUTTER else []


def _is_running_text(spans: Sequence[Sequence[tuple[float, float]]], gutters: Sequence[float], size: float) -> bool:
    """Whether all columns are filled like prose, and similarly."""
    columns: list[list[tuple[float, float]]] = [[] for _ in range(len(gutters) + 1)]
    for row in spans:
        if any(left < gutter < right for left, right in row for gutter in gutters):
            continue
        parts: dict[int, tuple[float, float]] = {}
        for left, right in row:
            column = sum(gutter < left for gutter in gutters)
            parts[column] = (min(left, parts.get(column, (left, right))[0]), right)
        for column, part in parts.items():
            columns[column].append(part)
    if min(map(len, columns)) < COLUMN_ROWS:
        return False
    # Up to the right end of all but the longest tenth of the lines, some of which overflow.
    widths = [
        sorted(right for _, right in column)[(9 * len(column)) // 10] - min(left for left, _ in column)
        for column in columns
    ]
    if min(widths) < 0.5 * max(widths):
        return False
    return all(
        sum(right - left for left, right in column) >= max(COLUMN_FILL * width, COLUMN_EMS * size) * len(column)
        for column, width in zip(columns, widths, strict=True)
    )


def _order_by_column(rows: Sequence[list[Word]], gutters: Sequence[float]) -> list[tuple[int, list[Word]]]:
    """Order rows column by column between rows that cross a gutter."""
    ordered: list[tuple[int, list[Word]]] = []
    columns: list[list[list[Word]]] = [[] for _ in range(len(gutters) + 1)]

    def finish() -> None:
        for number, column in enumerate(columns):
            ordered.extend((number, part) for part in column)
            column.clear()

    for row in rows:
        parts = _split_at_gutters(row, gutters)
        if parts is None and all(word.font.fixed for word in row):
            parts = [[] for _ in columns]
            parts[sum(gutter < row[0].left for gutter in gutters)] = row
        if parts is None:
            finish()
            ordered.append((WHOLE_WIDTH, row))
            continue
        for column, part in zip(columns, parts, strict=True):
            if part:
                column.append(part)
    finish()
    return ordered


def _split_at_gutters(row: Sequence[Word], gutters: Sequence[float]) -> list[list[Word]] | None:
    """Split a row's words by column; None if a word or a run without gap crosses a gutter."""
    parts: list[list[Word]] = [[] for _ in range(len(gutters) + 1)]
    for piece in split_row(row, COLUMN_GAP):
        left, right = min(word.left for word in piece), max(word.right for word in piece)
        if any(left < gutter < right for gutter in gutters):
            return None
        parts[sum(gutter < left for gutter in gutters)] += piece
    return parts


DEFAULT_LEADING = 1.2
"""Baseline distance over letter size in documents too short to measure."""

COMMON_STEP = 0.5
"""Share of the most common distance's count from which a distance is common."""

LEAST_STEP = 0.9
"""In letter sizes: closer lines overlap."""

PARAGRAPH_GAP = 1.28
"""In usual baseline distances: a wider step opens a paragraph."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Usual letter size in points, baseline distance over letter size, and left edge of running text."""

    body_size: float = 10.0
    leading: float = DEFAULT_LEADING
    body_left: float = 72.0


def measure(pages: Iterable[Sequence[Line]]) -> Measures:
    """Measure some pages."""
    sizes: Counter[float] = Counter()
    steps: Counter[float] = Counter()
    lefts: Counter[int] = Counter()
    for lines in pages:
        above: Line | None = None
        for line in lines:
            if line.fixed < 0.5:
                sizes[round(line.size * 4) / 4] += len(line.text)
                lefts[round(line.left)] += len(line.text)
                if (
                    above
                    and abs(above.size - line.size) < 0.3
                    and LEAST_STEP * line.size < line.base - above.base < 2.5 * line.size
                ):
                    steps[round((line.base - above.base) / line.size, 2)] += 1
            above = line
    return Measures(
        sizes.most_common(1)[0][0] if sizes else 10.0,
        _find_usual_step(steps),
        float(lefts.most_common(1)[0][0]) if lefts else 72.0,
    )


def _find_usual_step(steps: Counter[float]) -> float:
    """Return the smallest common distance, since lines are closer than paragraphs."""
    if not steps:
        return DEFAULT_LEADING
    often = COMMON_STEP * max(steps.values())
    return min(step for step, count in steps.items() if count >= often)


def compute_area(box: Box) -> float:
    left, top, right, bottom = box
    return max(right - left, 0.0) * max(bottom - top, 0.0)
