"""Reader of the vector index: a snapshot of one commit, until it is refreshed.

The manifest names the segments, their deleted documents and the last change. It is replaced atomically, so that readers
always see a complete commit.

The nearest vectors are found in three stages, each more precise and over fewer rows. The first stage counts differing
signs in the prefix of each code, the second in the whole code, and the third computes cosines from the 8-bit vectors.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import orjson
from numpy.typing import NDArray

from refdesk.engines.embedded.fulltext import IndexDamaged
from refdesk.engines.embedded.vectors.segment import (
    COARSE_WORDS,
    Bytes,
    Flags,
    Float32s,
    Numbers,
    Segment,
    Words,
    encode_signs,
    split_blocks,
)
from refdesk.support.fs import fsync_folder, replace_file

Counts = NDArray[np.unsignedinteger]

BLOCK_ROWS = 8192
"""The code prefixes of this many rows are 192 KiB, which stays in a core's own cache."""

COARSE_ROWS = 1024
"""Minimum number of rows that pass the first stage, approximately."""

FINE_ROWS = 400
"""Minimum number of rows that pass the second stage, approximately. More hardly improve recall."""

FINE_FACTOR = 5
"""Rows that pass the second stage per requested row, if many are requested."""

COARSE_FACTOR = 6
"""Rows that pass the first stage per row that passes the second, if these are many."""

EXACT_ROWS = 1024
"""Up to this many rows are scored directly."""

SAMPLE_ROWS = 4096
"""Sample size for the threshold of the first stage. A histogram of all counts would cost as much as the scan."""

LONGEST_STEP = 64
"""The sample has at least one in this many rows, or it would miss too many of the relevant ones."""

MAX_OVERSHOOT = 4
"""Multiple of the intended rows that a stage may pass if their counts are equal."""

EXCLUDED = 255
"""Count of a row excluded by the filter. No count of `COARSE_WORDS` words is as high."""


@dataclass(frozen=True, slots=True)
class RowSelection:
    """Rows of a segment that match the filter."""

    segment: Segment
    count: int
    runs: Flags | None = None
    """Runs of the rows; None means all of the segment."""
    excluded: Bytes | None = None
    """Per row, `EXCLUDED` or 0."""

    @property
    def rows(self) -> Numbers:
        """Row numbers."""
        return np.arange(self.count) if self.runs is None else self.segment.table.list_rows(self.runs)


