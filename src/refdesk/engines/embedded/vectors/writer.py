"""Writer of the vector index. Changes are buffered and become visible with a commit.

Few segments make searches fast, few merges make commits fast. A segment is merged once the smaller ones together reach
a quarter of its size. So each segment is more than four times as large as all smaller ones together, and a row is only
rewritten into a segment at least a quarter larger than its last.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np

from refdesk.engines.embedded.vectors.reader import MANIFEST, Manifest, SegmentView, open_state, replace_manifest
from refdesk.engines.embedded.vectors.segment import Row, RowTable, Segment, SegmentSource, quantize, write_segment

SMALL_ROWS = 4096
"""Segments below this size are always merged: they cost a search as much as large ones, and a commit almost nothing."""

LARGEST_ROWS = 1 << 19
"""Maximum size of a merged segment, so that no commit takes longer than a few seconds."""

GROWTH = 4
"""A segment is left alone if it is this many times as large as all smaller ones together."""

DEAD_SHARE = 0.25
"""A segment with this share of deleted rows is rewritten."""


def choose_merges(alive: Sequence[int], rows: Sequence[int], fresh: int) -> list[int]:
    """Return the segments to merge with `fresh` new rows, given the live rows and all rows of each."""
    chosen = [n for n, count in enumerate(rows) if count - alive[n] >= max(1, count * DEAD_SHARE)]
    others = sorted(set(range(len(rows))) - set(chosen), key=lambda number: alive[number])
    together = fresh + sum(alive[number] for number in chosen)
    taken = 0
    for place, number in enumerate(others if together else (), start=1):
        if together + alive[number] > LARGEST_ROWS:
            break
        if alive[number] <= max(GROWTH * together, SMALL_ROWS):
            taken = place
        together += alive[number]
    return chosen + others[:taken]


class VectorWriter:
    """Adds and removes rows. The caller ensures that there is only one.

    Vectors of another model are dropped, and `mark` is 0 until everything is added again.
    """

    def __init__(self, folder: Path, model: str, dimensions: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = open_state(folder, {})
        usable = (state.manifest.model, state.manifest.dimensions) == (model, dimensions)
        self._folder = folder
        self._manifest = state.manifest if usable else Manifest(model, dimensions)
        self._views = list(state.views) if usable else []
        self._rows: list[Row] = []
        if not usable:
            replace_manifest(folder, self._manifest)
        self._delete_unused_files()

    @property
    def mark(self) -> int:
        """Number of the last committed change."""
        return self._manifest.mark

    def add(self, rows: Sequence[Row]) -> None:
        """Add chunks that aren't in the index yet."""
        for row in rows:
            if row.vector.shape != (self._manifest.dimensions,):
                raise ValueError(f"a vector of shape {row.vector.shape}, not {self._manifest.dimensions}")
        self._rows.extend(rows)

    def remove(self, document: int) -> None:
        """Remove all rows of a document. It may be added again."""
        self._rows = [row for row in self._rows if row.document != document]
        for view in self._views:
            view.alive[view.segment.table.documents == document] = False

    def clear(self) -> None:
        """Delete everything: the next commit only contains what is added from now on."""
        self._manifest = Manifest(self._manifest.model, self._manifest.dimensions)
        self._views, self._rows = [], []

    def commit(self, mark: int) -> None:
        """Make all changes visible and durable, with the number of the last change they include.

        If it fails, nothing has changed and it can be retried.
        """
        views = self._merge()
        dead = {view.segment.name: tuple(np.flatnonzero(~view.alive).tolist()) for view in views}
        manifest = Manifest(self._manifest.model, self._manifest.dimensions, mark, dead)
        replace_manifest(self._folder, manifest)
        self._manifest, self._views, self._rows = manifest, views, []
        self._delete_unused_files()

    def _merge(self) -> list[SegmentView]:
        """Return the segments of the next commit. New rows become a segment of their own or are merged with others."""
        current = [SegmentSource(view.segment.table, view.alive) for view in self._views]
        new = [_make_source(self._rows)] if self._rows else []
        alive, rows = [source.count for source in current], [len(source.table.keys) for source in current]
        chosen = choose_merges(alive, rows, len(self._rows))
        sources = [current[number] for number in chosen] + new
        kept = [view for number, view in enumerate(self._views) if number not in chosen]
        if not any(source.count for source in sources):
            return kept
        # The codes of a few new rows use the mean of the largest segment.
        largest = max((view.segment for view in self._views), key=lambda segment: segment.count, default=None)
        mean = largest.mean if largest else np.zeros(self._manifest.dimensions, np.float32)
        path = self._folder / f"{uuid4().hex}.segment"
        try:
            write_segment(path, sources, mean)
            return [*kept, SegmentView(Segment(path, self._manifest.dimensions), ())]
        except OSError:
            path.unlink(missing_ok=True)
            raise

    def _delete_unused_files(self) -> None:
        """Delete files the manifest doesn't name: merged segments, and those of unfinished commits."""
        for path in self._folder.iterdir():
            if path.name != MANIFEST and path.name not in self._manifest.segments:
                path.unlink()


def _make_source(rows: Sequence[Row]) -> SegmentSource:
    """Return new rows as a table with one run each. Writing joins the runs."""
    vectors, scales = quantize(np.stack([row.vector for row in rows]).astype(np.float32))
    keys, documents, collections = (
        np.array([getattr(row, name) for row in rows], np.int64) for name in ("key", "document", "collection")
    )
    table = RowTable(keys, scales, vectors, documents, collections, np.arange(len(rows) + 1))
    return SegmentSource(table, np.ones(len(rows), np.bool_))
