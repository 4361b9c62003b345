"""Words to lines, and lines to the order in which they are read: columns one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from refdesk.documents.convert.pdf.fonts import Font
from refdesk.documents.convert.pdf.reading import PageContent, Word
from refdesk.documents.model import Box

RAISED = 0.45
"""Of the letter size: words whose baselines differ by less share a line (superscripts, indices)."""

ASCENT = 0.8
"""Of the letter size: how far letters rise above the baseline."""

DESCENT = 0.25
"""Of the letter size: how far letters fall below the baseline."""

WIDE_GAP = 1.5
"""Of the letter size: justified text never opens its spaces so far, so that what follows is another cell or column."""

GUTTER = 9.0
"""Points of white between two columns; typesetters leave 12 to 30."""

COLUMN_ROWS = 8
"""Rows that must respect a gutter before it is believed; fewer may be a table or a heading with a page number."""

COLUMN_FILL = 0.55
"""Of a column's width: running text fills it on average, cells of a table do not."""

CROSSING_ROWS = 0.25
"""Of all rows: titles, abstracts and wide figures may cross a gutter."""


@dataclass(slots=True)
class Line:
    """Words on one baseline, from left to right, that belong together."""

    words: list[Word]
    page: int
    left: float = field(init=False)
    right: float = field(init=False)
    base: float = field(init=False)
    size: float = field(init=False)
    font: Font = field(init=False)
    fixed: float = field(init=False)
    """The share of letters in fixed-pitch type."""
    bold: bool = field(init=False)
    text: str = field(init=False)
    bullet: bool = False
    """A dot is drawn before it."""

    def __post_init__(self) -> None:
        words = self.words
        self.left, self.right = words[0].left, max(word.right for word in words)
        main = max(words, key=_weight) if len(words) > 1 else words[0]
        self.base, self.size, self.font = main.base, main.size, main.font
        self.text = joined(words)
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


def _weight(word: Word) -> float:
    return len(word.text) * word.size


def joined(words: Iterable[Word]) -> str:
    """The words' text with the spaces that were between them."""
    pieces: list[str] = []
    for word in words:
        if not word.glued:
            pieces.append(" ")
        pieces.append(word.text)
    return "".join(pieces).strip()


def box_around(boxes: Sequence[Box]) -> Box:
    """The smallest box that holds all of them."""
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)


def rows_of(words: Sequence[Word]) -> list[list[Word]]:
    """Words by baseline from top to bottom, each row in the order of reading."""
    levels = [list(group) for _, group in groupby(sorted(words, key=_base), key=_base)]
    rows: list[list[Word]] = []
    for level in levels:
        if rows and _shares_line(rows[-1], level):
            rows[-1] += level
        else:
            rows.append(level)
    for row in rows:
        _arrange(row)
    return rows


def _base(word: Word) -> float:
    return word.base


def _shares_line(row: list[Word], level: list[Word]) -> bool:
    """Whether a level of words is so near to the row above that both are one line."""
    tallest = max(row, key=_size)
    size = max(tallest.size, max(map(_size, level)))
    distance = level[0].base - tallest.base
    if abs(distance) < 0.12 * size:
        return True
    return abs(distance) < RAISED * size and _fits_beside(row, level)


def _size(word: Word) -> float:
    return word.size


def _fits_beside(row: list[Word], level: list[Word]) -> bool:
    """Whether no word of one would be printed over a word of the other, as in two lines that overlap."""
    taken = sorted((word.left, word.right) for word in row)
    for word in level:
        for left, right in taken:
            if left >= word.right:
                break
            if min(right, word.right) - max(left, word.left) > 0.3 * word.size:
                return False
    return True


def _arrange(row: list[Word]) -> None:
    """From left to right, or from right to left where most letters are of a script that runs so."""
    if len(row) == 1:
        return
    backwards = sum(1 for word in row if not word.text.isascii() and _is_right_to_left(word.text))
    if 2 * backwards > len(row):
        row.sort(key=lambda word: -word.right)
        _forget_glue(row, backwards=True)
    else:
        before = row[:]
        row.sort(key=lambda word: word.left)
        if row != before:
            _forget_glue(row)


def _forget_glue(row: list[Word], backwards: bool = False) -> None:
    """In a new order, only words that touch belong together without a space."""
    row[0].glued = False
    for one, other in pairwise(row):
        gap = one.left - other.right if backwards else other.left - one.right
        other.glued = gap < 0.05 * other.size


