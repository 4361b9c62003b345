"""The one that changes the index. It collects, and a commit makes all of it visible in one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np

from refdesk.engines.embedded.vectors.arrays import Flags, Float32s, Row, Table
from refdesk.engines.embedded.vectors.codes import quantised
from refdesk.engines.embedded.vectors.manifest import MANIFEST, Manifest, replace_manifest
from refdesk.engines.embedded.vectors.merging import Size, to_merge
from refdesk.engines.embedded.vectors.reader import open_state
from refdesk.engines.embedded.vectors.segment import Part, Segment, write_segment


class VectorWriter:
    """Adds and removes; there must be one only, which the caller sees to.

    What another model made is of no use to this one: it is dropped, and `mark` is 0 until everything is added anew.
    """

    def __init__(self, folder: Path, model: str, dimensions: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        state = open_state(folder, {})
        usable = (state.manifest.model, state.manifest.dimensions) == (model, dimensions)
        self._folder = folder
        self._manifest = state.manifest if usable else Manifest(model, dimensions)
        self._segments = [_Open(view.segment, view.alive.copy()) for view in state.views] if usable else []
        self._rows: list[Row] = []
        if not usable:
            replace_manifest(folder, self._manifest)
        self._sweep()

    @property
    def mark(self) -> int:
        """The last change that was committed."""
        return self._manifest.mark

    def add(self, rows: Sequence[Row]) -> None:
        """Add chunks that are not in the index yet."""
        for row in rows:
            if row.vector.shape != (self._manifest.dimensions,):
                raise ValueError(f"a vector of shape {row.vector.shape}, not {self._manifest.dimensions}")
        self._rows.extend(rows)

    def remove(self, document: int) -> None:
        """Remove what was added of a document so far; it may be added anew."""
        self._rows = [row for row in self._rows if row.document != document]
        for segment in self._segments:
            segment.alive[segment.segment.table.documents == document] = False

    def clear(self) -> None:
        """Begin anew: the next commit holds what is added from now on, and nothing else."""
        self._manifest = Manifest(self._manifest.model, self._manifest.dimensions)
        self._segments, self._rows = [], []

    def commit(self, mark: int) -> None:
        """Make everything since the last commit visible and durable, and `mark` the last change that is in.

        When it fails, nothing has changed, and it can be tried again.
        """
        segments = self._merged()
        dead = {segment.name: segment.dead for segment in segments}
        manifest = Manifest(self._manifest.model, self._manifest.dimensions, mark, dead)
        replace_manifest(self._folder, manifest)
        self._manifest, self._segments, self._rows = manifest, segments, []
        self._sweep()

    def close(self) -> None:
        """Forget what was not committed."""
        self._segments, self._rows = [], []

    def _merged(self) -> list[_Open]:
        """The segments after the commit: the new rows in a segment of their own, or with older ones."""
        fresh = [_part(self._rows)] if self._rows else []
        chosen = to_merge([segment.size for segment in self._segments], sum(part.count for part in fresh))
        parts = [self._segments[number].part for number in chosen] + fresh
        kept = [segment for number, segment in enumerate(self._segments) if number not in chosen]
        if not any(part.count for part in parts):
            return kept
        return [*kept, self._written(parts)]

    def _written(self, parts: Sequence[Part]) -> _Open:
        path = self._folder / f"{uuid4().hex}.segment"
        try:
            write_segment(path, parts, self._mean())
            segment = Segment(path, self._manifest.dimensions)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return _Open(segment, np.ones(len(segment.table.documents), np.bool_))

    def _mean(self) -> Float32s:
        """What the codes of a few new rows are taken around: the mean of the many that there are."""
        if not self._segments:
            return np.zeros(self._manifest.dimensions, np.float32)
        return max(self._segments, key=lambda each: each.segment.count).segment.mean

    def _sweep(self) -> None:
        """Remove the files that the manifest does not name: merged ones, and those of a commit that did not finish."""
        for path in self._folder.iterdir():
            if path.name != MANIFEST and path.name not in self._manifest.segments:
                path.unlink()


class _Open:
    """A segment that the writer may strike documents out of."""

    def __init__(self, segment: Segment, alive: Flags) -> None:
        self.segment = segment
        self.alive = alive

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def dead(self) -> tuple[int, ...]:
        return tuple(np.flatnonzero(~self.alive).tolist())

    @property
    def part(self) -> Part:
        return Part(self.segment.table, self.alive)

    @property
    def size(self) -> Size:
        return Size(self.part.count, self.segment.count)


def _part(rows: Sequence[Row]) -> Part:
    """New rows as a table with a run for each; writing joins the runs."""
    vectors, scales = quantised(np.stack([row.vector for row in rows]).astype(np.float32))
    keys, documents, collections = (
        np.array([getattr(row, name) for row in rows], np.int64) for name in ("key", "document", "collection")
    )
    table = Table(keys, scales, vectors, documents, collections, np.arange(len(rows) + 1))
    return Part(table, np.ones(len(rows), np.bool_))
