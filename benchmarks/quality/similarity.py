"""How alike two sequences are, and how many members two collections share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

ALIKE = 0.8
"""From here on two texts count as the same one with a slip: a lost hyphen, a number joined to a word."""


def common_length(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """The length of the longest common subsequence.

    Hyyrö's bit-parallel recurrence on one long integer: a row of the table is a single addition, so that two texts of
    twenty thousand words take a fraction of a second without a compiled library.
    """
    places: dict[Hashable, int] = {}
    for place, member in enumerate(left):
        places[member] = places.get(member, 0) | (1 << place)
    everywhere = (1 << len(left)) - 1
    unmatched = everywhere
    for member in right:
        if here := unmatched & places.get(member, 0):
            unmatched = ((unmatched + here) | (unmatched - here)) & everywhere
    return len(left) - unmatched.bit_count()


def similarity(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """Indel similarity: 1 for equal sequences, 0 for sequences with nothing in common."""
    total = len(left) + len(right)
    return 2 * common_length(left, right) / total if total else 1.0


def f1(shared: int, truth: int, got: int) -> float | None:
    """The harmonic mean of precision and recall, or None when neither side has any."""
    return 2 * shared / (truth + got) if truth + got else None


def multiset_f1(truth: Iterable[Hashable], got: Iterable[Hashable]) -> float | None:
    """F1 over members that count as often as they occur."""
    wanted, found = Counter(truth), Counter(got)
    return f1((wanted & found).total(), wanted.total(), found.total())


def pair_up(truth: Sequence[str], got: Sequence[str]) -> list[tuple[int, int]]:
    """Which text of one side is which of the other: equal texts first, in order, then those that are alike.

    Two texts that are equal up to a slip are paired greedily; each is used once.
    """
    pairs, truth_left, got_left = _equal(truth, got)
    for wanted in truth_left:
        best = max(got_left, key=lambda at: _alike(truth[wanted], got[at]), default=None)
        if best is not None and _alike(truth[wanted], got[best]) >= ALIKE:
            got_left.remove(best)
            pairs.append((wanted, best))
    return sorted(pairs)


def _equal(truth: Sequence[str], got: Sequence[str]) -> tuple[list[tuple[int, int]], list[int], list[int]]:
    waiting: dict[str, list[int]] = {}
    for at in reversed(range(len(got))):
        waiting.setdefault(got[at], []).append(at)
    pairs: list[tuple[int, int]] = []
    truth_left: list[int] = []
    for wanted, text in enumerate(truth):
        if places := waiting.get(text):
            pairs.append((wanted, places.pop()))
        else:
            truth_left.append(wanted)
    return pairs, truth_left, sorted(at for places in waiting.values() for at in places)


def _alike(left: str, right: str) -> float:
    """Similarity of two texts, or 0 without looking closer when their lengths alone rule out a match."""
    shorter, longer = sorted((len(left), len(right)))
    if 2 * shorter < ALIKE * (shorter + longer):
        return 0.0
    return similarity(left, right)
