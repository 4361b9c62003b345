"""Lines of code with their indentation and empty lines, both read from where the letters stand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from refdesk.documents.convert.pdf.layout import Line

MAX_EMPTY_LINES = 3
"""In a row; more white than that is space around a block."""

MAX_COLUMN = 250
"""Spaces before a word; a page is never wider."""


def code_text(lines: Sequence[Line]) -> str:
    """The code, column by column as it stands on the page."""
    pitch = _pitch(lines)
    margin = min(line.left for line in lines)
    step = _line_step(lines)
    written = [_spaced(lines[0], margin, pitch)]
    for above, line in pairwise(lines):
        if above.page == line.page and line.base > above.base:
            empty = round((line.base - above.base) / step) - 1
            written += [""] * max(0, min(empty, MAX_EMPTY_LINES))
        written.append(_spaced(line, margin, pitch))
    return "\n".join(written)


def _pitch(lines: Sequence[Line]) -> float:
    """The width of one letter."""
    widths = [
        (word.right - word.left) / len(word.text)
        for line in lines
        for word in line.words
        if word.font.fixed and word.text
    ]
    return median(widths) if widths else 0.5 * lines[0].size


def _line_step(lines: Sequence[Line]) -> float:
    """The distance from one line to the next without an empty one between."""
    steps = sorted(
        line.base - above.base for above, line in pairwise(lines) if above.page == line.page and line.base > above.base
    )
    usual = steps[len(steps) // 4] if steps else 0.0
    return max(usual, 0.9 * lines[0].size)


def _spaced(line: Line, margin: float, pitch: float) -> str:
    """The line's words, each at its column."""
    text = ""
    for word in line.words:
        if text and word.glued:
            text += word.text
            continue
        column = min(round((word.left - margin) / pitch), MAX_COLUMN)
        if text:
            text += " " * max(1, column - len(text))
        else:
            text = " " * max(0, column)
        text += word.text
    return text
