"""What the embedding model is given of a chunk, and how the vector that it makes of it is kept.

The model is given what the chunk says beneath the headings that say what it is about. A vector is kept as one scale and
a byte for each dimension, which costs search nothing that can be measured.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.embedded import analyzer

HASH_BYTES = 16
"""Enough that no two texts of a tenant share one by accident."""


def embedded_text(title: str, path: Sequence[str], text: str) -> str:
    """A chunk's text without its marks and link addresses, beneath the document's title and its headings."""
    return "\n".join([*analyzer.context_of(title, path), analyzer.plain_text(text)])


def hash_of(model: str, title: str, path: Sequence[str], text: str) -> bytes:
    """What a vector is kept under: the model, and all that it was given."""
    given = f"{model}\0{embedded_text(title, path, text)}"
    return hashlib.blake2b(given.encode("utf-8", "replace"), digest_size=HASH_BYTES).digest()


def packed_vector(vector: NDArray[np.float32]) -> bytes:
    """A vector as it is kept."""
    scale = max(float(np.abs(vector).max()) / 127, 1e-12)
    steps: NDArray[np.int8] = np.rint(vector / scale).astype(np.int8)
    return struct.pack("<f", scale) + steps.tobytes()


def unpacked_vector(body: bytes) -> NDArray[np.float32]:
    """A vector that was kept, of length one again."""
    vector = np.frombuffer(body, np.int8, offset=4).astype(np.float32) * np.frombuffer(body, np.float32, 1)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
