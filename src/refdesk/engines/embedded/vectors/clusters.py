"""Rows that lie close together, so that a search of very many need not look at all of them.

Pure arithmetic on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refdesk.engines.embedded.vectors.arrays import Float32s, Numbers

ROWS_A_CLUSTER = 4096
"""About how many rows a cluster has: few enough to leave most of an index aside, and many enough for one sweep."""

MOST_CLUSTERS = 64

ROUNDS = 8
"""How often the centres are moved to the middle of their rows; they hardly move after that."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """The rows of a segment by the centre that they are nearest to."""

    centres: Float32s
    ends: Numbers
    """Where each cluster ends in `rows`."""
    rows: Numbers
    """The numbers of all rows, those of one cluster after those of another, in order."""

    @classmethod
    def of(cls, centres: Float32s, nearest: Numbers) -> Clusters:
        """By the number of the centre that each row is nearest to."""
        ends = np.cumsum(np.bincount(nearest, minlength=len(centres)))
        return cls(centres, ends, np.argsort(nearest, kind="stable"))

    def near(self, query: Float32s, wanted: int) -> Numbers:
        """The rows of the clusters nearest to a query, as many clusters as have this many rows together."""
        order = np.argsort(-np.vecdot(self.centres, query))
        sizes = np.diff(self.ends, prepend=0)
        chosen = order[: int(np.searchsorted(np.cumsum(sizes[order]), wanted)) + 1]
        return np.concatenate([self.rows[self.ends[one] - sizes[one] : self.ends[one]] for one in chosen])


def cluster_count(rows: int) -> int:
    """How many clusters so many rows are put in."""
    return min(max(rows // ROWS_A_CLUSTER, 1), MOST_CLUSTERS)


def found_centres(sample: Float32s, count: int) -> Float32s:
    """Centres of a sample, by k-means; the same sample always gives the same ones."""
    centres = sample[np.linspace(0, len(sample) - 1, count).astype(np.int64)].copy()
    for _ in range(ROUNDS if count > 1 else 0):
        nearest = nearest_centres(sample, centres)
        for number in range(count):
            own = sample[nearest == number]
            if len(own):
                centres[number] = own.mean(axis=0)
    return centres


def nearest_centres(vectors: Float32s, centres: Float32s) -> Numbers:
    """The number of the centre that each vector is nearest to."""
    # The distance without the length of the vector, which is the same for all centres.
    nearest: Numbers = np.argmin((centres * centres).sum(axis=1) - 2 * (vectors @ centres.T), axis=1)
    return nearest
