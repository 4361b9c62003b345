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

COARSE_ROWS = 1536
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

SAMPLE_ROWS = 16_384
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
    """Rows of a segment that came through a sieve."""

    segment: Segment
    code: Words
    """The query's, with the mean of this segment taken off."""
    numbers: Numbers | None
    """Of the rows; None when they are all of the segment's."""
    counts: Counts
    """In how many signs, of those looked at so far, each row differs from the query."""

    @property
    def rows(self) -> Numbers:
        """The numbers of the rows."""
        return np.arange(self.segment.count) if self.numbers is None else self.numbers

    def within(self, reach: int, most: int) -> _Found:
        """Those whose count is in reach, the nearest when they are too many."""
        kept = _within(self.counts, reach, most)
        rows = kept if self.numbers is None else self.numbers[kept]
        return _Found(self.segment, self.code, rows, self.counts[kept])


def nearest(selections: Sequence[Selection], query: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    """The keys of the rows nearest to the query, and their cosines, the nearest first."""
    selections = [selection for selection in selections if selection.count]
    if sum(selection.count for selection in selections) <= EXACT_ROWS:
        return _best([(selection.segment, selection.rows) for selection in selections], query, limit)
    wanted = max(FINE_ROWS, limit * FINE_SPARE)
    found = _fine(_coarse(selections, query, max(COARSE_ROWS, COARSE_SPARE * wanted)), wanted)
    return _best([(part.segment, part.rows) for part in found], query, limit)


def _coarse(selections: Sequence[Selection], query: Float32s, wanted: int) -> list[_Found]:
    found = [_scanned(selection, query) for selection in selections]
    counts = np.concatenate([part.counts for part in found])
    step = min(max(1, len(counts) // SAMPLE_ROWS), LONGEST_STEP)
    reach = min(_reach(counts[::step], wanted / step), BARRED - 1)
    return [part.within(reach, MOST * wanted) for part in found]


def _scanned(selection: Selection, query: Float32s) -> _Found:
    """All rows that are looked at; in how many signs the beginning of each one's code differs from the query's."""
    segment, barred = selection.segment, selection.barred
    code = encoded(query[None, :], segment.mean)[0]
    looked_at = max(LEAST_SCANNED, int(segment.count * SCANNED_SHARE))
    if looked_at >= segment.count or selection.count < WIDE_SHARE * segment.count:
        places = [block for block in blocks(segment.count, BLOCK_ROWS) if barred is None or not barred[block].min()]
        counts = np.full(segment.count, BARRED, np.uint8)
        _count(segment.codes, code, [(place, counts[place]) for place in places])
        rows = None
    else:
        places = _blocks_of(segment.clusters.near(query, looked_at))
        rows = np.concatenate([segment.clusters.rows[place] for place in places])
        counts = np.empty(len(rows), np.uint8)
        ends = list(accumulate(place.stop - place.start for place in places))
        into = [counts[start:end] for start, end in pairwise([0, *ends])]
        _count(segment.clusters.codes, code, zip(places, into, strict=True))
    if barred is not None:
        np.bitwise_or(counts, barred if rows is None else barred.take(rows), out=counts)
    return _Found(segment, code, rows, counts)


def _blocks_of(places: Sequence[slice]) -> list[slice]:
    return [
        slice(place.start + block.start, place.start + block.stop)
        for place in places
        for block in blocks(place.stop - place.start, BLOCK_ROWS)
    ]


def _count(codes: Words, code: Words, places: Iterable[tuple[slice, Bytes]]) -> None:
    """Put into the array beside each place in how many signs the beginning of the codes there differs from this one."""
    codes, code = codes[:COARSE_WORDS], code[:COARSE_WORDS, None]
    words, counts = np.empty((len(codes), BLOCK_ROWS), np.uint64), np.empty((len(codes), BLOCK_ROWS), np.uint8)
    for place, total in places:
        differing = np.bitwise_xor(codes[:, place], code, out=words[:, : len(total)])
        np.add.reduce(np.bitwise_count(differing, out=counts[:, : len(total)]), axis=0, out=total)


def _fine(found: Sequence[_Found], wanted: int) -> list[_Found]:
    whole = [_counted_whole(part) for part in found]
    reach = _reach(np.concatenate([part.counts for part in whole]), wanted)
    return [part.within(reach, MOST * wanted) for part in whole]


def _counted_whole(found: _Found) -> _Found:
    counts = found.counts.astype(np.uint16)
    for words, word in zip(found.segment.codes[COARSE_WORDS:], found.code[COARSE_WORDS:], strict=True):
        counts += np.bitwise_count(words.take(found.rows) ^ word)
    return _Found(found.segment, found.code, found.rows, counts)


def _reach(counts: Counts, wanted: float) -> int:
    """The count up to which there are as many rows as wanted, or all that there are."""
    return int(np.searchsorted(np.cumsum(np.bincount(counts)), wanted))


def _within(counts: Counts, reach: int, most: int) -> Numbers:
    """The places of the counts that are in reach, of the lowest when they are too many."""
    places = np.flatnonzero(counts <= reach)
    if len(places) > most:
        places = np.sort(places[np.argsort(counts[places], kind="stable")[:most]])
    return places


def _best(found: Sequence[tuple[Segment, Numbers]], query: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    keys = [np.empty(0, np.int64), *(segment.table.keys[rows] for segment, rows in found)]
    near = [np.empty(0, np.float32), *(segment.cosines(rows, query) for segment, rows in found)]
    return _first(np.concatenate(keys), np.concatenate(near), limit)


def _first(keys: Numbers, near: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    order = np.lexsort((keys, -near))[:limit]
    return keys[order], near[order]
