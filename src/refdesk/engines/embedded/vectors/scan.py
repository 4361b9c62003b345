"""Finding the nearest rows by three sieves, each finer than the one before and over fewer rows.

Of a large segment only the clusters nearest to the query are looked at. The first sieve counts the differing signs in a
part of each row's code, the second in the whole code, the third computes the cosine from the 8-bit vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.embedded.vectors.arrays import Bytes, Flags, Float32s, Numbers, Words, blocks
from refdesk.engines.embedded.vectors.clusters import COARSE_WORDS
from refdesk.engines.embedded.vectors.codes import encoded
from refdesk.engines.embedded.vectors.segment import Segment

Counts = NDArray[np.unsignedinteger]

BLOCK_ROWS = 8192
"""The beginnings of so many codes are 192 KiB, which stays in a core's own cache while it is worked on."""

COARSE_ROWS = 1024
"""About how many rows the first sieve lets through, at least."""

FINE_ROWS = 200
"""About how many rows the second sieve lets through, at least: more find hardly more."""

FINE_SPARE = 5
"""How many rows the second sieve lets through for each that is asked for, when many are."""

COARSE_SPARE = 6
"""How many rows the first sieve lets through for each that the second one does, when these are many."""

LEAST_SCANNED = 16_384
"""Rows of a segment that are looked at however far their clusters are; with fewer, clusters save nothing."""

SCANNED_SHARE = 0.25
"""Of a larger segment: the share of its rows that is looked at, in the nearest clusters."""

WIDE_SHARE = 0.5
"""A filter that lets so much of a segment through is no reason to look at all of it."""

EXACT_ROWS = 1024
"""So few rows are scored without a sieve."""

SAMPLE_ROWS = 4096
"""From how many counts the first sieve learns where to cut; a histogram of all would cost as much as the scan."""

LONGEST_STEP = 64
"""The sample has at least one in so many rows, or too few of those that matter would be in it."""

MOST = 4
"""How many times as many rows as it is meant to a sieve may let through, when their counts are equal."""

BARRED = 255
"""The count of a row that may not be found; no count of `COARSE_WORDS` words is as high."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows of a segment that may be found."""

    segment: Segment
    count: int
    runs: Flags | None = None
    """The runs that they are in; None when all of the segment's are."""
    barred: Bytes | None = None
    """By row, `BARRED` where it may not be found and 0 where it may."""

    @property
    def rows(self) -> Numbers:
        """The numbers of the rows."""
        return np.arange(self.count) if self.runs is None else self.segment.table.rows(self.runs)


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows of a segment that came through the first sieve."""

    segment: Segment
    code: Words
    """The query's, with the mean of this segment taken off."""
    rows: Numbers
    counts: Counts
    """In how many signs of its code's beginning each row differs from the query."""


@dataclass(frozen=True, slots=True)
class _Swept:
    """Rows of a segment whose codes' beginnings were looked at."""

    segment: Segment
    code: Words
    counts: Bytes
    places: Sequence[slice] = ()
    """Where they lie in the clusters, one stretch after another; none when they are all of the segment's, in order."""

    def within(self, reach: int, most: int) -> _Found:
        """Those whose count is in reach, the nearest when they are too many."""
        kept = _within(self.counts, reach, most)
        return _Found(self.segment, self.code, self._rows(kept), self.counts[kept])

    def _rows(self, kept: Numbers) -> Numbers:
        if not self.places:
            return kept
        starts, stops = np.array([(place.start, place.stop) for place in self.places]).T
        ends = (stops - starts).cumsum()
        shifts: Numbers = (stops - ends)[ends.searchsorted(kept, side="right")]
        return self.segment.clusters.rows.take(kept + shifts)


