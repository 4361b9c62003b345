"""Rows that lie close together, so that a search of very many need not look at all of them.

Pure arithmetic on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from refdesk.engines.embedded.vectors.arrays import Float32s, Numbers, Words

ROWS_A_CLUSTER = 4096
"""About how many rows a cluster has: few enough to leave most of an index aside, and many enough for one sweep."""

MOST_CLUSTERS = 64

COARSE_WORDS = 3
"""How much of a code is looked at first: 192 signs, whose count fits in a byte."""

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
    beginnings: Words
    """Of each one's code, in the same order: to gather them from all over would take as long as to look at every row.
    """

    @classmethod
    def of(cls, centres: Float32s, nearest: Numbers, beginnings: Words) -> Clusters:
        """By the number of the centre that each row is nearest to."""
        ends = np.cumsum(np.bincount(nearest, minlength=len(centres)))
        rows = np.argsort(nearest, kind="stable")
        return cls(centres, ends, rows, beginnings[:, rows])

    def near(self, query: Float32s, wanted: int) -> list[slice]:
        """Where the rows of the clusters nearest to a query are, as many clusters as have this many together."""
        ends, found = [0, *self.ends.tolist()], list[slice]()
        for cluster in np.argsort(-np.vecdot(self.centres, query)).tolist():
            if wanted <= 0:
                break
            wanted -= ends[cluster + 1] - ends[cluster]
            found.append(slice(ends[cluster], ends[cluster + 1]))
        return found


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
