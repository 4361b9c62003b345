"""Arrays of the vector index: types, quantization and clustering. Pure functions.

Vectors have 8 bits per dimension for scoring and one bit per dimension, a code, for scanning. A code contains the signs
of a vector minus the index's mean. Similar vectors differ in few signs, and counting those is very cheap. Clusters let
the search of a large segment scan only a part of it.
"""

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


WORD_BITS = 64


def quantize(vectors: Float32s) -> tuple[Int8s, Float32s]:
    """Return vectors with 8 bits per dimension, and the scales that restore them approximately."""
    scales = np.abs(vectors).max(axis=1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def dequantize(vectors: Int8s, scales: Float32s) -> Float32s:
    """Restore quantized vectors."""
    return vectors.astype(np.float32) * scales[:, None]


def count_code_words(dimensions: int) -> int:
    """Return the number of 64-bit words per code. Unused bits are zero."""
    return -(-dimensions // WORD_BITS)


def encode_signs(vectors: Float32s, mean: Float32s) -> Words:
    """Return the codes of vectors, one row each."""
    signs = np.packbits(vectors > mean, axis=1)
    codes = np.zeros((len(vectors), count_code_words(vectors.shape[1])), np.uint64)
    codes.view(np.uint8)[:, : signs.shape[1]] = signs
    return codes


def compute_cosines(vectors: Int8s, scales: Float32s, query: Float32s) -> Float32s:
    """Return the cosine of each vector with the query. Both are normalized."""
    # Not `@`, which starts BLAS threads for a few hundred rows.
    products: Float32s = np.vecdot(vectors.astype(np.float32), query)
    return products * scales


CLUSTER_ROWS = 4096
"""Approximate rows per cluster: few enough to skip most of an index, and enough for one sweep."""

MAX_CLUSTERS = 64

COARSE_WORDS = 3
"""Words of a code that are compared first: 192 signs, whose count fits in a byte."""

ROUNDS = 8
"""K-means iterations; the centres hardly move after that."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Rows of a segment, grouped by nearest centre."""

    centres: Float32s
    ends: Numbers
    """End of each cluster in `rows`."""
    rows: Numbers
    """Row numbers, cluster by cluster, ascending within each."""
    prefixes: Words
    """Code prefixes in the same order: gathering them from the whole segment would take as long as scanning every
    row."""

    @classmethod
    def from_assignment(cls, centres: Float32s, assignment: Numbers, prefixes: Words) -> Clusters:
        """Group rows by the number of their nearest centre."""
        ends = np.cumsum(np.bincount(assignment, minlength=len(centres)))
        rows = np.argsort(assignment, kind="stable")
        return cls(centres, ends, rows, prefixes[:, rows])

    def select_nearest(self, query: Float32s, wanted: int) -> list[slice]:
        """Return slices of the clusters nearest to a query that have this many rows together."""
        ends, found = [0, *self.ends.tolist()], list[slice]()
        for cluster in np.argsort(-np.vecdot(self.centres, query)).tolist():
            if wanted <= 0:
                break
            wanted -= ends[cluster + 1] - ends[cluster]
            found.append(slice(ends[cluster], ends[cluster + 1]))
        return found


def count_clusters(rows: int) -> int:
    """Return the number of clusters for this many rows."""
    return min(max(rows // CLUSTER_ROWS, 1), MAX_CLUSTERS)


def find_centres(sample: Float32s, count: int) -> Float32s:
    """Compute centres of a sample by k-means. Deterministic."""
    centres = sample[np.linspace(0, len(sample) - 1, count).astype(np.int64)].copy()
    for _ in range(ROUNDS if count > 1 else 0):
        assignment = assign_centres(sample, centres)
        for number in range(count):
            own = sample[assignment == number]
            if len(own):
                centres[number] = own.mean(axis=0)
    return centres


def assign_centres(vectors: Float32s, centres: Float32s) -> Numbers:
    """Return the number of the nearest centre for each vector."""
    # Squared distance without the vector's own norm, which is the same for all centres.
    assignment: Numbers = np.argmin((centres * centres).sum(axis=1) - 2 * (vectors @ centres.T), axis=1)
    return assignment
