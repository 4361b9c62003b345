"""When segments are merged. Pure arithmetic on sizes.

Few segments make a search fast, few merges make a commit fast: a segment is written again once the smaller ones
together have grown to a quarter of its size. So each is more than four times as large as all smaller ones together, and
a row is written again only into a segment that is a quarter larger than its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMALL_ROWS = 4096
"""Segments below are always joined: they cost a search as much as large ones, and a commit next to nothing."""

LARGEST_ROWS = 1 << 19
"""No merge makes a larger segment, so that no commit takes longer than a few seconds."""

GROWTH = 4
"""How many times as large as all the smaller ones together a segment must be to be left alone."""

DEAD_SHARE = 0.25
"""A segment of which so much was removed is written again without it."""


@dataclass(frozen=True, slots=True)
class Size:
    """The rows of a segment: those that are alive, and all that are in the file."""

    alive: int
    rows: int

    @property
    def decayed(self) -> bool:
        """Whether so much of it was removed that it is worth writing again."""
        return self.rows - self.alive >= max(1, self.rows * DEAD_SHARE)


def to_merge(sizes: Sequence[Size], fresh: int) -> list[int]:
    """Which segments are written again, together with so many new rows."""
    chosen = [number for number, size in enumerate(sizes) if size.decayed]
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
