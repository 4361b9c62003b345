"""Vector quantization: 8 bits per dimension for scoring, one bit per dimension for scanning.

Pure array functions. A code contains the signs of a vector minus the index's mean. Similar vectors differ in few signs,
and counting those is very cheap.
"""

from __future__ import annotations

import numpy as np

from refdesk.engines.embedded.vectors.arrays import Float32s, Int8s, Words

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
