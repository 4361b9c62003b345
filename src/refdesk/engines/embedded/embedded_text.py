"""Input of the embedding model for a chunk, and storage format of its vector.

The input is the chunk's text below its headings. A vector is stored as one scale and one byte per dimension, which has
no measurable effect on search quality.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from refdesk.engines import analyzer

HASH_BYTES = 16
"""Enough to avoid accidental collisions within a tenant."""


def build_embedding_text(title: str, path: Sequence[str], text: str) -> str:
    """Return a chunk's text without markup and link targets, below the document's title and its headings."""
    return "\n".join([*analyzer.build_heading_path(title, path), analyzer.strip_markdown(text)])


def hash_text(model: str, title: str, path: Sequence[str], text: str) -> bytes:
    """Return the key of a vector: a hash of the model and its input."""
    content = f"{model}\0{build_embedding_text(title, path, text)}"
    return hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=HASH_BYTES).digest()


def pack_vector(vector: NDArray[np.float32]) -> bytes:
    """Encode a vector for storage."""
    scale = max(float(np.abs(vector).max()) / 127, 1e-12)
    steps: NDArray[np.int8] = np.rint(vector / scale).astype(np.int8)
    return struct.pack("<f", scale) + steps.tobytes()


def unpack_vector(body: bytes) -> NDArray[np.float32]:
    """Decode a stored vector and normalize it."""
    vector = np.frombuffer(body, np.int8, offset=4).astype(np.float32) * np.frombuffer(body, np.float32, 1)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
