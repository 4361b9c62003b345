"""The index as its readers see it: some commit's state, until they refresh."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np

from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.vectors.arrays import Flags, Float32s, Numbers
from refdesk.engines.embedded.vectors.manifest import MANIFEST, Manifest, decode
from refdesk.engines.embedded.vectors.scan import BARRED, Selection, nearest
from refdesk.engines.embedded.vectors.segment import Segment

ATTEMPTS = 10
"""How often opening is tried while a writer replaces the very segments that are being opened."""


class View:
    """A segment without the documents that were removed."""

    def __init__(self, segment: Segment, dead: Sequence[int]) -> None:
        self.segment = segment
        self.dead = dead

    @cached_property
    def alive(self) -> Flags:
        """By run, whether its document is still there."""
        alive = np.ones(len(self.segment.table.documents), np.bool_)
        alive[list(self.dead)] = False
        return alive

    @cached_property
    def all(self) -> Selection:
        """Every row that is still there."""
        if not self.dead:
            return Selection(self.segment, self.segment.count)
        return self._selected(self.alive)

    def select(self, collections: Numbers | None, documents: Numbers | None) -> Selection:
        """The rows of these collections and of these documents, both sorted; None stands for all."""
        if collections is None and documents is None:
            return self.all
        runs = self.alive
        if collections is not None:
            runs = runs & _among(self.segment.table.collections, collections)
        if documents is not None:
            runs = runs & _among(self.segment.table.documents, documents)
        return self._selected(runs)

    def _selected(self, runs: Flags) -> Selection:
        lengths = self.segment.table.lengths
        count = int(lengths[runs].sum())
        barred = np.repeat(np.where(runs, np.uint8(0), np.uint8(BARRED)), lengths)
        return Selection(self.segment, count, runs, barred)


def _among(values: Numbers, wanted: Numbers) -> Flags:
    """Which of the values are among the wanted ones, which are sorted."""
    if not len(wanted):
        return np.zeros(len(values), np.bool_)
    places = np.searchsorted(wanted, values)
    there: Flags = wanted[np.minimum(places, len(wanted) - 1)] == values
    return there


@dataclass(frozen=True, slots=True)
class State:
    """One commit's state, opened."""

    manifest: Manifest = field(default_factory=Manifest)
    views: tuple[View, ...] = ()
    pin: mmap.mmap | None = None
    """Holds the manifest's inode, so that no later manifest has the same number."""
    identity: tuple[int, int] | None = None


class Vectors:
    """The vectors in a folder, for any number of threads and processes, while another process may write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manifest = str(folder / MANIFEST)
        self._lock = Lock()
        self._state = State()
        self.refresh()

    @property
    def mark(self) -> int:
        """The last change that is in the index."""
        return self._state.manifest.mark

    @property
    def model(self) -> str:
        """The model that made the vectors; nothing as long as there are none."""
        return self._state.manifest.model

    @property
    def count(self) -> int:
        """The number of chunks that can be found."""
        return sum(view.all.count for view in self._state.views)

    def refresh(self) -> None:
        """See what was committed since."""
        if self._identity() == self._state.identity:
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
        """The keys of the chunks nearest to the query, and their cosines, the nearest first."""
        state = self._state
        if state.views and query.shape != (state.manifest.dimensions,):
            raise ValueError(f"the index has {state.manifest.dimensions} dimensions, the query {query.shape}")
        among = [None if keys is None else np.sort(np.asarray(keys, np.int64)) for keys in (collections, documents)]
        return nearest([view.select(*among) for view in state.views], query.astype(np.float32, copy=False), limit)

    def cosines(self, query: Float32s, keys: Numbers) -> Float32s:
        """How near to the query these chunks are; not a number where a chunk is not here."""
        return self._of_each(keys, lambda segment, rows: segment.cosines(rows, query))

    def around(self, query: Float32s, keys: Numbers) -> Float32s:
        """How near to the query the chunks beside these are; not a number where there are none, or the chunk is not."""
        return self._of_each(keys, lambda segment, rows: segment.around(rows, query))

    def _of_each(self, keys: Numbers, value: Callable[[Segment, Numbers], Float32s]) -> Float32s:
        values = np.full(len(keys), np.nan, np.float32)
        order = keys.argsort()  # to look them up is faster in the order that they lie in
        keys = keys[order]
        for view in self._state.views:
            rows, are_here = view.segment.rows(keys)
            if len(rows):
                values[order[are_here]] = value(view.segment, rows)
        return values

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._manifest)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino


def open_state(folder: Path, known: Mapping[str, View]) -> State:
    """What the folder holds at this moment; segments that are open already stay so."""
    for _ in range(ATTEMPTS):
        state = _manifest(folder)
        try:
            views = tuple(
                _view(folder, state.manifest, known, name, dead) for name, dead in state.manifest.segments.items()
            )
        except FileNotFoundError:
            continue
        return State(state.manifest, views, state.pin, state.identity)
    raise IndexDamaged(f"{folder} lacks a segment that its manifest names")


def _manifest(folder: Path) -> State:
    path = folder / MANIFEST
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if not found.st_size:
                raise IndexDamaged(f"{path} is empty")
            pin = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        return State()
    return State(decode(pin[:], path), (), pin, (found.st_dev, found.st_ino))


def _view(folder: Path, manifest: Manifest, known: Mapping[str, View], name: str, dead: Sequence[int]) -> View:
    view = known.get(name)
    if view is None:
        return View(Segment(folder / name, manifest.dimensions), dead)
    return view if view.dead == dead else View(view.segment, dead)
