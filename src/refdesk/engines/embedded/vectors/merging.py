"""Merge policy of segments. Pure arithmetic on sizes.

Few segments make searches fast, few merges make commits fast. A segment is merged once the smaller ones together reach
a quarter of its size. So each segment is more than four times as large as all smaller ones together, and a row is only
rewritten into a segment at least a quarter larger than its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMALL_ROWS = 4096
"""Segments below this size are always merged: they cost a search as much as large ones, and a commit almost nothing."""

LARGEST_ROWS = 1 << 19
"""Maximum size of a merged segment, so that no commit takes longer than a few seconds."""

GROWTH = 4
"""A segment is left alone if it is this many times as large as all smaller ones together."""

DEAD_SHARE = 0.25
"""A segment with this share of deleted rows is rewritten."""


@dataclass(frozen=True, slots=True)
class SegmentSize:
    """Number of live rows and of all rows of a segment."""

    alive: int
    rows: int

    @property
    def has_many_dead_rows(self) -> bool:
        """Whether enough rows were deleted to rewrite it."""
        return self.rows - self.alive >= max(1, self.rows * DEAD_SHARE)


def choose_merges(sizes: Sequence[SegmentSize], fresh: int) -> list[int]:
    """Return the segments to merge with this many new rows."""
    chosen = [number for number, size in enumerate(sizes) if size.has_many_dead_rows]
    others = sorted(set(range(len(sizes))) - set(chosen), key=lambda number: sizes[number].alive)
    together = fresh + sum(sizes[number].alive for number in chosen)
    taken = 0
    for place, number in enumerate(others if together else (), start=1):
        alive = sizes[number].alive
        if together + alive > LARGEST_ROWS:
            break
        if alive <= max(GROWTH * together, SMALL_ROWS):
            taken = place
        together += alive
    return chosen + others[:taken]
