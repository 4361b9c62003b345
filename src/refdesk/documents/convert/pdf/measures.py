"""Typical measures of a document: letter size, line distance, left margin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from refdesk.documents.convert.pdf.layout import Line
from refdesk.documents.model import Box

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
    """Return the area of a box."""
    left, top, right, bottom = box
    return max(right - left, 0.0) * max(bottom - top, 0.0)
