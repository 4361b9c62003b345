"""Nearest names by edit distance, fast enough for a hundred thousand names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

MAX_EDITS = 4
"""Names with more differences aren't similar, however long they are."""

MAX_LENGTH = 200
"""Characters of a name; longer ones have no similar names."""


def count_allowed_edits(name: str) -> int:
    """Return how many edits a similar name may differ by: a quarter of the characters, rounded up."""
    return min((len(name) + 3) // 4, MAX_EDITS) if len(name) > 2 else 0


def split_evenly(name: str) -> list[str]:
    """Split a name into parts of which every similar name has at least one: edits can't touch all of them."""
    count = count_allowed_edits(name) + 1
    bounds = [len(name) * part // count for part in range(count + 1)]
    return [name[start:end] for start, end in pairwise(bounds) if start < end]


def nearest_names(name: str, names: Sequence[str], limit: int = 3) -> list[str]:
    """Return the names that are most similar, best first; others only if they are hardly worse than the best."""
    found = find_similar(name, names)
    return [names[index] for distance, index in found[:limit] if distance <= found[0][0] + 1]


def find_similar(name: str, names: Sequence[str]) -> list[tuple[int, int]]:
    """Return edit distance and index of all similar names, nearest first. Case doesn't count."""
    if not 0 < len(name) <= MAX_LENGTH:
        return []
    name, edits = name.lower(), count_allowed_edits(name)
    lowered = [(index, other.lower()) for index, other in enumerate(names) if abs(len(other) - len(name)) <= edits]
    if not lowered:
        return []
    texts = np.array([other for _, other in lowered], dtype=str)
    width = texts.dtype.itemsize // 4
    # A row per character and a column per name: each step handles all names at once.
    codes = np.ascontiguousarray(texts.view(np.uint32).reshape(len(lowered), width).T)
    far = edits + 1
    above, current = np.full((2, width + 2, len(lowered)), far, dtype=np.int8)
    above[: far + 1] = np.arange(far + 1, dtype=np.int8)[: width + 2, None]
    for row, character in enumerate(name, 1):
        # Only cells near the diagonal can hold a distance that is not too far.
        first, last = max(row - edits, 1), min(row + edits, width)
        current[first - 1] = min(row, far) if first == 1 else far
        for place in range(first, last + 1):
            cell = above[place - 1] + (codes[place - 1] != ord(character))
            np.minimum(cell, above[place] + 1, out=cell)
            np.minimum(cell, current[place - 1] + 1, out=cell)
            np.minimum(cell, far, out=current[place])
        current[last + 1] = far
        above, current = current, above
    distances = above[np.char.str_len(texts), np.arange(len(lowered))]
    return sorted((int(distances[place]), lowered[place][0]) for place in np.flatnonzero(distances <= edits))
