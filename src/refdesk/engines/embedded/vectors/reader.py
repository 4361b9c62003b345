"""Reader of the vector index: a snapshot of one commit, until it is refreshed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np

from refdesk.engines.embedded.fulltext import IndexDamaged
from refdesk.engines.embedded.vectors.arrays import Flags, Float32s, Numbers
from refdesk.engines.embedded.vectors.manifest import MANIFEST, Manifest, decode_manifest
from refdesk.engines.embedded.vectors.scan import EXCLUDED, RowSelection, find_nearest
from refdesk.engines.embedded.vectors.segment import Segment

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
    identity: tuple[int, int] | None = None


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
        if self._read_identity() == self._state.identity:
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

    def _read_identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._manifest_path)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


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
        return IndexState(manifest, tuple(views), pin, (found.st_dev, found.st_ino))
    raise IndexDamaged(f"a segment in the manifest of {folder} is missing")
