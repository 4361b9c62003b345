"""Array types of the vector index."""

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
    """Normalized vector of one chunk, with the keys of its document and collection."""

    key: int
    document: int
    collection: int
    vector: Float32s


@dataclass(frozen=True, slots=True)
class RowTable:
    """Rows sorted by collection, document and key, so that a document's rows are one run.

    Filters on documents and collections are evaluated per run, of which there are far fewer than rows.
    """

    keys: Numbers
    scales: Float32s
    vectors: Int8s
    documents: Numbers
    """Document of each run."""
    collections: Numbers
    """Collection of each run."""
    starts: Numbers
    """First row of each run, followed by the number of rows."""

    @property
    def lengths(self) -> Numbers:
        """Number of rows of each run."""
        return np.diff(self.starts)

    def list_rows(self, runs: Flags) -> Numbers:
        """Return the row numbers of these runs."""
        lengths = self.lengths[runs]
        ends = np.cumsum(lengths)
        first = np.repeat(self.starts[:-1][runs] - ends + lengths, lengths)
        return first + np.arange(len(first))


def split_blocks(count: int, size: int) -> Iterator[slice]:
    """Yield slices of `size` that cover the numbers below `count`."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))