def _is_right_to_left(text: str) -> bool:
    return any("\u0590" <= letter <= "\u08ff" or "\ufb1d" <= letter <= "\ufeff" for letter in text)


def pieces_of(row: Sequence[Word], gap: float = WIDE_GAP) -> list[list[Word]]:
    """A row cut at its wide gaps."""
    pieces = [[row[0]]]
    for one, other in pairwise(row):
        if other.left - one.right > gap * max(one.size, other.size) or other.right < one.left - gap * one.size:
            pieces.append([other])
        else:
            pieces[-1].append(other)
    return pieces


def lines_of(content: PageContent) -> list[Line]:
    """The page's lines in reading order."""
    rows = rows_of(content.words)
    gutters = gutters_of(rows)
    if not gutters:
        return [Line(row, content.number) for row in rows]
    return [Line(row, content.number) for row in _by_column(rows, gutters)]


def gutters_of(rows: Sequence[list[Word]]) -> list[float]:
    """Where columns of running text are divided; empty on an ordinary page."""
    wide = [row for row in rows if _has_gap(row)]
    if len(wide) < COLUMN_ROWS or len(wide) < 0.4 * len(rows):
        return []
    spans = [[(piece[0].left, piece[-1].right) for piece in pieces_of(row, 0.8)] for row in rows]
    candidates = _white_strips(spans)
    return candidates if candidates and _is_running_text(spans, candidates) else []


def _has_gap(row: Sequence[Word]) -> bool:
    return any(other.left - one.right >= GUTTER for one, other in pairwise(row))


def _white_strips(spans: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """The middles of vertical strips that hardly any row crosses, inside of the printed area."""
    covered: Counter[int] = Counter()
    for row in spans:
        for left, right in row:
            covered.update(range(int(left) // 2, int(right) // 2 + 1))
    if not covered:
        return []
    first, last = min(covered), max(covered)
    allowed = CROSSING_ROWS * len(spans)
    strips: list[float] = []
    start: int | None = None
    for place in range(first, last + 2):
        white = covered[place] <= allowed
        if white and start is None:
            start = place
        elif not white and start is not None:
            if start > first and 2 * (place - start) >= GUTTER:
                strips.append(float(start + place))
            start = None
    return strips


def _is_running_text(spans: Sequence[Sequence[tuple[float, float]]], gutters: Sequence[float]) -> bool:
    """Whether the columns between gutters are filled as prose fills them, all of them, and about alike."""
    columns: list[list[tuple[float, float]]] = [[] for _ in range(len(gutters) + 1)]
    for row in spans:
        if any(left < gutter < right for left, right in row for gutter in gutters):
            continue
        for left, right in row:
            columns[sum(gutter < left for gutter in gutters)].append((left, right))
    if min(map(len, columns)) < COLUMN_ROWS:
        return False
    widths = [max(right for _, right in column) - min(left for left, _ in column) for column in columns]
    if min(widths) < 0.5 * max(widths):
        return False
    return all(
        sum(right - left for left, right in column) >= COLUMN_FILL * width * len(column)
        for column, width in zip(columns, widths, strict=True)
    )


def _by_column(rows: Sequence[list[Word]], gutters: Sequence[float]) -> list[list[Word]]:
    """Rows that cross a gutter divide the page; between them, column after column."""
    ordered: list[list[Word]] = []
    columns: list[list[list[Word]]] = [[] for _ in range(len(gutters) + 1)]

    def finish() -> None:
        for column in columns:
            ordered.extend(column)
            column.clear()

    for row in rows:
        parts = _parts(row, gutters)
        if parts is None:
            finish()
            ordered.append(row)
            continue
        for column, part in zip(columns, parts, strict=True):
            if part:
                column.append(part)
    finish()
    return ordered


def _parts(row: Sequence[Word], gutters: Sequence[float]) -> list[list[Word]] | None:
    """The row's words by column, or None when some word or a run without a gap crosses a gutter."""
    parts: list[list[Word]] = [[] for _ in range(len(gutters) + 1)]
    for piece in pieces_of(row, 0.8):
        left, right = min(word.left for word in piece), max(word.right for word in piece)
        if any(left < gutter < right for gutter in gutters):
            return None
        parts[sum(gutter < left for gutter in gutters)] += piece
    return parts