def find_nearest(selections: Sequence[RowSelection], query: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    """Return the keys of the rows nearest to the query and their cosines, nearest first."""
    selections = [selection for selection in selections if selection.count]
    if sum(selection.count for selection in selections) <= EXACT_ROWS:
        return _score_best([(selection.segment, selection.rows) for selection in selections], query, limit)
    fine_rows = max(FINE_ROWS, limit * FINE_FACTOR)
    coarse_rows = max(COARSE_ROWS, COARSE_FACTOR * fine_rows)
    segments = [selection.segment for selection in selections]
    codes = [encode_signs(query[None, :], segment.mean)[0] for segment in segments]
    coarse = [_count_in_prefixes(selection, code) for selection, code in zip(selections, codes, strict=True)]
    step = min(max(1, sum(map(len, coarse)) // SAMPLE_ROWS), LONGEST_STEP)
    threshold = _find_threshold(np.concatenate([counts[::step] for counts in coarse]), coarse_rows / step)
    limits = min(threshold, EXCLUDED - 1), MAX_OVERSHOOT * coarse_rows
    found = [_select_within(counts, *limits) for counts in coarse]
    fine: list[Counts] = []
    for segment, code, rows, counts in zip(segments, codes, found, coarse, strict=True):
        differing = segment.suffixes.take(rows, axis=0) ^ code[COARSE_WORDS:]
        fine.append(counts[rows] + np.add.reduce(np.bitwise_count(differing), axis=1, dtype=np.uint16))
    limits = _find_threshold(np.concatenate(fine), fine_rows), MAX_OVERSHOOT * fine_rows
    best = [rows[_select_within(counts, *limits)] for rows, counts in zip(found, fine, strict=True)]
    return _score_best(list(zip(segments, best, strict=True)), query, limit)


def _count_in_prefixes(selection: RowSelection, code: Words) -> Bytes:
    """Count the signs in which the code prefix of each row of a segment differs from the code."""
    prefixes, excluded = selection.segment.prefixes, selection.excluded
    counts = np.full(selection.segment.count, EXCLUDED, np.uint8)
    shape = len(prefixes), BLOCK_ROWS
    words, bits = np.empty(shape, np.uint64), np.empty(shape, np.uint8)
    for block in split_blocks(len(counts), BLOCK_ROWS):
        if excluded is None or not excluded[block].min():
            total = counts[block]
            differing = np.bitwise_xor(prefixes[:, block], code[:COARSE_WORDS, None], out=words[:, : len(total)])
            np.add.reduce(np.bitwise_count(differing, out=bits[:, : len(total)]), axis=0, out=total)
    if excluded is not None:
        np.bitwise_or(counts, excluded, out=counts)
    return counts


def _find_threshold(counts: Counts, wanted: float) -> int:
    """Return the lowest count that includes at least `wanted` rows, or all rows if there are fewer."""
    return int(np.bincount(counts).cumsum().searchsorted(wanted))


def _select_within(counts: Counts, threshold: int, limit: int) -> Numbers:
    """Return the indices of counts within the threshold, of the lowest ones if there are too many."""
    (places,) = (counts <= threshold).nonzero()
    if len(places) > limit:
        places = np.sort(places[counts[places].argsort(kind="stable")[:limit]])
    return places


def _score_best(found: Sequence[tuple[Segment, Numbers]], query: Float32s, limit: int) -> tuple[Numbers, Float32s]:
    keys = np.concatenate([np.empty(0, np.int64), *(segment.table.keys[rows] for segment, rows in found)])
    cosines = np.concatenate(
        [np.empty(0, np.float32), *(segment.compute_cosines(rows, query) for segment, rows in found)]
    )
    order = np.lexsort((keys, -cosines))[:limit]
    return keys[order], cosines[order]


MANIFEST = "manifest"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """One state of the index."""

    model: str = ""
    dimensions: int = 0
    mark: int = 0
    segments: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Segment files, each with the numbers of runs whose document was deleted."""


def decode_manifest(data: bytes, path: Path) -> Manifest:
    """Parse a manifest. The checksum also guarantees the structure of the content."""
    checksum, _, body = data.rstrip(b"\n").partition(b"\n")
    if checksum != b"%08x" % zlib.crc32(body):
        raise IndexDamaged(f"{path} is corrupt: its checksum doesn't match")
    stored = orjson.loads(body)
    if stored["format"] != FORMAT:
        raise IndexDamaged(f"{path} was written by another version of Refdesk")
    segments = {name: tuple(dead) for name, dead in stored["segments"].items()}
    return Manifest(stored["model"], stored["dimensions"], stored["mark"], segments)


def replace_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically and durably, including the segments it names."""
    fsync_folder(folder)
    body = orjson.dumps({"format": FORMAT, **asdict(manifest)})
    replace_file(folder / MANIFEST, b"%08x\n%b\n" % (zlib.crc32(body), body))


MAX_OPEN_ATTEMPTS = 10
"""Attempts to open the index while a writer is replacing its segments."""


class SegmentView:
    """Segment without its deleted documents."""

    def __init__(self, segment: Segment, dead: Sequence[int]) -> None:
        self.segment = segment
        self.dead = dead

    @cached_property
    def alive(self) -> Flags:
        """Mask of runs whose document wasn't deleted. Only a writer changes it, for its next commit."""
        alive = np.ones(len(self.segment.table.documents), np.bool_)
        alive[list(self.dead)] = False
        return alive

    @cached_property
    def all(self) -> RowSelection:
        """All live rows."""
        if not self.dead:
            return RowSelection(self.segment, self.segment.count)
        return self._select_runs(self.alive)

    def select(self, collections: Numbers | None, documents: Numbers | None) -> RowSelection:
        """Select the rows of these collections and documents. Both are sorted; None means all."""
        if collections is None and documents is None:
            return self.all
        runs = self.alive
        if collections is not None:
            runs = runs & _mask_members(self.segment.table.collections, collections)
        if documents is not None:
            runs = runs & _mask_members(self.segment.table.documents, documents)
        return self._select_runs(runs)

    def _select_runs(self, runs: Flags) -> RowSelection:
        lengths = self.segment.table.lengths
        count = int(lengths[runs].sum())
        excluded = np.repeat(np.where(runs, np.uint8(0), np.uint8(EXCLUDED)), lengths)
        return RowSelection(self.segment, count, runs, excluded)


def _mask_members(values: Numbers, wanted: Numbers) -> Flags:
    """Return a mask of the values that are in `wanted`, which is sorted."""
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(wanted, values)
    mask: Flags = wanted[np.minimum(places, len(wanted) - 1)] == values
    return mask


@dataclass(frozen=True, slots=True)
class IndexState:
    """Opened state of one commit."""

    manifest: Manifest = field(default_factory=Manifest)
    views: tuple[SegmentView, ...] = ()
    pin: mmap.mmap | None = None
    """Keeps the manifest's inode in use, so that no later manifest gets the same number."""
    stamp: tuple[int, int] | None = None


class Vectors:
    """Reader of the vectors in a folder. Thread-safe, and works while another process writes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest_path = str(folder / MANIFEST)
        self._lock = Lock()
        self._state = IndexState()
        self.refresh()

    @property
    def mark(self) -> int:
        """Number of the last change in the index."""
        return self._state.manifest.mark

    @property
    def model(self) -> str:
        """Model of the vectors; empty if there are none."""
        return self._state.manifest.model

    @property
    def count(self) -> int:
        """Number of searchable chunks."""
        return sum(view.all.count for view in self._state.views)

    def refresh(self) -> None:
        """Open the newest commit."""
        if self.read_stamp() == self._state.stamp:
            return
        with self._lock:
            self._state = open_state(self._folder, {view.segment.name: view for view in self._state.views})

    def search(
        self,
        query: Float32s,
        limit: int,
        *,
        collections: Sequence[int] | None = None,
        documents: Sequence[int] | None = None,
    ) -> tuple[Numbers, Float32s]:
        """Return the keys of the chunks nearest to the query and their cosines, nearest first."""
        state = self._state
        if state.views and query.shape != (state.manifest.dimensions,):
            raise ValueError(f"the index has {state.manifest.dimensions} dimensions, the query {query.shape}")
        among = [None if keys is None else np.sort(np.asarray(keys, np.int64)) for keys in (collections, documents)]
        return find_nearest([view.select(*among) for view in state.views], query.astype(np.float32, copy=False), limit)

    def compute_cosines(self, query: Float32s, keys: Numbers) -> Float32s:
        """Return the cosines of these chunks with the query. NaN for missing chunks."""
        values = np.full(len(keys), np.nan, np.float32)
        order = keys.argsort()  # lookups are faster in ascending order
        keys = keys[order]
        for view in self._state.views:
            rows, are_here = view.segment.find_rows(keys)
            if len(rows):
                values[order[are_here]] = view.segment.compute_cosines(rows, query)
        return values

    def read_stamp(self) -> tuple[int, int] | None:
        """Return what identifies the newest commit, or None if there is none."""
        try:
            found = os.stat(self._manifest_path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns


def open_state(folder: Path, known: Mapping[str, SegmentView]) -> IndexState:
    """Open the current state of a folder, reusing open segments."""
    path = folder / MANIFEST
    for _ in range(MAX_OPEN_ATTEMPTS):
        try:
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if not found.st_size:
                    raise IndexDamaged(f"{path} is empty")
                pin = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            return IndexState()
        manifest = decode_manifest(pin[:], path)
        views = []
        try:
            for name, dead in manifest.segments.items():
                view = known.get(name)
                if view is None or view.dead != dead:
                    segment = view.segment if view else Segment(folder / name, manifest.dimensions)
                    view = SegmentView(segment, dead)
                views.append(view)
        except FileNotFoundError:
            continue
        return IndexState(manifest, tuple(views), pin, (found.st_ino, found.st_mtime_ns))
    raise IndexDamaged(f"a segment in the manifest of {folder} is missing")
