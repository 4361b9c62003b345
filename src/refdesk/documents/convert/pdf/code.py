"""Code blocks: detection, and reconstruction of indentation and empty lines from letter positions."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from statistics import median

from .layout import PARAGRAPH_GAP, Line, Measures
from .lists import SURE_BULLETS

CODE_SHARE = 0.9
"""Share of fixed-pitch letters; the rest are prompts, arrows and line-end marks."""

MIXED_CODE_SHARE = 0.25
"""Share of fixed-pitch letters in a line that starts with one directly below code."""

PROSE_SHARE = 0.45
"""Share of fixed-pitch letters below which a line is running text."""

CODE_STEP = 1.1
"""In usual baseline distances: maximum distance of code lines, apart from empty lines."""

FEW_LINES = 2
"""A run up to this length may be a term or part of a paragraph; a longer one is code."""

TERM_INDENT = 1.0
"""In letter sizes: indent of a definition below its term."""

TERM_GAP = 3.0
"""In usual baseline distances: maximum distance of a definition from its term."""

INLINE_SLACK = 0.6
"""In letter sizes: a line that lacks at most this and a word is full."""

MAX_EMPTY_LINES = 3
"""Consecutive empty lines; more white is space around a block."""

MAX_COLUMN = 250
"""Spaces before a word; pages aren't wider."""

NEAR_EDGE = 4.0
"""In letter sizes: if no code line comes this near to the right edge, none was wrapped there."""

CONTINUATION_MARKS = ("←-", "←↩", "↩", "⤶", "↵")
"""Marks that typesetters put at the end of a wrapped code line."""

_ADDRESS = re.compile(r"[<(]?(?:(?:https?|ftp|mailto):\S+|[\w.+-]+@[\w-]+(?:\.[\w-]+)+)[>).,;]*", re.I)
"""A link or mail address alone on its line, often set in fixed pitch."""


def find_code_lines(
    lines: Sequence[Line], headings: Container[int], limits: Mapping[int, float], measures: Measures
) -> set[int]:
    """Return the ids of the lines that are code."""
    fixed = [line.fixed >= CODE_SHARE and id(line) not in headings and _can_be_code(line) for line in lines]
    for place in range(1, len(lines)):
        if fixed[place - 1] and not fixed[place] and _continues_code(lines[place - 1], lines[place], measures):
            fixed[place] = True
    found: set[int] = set()
    term_lefts: set[int] = set()
    edges = [0, *(place for place in range(1, len(fixed)) if fixed[place] != fixed[place - 1]), len(fixed)]
    for start, end in pairwise(edges):
        if start == end or not fixed[start]:
            continue
        if _is_inline(lines, start, end, limits, measures) or _is_among_prose(lines, start, end, measures):
            continue
        first = _skip_terms(lines, start, end, measures)
        if first > start:
            term_lefts.add(round(lines[start].left))
        elif end == len(lines) and end - start <= FEW_LINES and round(lines[start].left) in term_lefts:
            continue  # terms whose definition is on the next page
        found.update(map(id, lines[first:end]))
    return found


def _can_be_code(line: Line) -> bool:
    """Whether a line can be code: list items, addresses and tagged paragraphs can't."""
    if line.words[0].text in SURE_BULLETS or _ADDRESS.fullmatch(line.text):
        return False
    return line.tag is None or line.tag.kind == "container"


def _continues_code(above: Line, line: Line, measures: Measures) -> bool:
    """Whether a line of mixed fonts continues the code above it, such as one with a comment in roman."""
    near = 0 < line.base - above.base < PARAGRAPH_GAP * measures.leading * above.size
    return near and line.fixed >= MIXED_CODE_SHARE and line.words[0].font.fixed and _can_be_code(line)


def _is_inline(lines: Sequence[Line], start: int, end: int, limits: Mapping[int, float], measures: Measures) -> bool:
    """Whether a run is inline code in a paragraph that happens to fill whole lines."""
    if end - start > FEW_LINES or not start:
        return False
    above, first = lines[start - 1], lines[start]
    near = 0 < first.base - above.base < PARAGRAPH_GAP * measures.leading * above.size
    flush = _is_aligned_under(above, first)
    word = first.words[0]
    full = above.right + (word.right - word.left) + INLINE_SLACK * first.size >= limits[above.column]
    return near and flush and full


