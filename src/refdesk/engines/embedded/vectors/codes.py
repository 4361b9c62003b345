"""Vectors made small: eight bits per dimension to score by, one bit per dimension to search by.

Pure arithmetic on arrays. A code is the signs of a vector after the mean of its index was taken off; two vectors are
near when few of their signs differ, and to count these costs a processor next to nothing.
"""

from __future__ import annotations

import numpy as np

from refdesk.engines.embedded.vectors.arrays import Float32s, Int8s, Words

WORD_BITS = 64


def quantised(vectors: Float32s) -> tuple[Int8s, Float32s]:
    """Eight bits per dimension, and by what to multiply them to have the vectors back, nearly."""
    scales = np.abs(vectors).max(axis=1) / np.float32(127)
    scales[scales == 0] = 1
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales


def restored(vectors: Int8s, scales: Float32s) -> Float32s:
    """The vectors that were quantised."""
    return vectors.astype(np.float32) * scales[:, None]


def words_per_code(dimensions: int) -> int:
    """How many machine words the signs of a vector take; what is over stays zero."""
    return -(-dimensions // WORD_BITS)


def encoded(vectors: Float32s, mean: Float32s) -> Words:
    """The codes of vectors, a row for each."""
    signs = np.packbits(vectors > mean, axis=1)
    codes = np.zeros((len(vectors), words_per_code(vectors.shape[1])), np.uint64)
    codes.view(np.uint8)[:, : signs.shape[1]] = signs
    return codes


def cosines(vectors: Int8s, scales: Float32s, query: Float32s) -> Float32s:
    """The cosine of each vector with the query, both being of length one."""
    # Not `@`, which wakes the threads of the BLAS library for some hundred rows.
    products: Float32s = np.vecdot(vectors.astype(np.float32), query)
    return products * scales
