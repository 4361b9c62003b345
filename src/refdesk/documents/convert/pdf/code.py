"""Lines of code with their indentation and empty lines, both read from where the letters stand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from refdesk.documents.convert.pdf.layout import Line

MAX_EMPTY_LINES = 3
"""In a row; more white than that is space around a block."""

NEAR_EDGE = 4.0
"""Of the letter size: when no line of code comes so near to the text's right edge, none was broken there."""

CONTINUED = ("←-", "←↩", "↩", "⤶", "↵")
"""Signs that typesetters put at the end of a line of code that they had to break."""

MAX_COLUMN = 250
"""Spaces before a word; a page is never wider."""


def code_text(lines: Sequence[Line], wrap_at: float | None = None) -> str:
    """The code, column by column as it stands on the page; `wrap_at` is where lines were broken to fit, if they were."""
    pitch = _pitch(lines)
    margin = min(line.left for line in lines)
    step = _line_step(lines)
    written = [_spaced(lines[0], margin, pitch)]
    for above, line in pairwise(lines):
        if written[-1].endswith(CONTINUED):
            written[-1] = _trimmed(written[-1]) + " " + line.text
            continue
        if wrap_at and _was_wrapped(above, line, margin, pitch, wrap_at):
            written[-1] += ("" if written[-1].endswith("-") else " ") + line.text
            continue
        if above.page == line.page and line.base > above.base:
            empty = round((line.base - above.base) / step) - 1
            written += [""] * max(0, min(empty, MAX_EMPTY_LINES))
        written.append(_spaced(line, margin, pitch))
    return "\n".join(written)


def wrap_place(prose_reach: float, code_reach: float, size: float) -> float | None:
    """Where long lines of code were broken: at the right edge of the text, which some come near and none crosses."""
    near = NEAR_EDGE * size
    return code_reach if prose_reach - near <= code_reach <= prose_reach + 2 else None


def _trimmed(text: str) -> str:
    return next(text.removesuffix(sign) for sign in CONTINUED if text.endswith(sign)).rstrip()


def _was_wrapped(above: Line, line: Line, margin: float, pitch: float, wrap_at: float) -> bool:
    """Whether a line starts at the margin because its first word did not fit into the line above."""
    if line.left > margin + pitch / 2:
        return False
    first = line.words[0].text
    breakable = first.find("-", 1, -1) + 1 or len(first)
    return above.right + (breakable + 1) * pitch > wrap_at + pitch / 2


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