def nearest(selections: Sequence[Selection], query: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    """The keys of the rows nearest to the query, and their cosines, the nearest first."""
    selections = [selection for selection in selections if selection.count]
    if sum(selection.count for selection in selections) <= EXACT_ROWS:
        return _best([(selection.segment, selection.rows) for selection in selections], query, limit)
    wanted = max(FINE_ROWS, limit * FINE_SPARE)
    found = _coarse(selections, query, max(COARSE_ROWS, COARSE_SPARE * wanted))
    return _best(_fine(found, wanted), query, limit)


def _coarse(selections: Sequence[Selection], query: Float32s, wanted: int) -> list[_Found]:
    swept = [_swept(selection, query) for selection in selections]
    step = min(max(1, sum(len(part.counts) for part in swept) // SAMPLE_ROWS), LONGEST_STEP)
    sample = np.concatenate([part.counts[::step] for part in swept])
    reach = min(_reach(sample, wanted / step), BARRED - 1)
    return [part.within(reach, MOST * wanted) for part in swept]


def _swept(selection: Selection, query: Float32s) -> _Swept:
    """All rows that are looked at; in how many signs the beginning of each one's code differs from the query's."""
    segment, barred = selection.segment, selection.barred
    code = encoded(query[None, :], segment.mean)[0]
    looked_at = max(LEAST_SCANNED, int(segment.count * SCANNED_SHARE))
    if looked_at >= segment.count or selection.count < WIDE_SHARE * segment.count:
        open_ = [block for block in blocks(segment.count, BLOCK_ROWS) if barred is None or not barred[block].min()]
        counts = np.full(segment.count, BARRED, np.uint8)
        _count(segment.beginnings, code, [(block, counts[block]) for block in open_])
        if barred is not None:
            np.bitwise_or(counts, barred, out=counts)
        return _Swept(segment, code, counts)
    places = _blocks_of(segment.clusters.near(query, looked_at))
    ends = [0, *accumulate(place.stop - place.start for place in places)]
    counts = np.empty(ends[-1], np.uint8)
    _count(segment.clusters.beginnings, code, zip(places, [counts[a:b] for a, b in pairwise(ends)], strict=True))
    if barred is not None:
        rows = np.concatenate([segment.clusters.rows[place] for place in places])
        np.bitwise_or(counts, barred.take(rows), out=counts)
    return _Swept(segment, code, counts, places)


def _blocks_of(places: Sequence[slice]) -> list[slice]:
    return [
        slice(place.start + block.start, place.start + block.stop)
        for place in places
        for block in blocks(place.stop - place.start, BLOCK_ROWS)
    ]


def _count(beginnings: Words, code: Words, places: Iterable[tuple[slice, Bytes]]) -> None:
    """Put into the array beside each place in how many signs the beginnings of codes there differ from this code's."""
    code, shape = code[:COARSE_WORDS, None], (len(beginnings), BLOCK_ROWS)
    words, counts = np.empty(shape, np.uint64), np.empty(shape, np.uint8)
    for place, total in places:
        differing = np.bitwise_xor(beginnings[:, place], code, out=words[:, : len(total)])
        np.add.reduce(np.bitwise_count(differing, out=counts[:, : len(total)]), axis=0, out=total)


def _fine(found: Sequence[_Found], wanted: int) -> list[tuple[Segment, Numbers]]:
    counts = [_whole_counts(part) for part in found]
    reach = _reach(np.concatenate(counts), wanted)
    return [
        (part.segment, part.rows[_within(whole, reach, MOST * wanted)])
        for part, whole in zip(found, counts, strict=True)
    ]


def _whole_counts(found: _Found) -> Counts:
    differing = found.segment.rests.take(found.rows, axis=0) ^ found.code[COARSE_WORDS:]
    counts: Counts = found.counts + np.add.reduce(np.bitwise_count(differing), axis=1, dtype=np.uint16)
    return counts


def _reach(counts: Counts, wanted: float) -> int:
    """The count up to which there are as many rows as wanted, or all that there are."""
    return int(np.bincount(counts).cumsum().searchsorted(wanted))


def _within(counts: Counts, reach: int, most: int) -> Numbers:
    """The places of the counts that are in reach, of the lowest when they are too many."""
    (places,) = (counts <= reach).nonzero()
    if len(places) > most:
        places = np.sort(places[counts[places].argsort(kind="stable")[:most]])
    return places


def _best(found: Sequence[tuple[Segment, Numbers]], query: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    keys = [np.empty(0, np.int64), *(segment.table.keys[rows] for segment, rows in found)]
    near = [np.empty(0, np.float32), *(segment.cosines(rows, query) for segment, rows in found)]
    return _first(np.concatenate(keys), np.concatenate(near), limit)


def _first(keys: Numbers, near: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    order = np.lexsort((keys, -near))[:limit]
    return keys[order], near[order]
