"""The names of the arrays that vectors are kept in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32s = NDArray[np.float32]
Int8s = NDArray[np.int8]
Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Row:
    """One chunk's vector, of length one, and where the chunk belongs."""

    key: int
    document: int
    collection: int
    vector: Float32s


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are sorted by collection, document and key, so that a document's rows are one run.

    Whatever is asked of a document or a collection is asked of the runs, of which there are far fewer than rows.
    """

    keys: Numbers
    scales: Float32s
    vectors: Int8s
    documents: Numbers
    """The document of each run."""
    collections: Numbers
    """The collection of each run."""
    starts: Numbers
    """Where each run begins, and at the end the number of rows."""

    @property
    def lengths(self) -> Numbers:
        """The number of rows of each run."""
        return np.diff(self.starts)

    def rows(self, runs: Flags) -> Numbers:
        """The numbers of the rows in these runs."""
        lengths = self.lengths[runs]
        ends = np.cumsum(lengths)
        first = np.repeat(self.starts[:-1][runs] - ends + lengths, lengths)
        return first + np.arange(len(first))


def blocks(count: int, size: int) -> Iterator[slice]:
    """The numbers below `count`, `size` at a time."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
