"""Clustering of rows, so that searching a large segment scans only a part of it.

Pure array functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refdesk.engines.embedded.vectors.arrays import Float32s, Numbers, Words

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