def _is_among_prose(lines: Sequence[Line], start: int, end: int, measures: Measures) -> bool:
    """Whether neither white space nor an indent separates a run from the text around it."""
    if end - start > FEW_LINES:
        return False
    above = start > 0 and _is_adjacent(lines[start - 1], lines[start], measures)
    below = end < len(lines) and _is_adjacent(lines[end - 1], lines[end], measures)
    return above or below


def _is_adjacent(upper: Line, lower: Line, measures: Measures) -> bool:
    near = 0 < lower.base - upper.base <= CODE_STEP * measures.leading * max(upper.size, lower.size)
    return near and (_is_aligned_under(upper, lower) or abs(upper.left - lower.left) < 2)


def _is_aligned_under(above: Line, line: Line) -> bool:
    """Whether a line starts where the one above does, or where its text does after a marker."""
    return any(abs(word.left - line.left) < 2 for word in above.words[:2])


def _skip_terms(lines: Sequence[Line], start: int, end: int, measures: Measures) -> int:
    """Return where the code of a run starts after the terms that may precede it.

    A term is farther left than its definition, be that text or code, and separated from it.
    """
    first = lines[start]
    level = next((at for at in range(start, end) if abs(lines[at].left - first.left) >= 2), end)
    if level == len(lines):
        return start
    last, below = lines[level - 1], lines[level]
    step = (below.base - last.base) / (measures.leading * last.size)
    if below.left < last.left + TERM_INDENT * last.size or not 0 < step < TERM_GAP:
        return start
    if level == end:
        return end
    return level if step > CODE_STEP and level - start <= FEW_LINES else start


def find_wrap_place(prose_reach: float, code_reach: float, size: float) -> float | None:
    """Return where long code lines were wrapped: the right edge of the text, if some come near and none crosses it."""
    return code_reach if prose_reach - NEAR_EDGE * size <= code_reach <= prose_reach + 2 else None


def render_code(lines: Sequence[Line], wrap_at: float | None = None) -> str:
    """Render code by columns as on the page; lines wrapped at `wrap_at` are joined."""
    letters = [word for line in lines for word in line.words if word.font.fixed and word.text]
    widths = [(word.right - word.left) / len(word.text) for word in letters]
    pitch = max(median(widths), 0.5) if widths else 0.5 * lines[0].size
    margin = min(line.left for line in lines)
    steps = [line.base - above.base for above, line in pairwise(lines) if above.page == line.page]
    steps = sorted(step for step in steps if step > 0)
    step = max(steps[len(steps) // 4] if steps else 0.0, 0.9 * lines[0].size)
    written = [_render_line(lines[0], margin, pitch)]
    for above, line in pairwise(lines):
        if sign := next((sign for sign in CONTINUATION_MARKS if written[-1].endswith(sign)), None):
            written[-1] = f"{written[-1].removesuffix(sign).rstrip()} {line.text}"
        elif wrap_at and _is_wrapped(above, line, margin, pitch, wrap_at):
            written[-1] += line.text if written[-1].endswith("-") else f" {line.text}"
        else:
            if above.page == line.page and line.base > above.base:
                written += [""] * min(round((line.base - above.base) / step) - 1, MAX_EMPTY_LINES)
            written.append(_render_line(line, margin, pitch))
    return "\n".join(written)


def _is_wrapped(above: Line, line: Line, margin: float, pitch: float, wrap_at: float) -> bool:
    """Whether a line starts at the margin because its first word didn't fit above."""
    if line.left > margin + pitch / 2:
        return False
    first = line.words[0].text
    breakable = first.find("-", 1, -1) + 1 or len(first)
    return above.right + (breakable + 1) * pitch > wrap_at + pitch / 2


def _render_line(line: Line, margin: float, pitch: float) -> str:
    text = ""
    for word in line.words:
        if text and word.glued:
            text += word.text
            continue
        column = min(round((word.left - margin) / pitch), MAX_COLUMN)
        text += " " * max(column - len(text), 1 if text else 0) + word.text
    return text
