"""Vectors for a corpus that would take hours to embed: real ones for a part, and likenesses of these for the rest.

What a search costs depends on how many vectors there are and how they lie, not on which text each of them stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.embedded.embedding import Embedder

REAL = 5_000
"""Chunks that are really embedded: some minutes of work, done once."""

NOISE = 0.5
"""The length of what is added to a real vector, itself of length one, to make another: their cosine is about 0.9."""

HASH_BYTES = 16


class PreparedVectors:
    """The vectors of texts by their hashes, kept in a file; those that another model made are not taken."""

    def __init__(self, path: Path, embedder: Embedder) -> None:
        self._path = path
        self._embedder = embedder
        self._places: dict[bytes, int] = {}
        self._known = np.empty((0, embedder.dimensions), np.float32)
        if path.exists():
            with np.load(path) as kept:
                if str(kept.get("model")) != embedder.name:
                    return
                self._known = kept["vectors"].astype(np.float32)
                self._places = {row.tobytes(): place for place, row in enumerate(kept["hashes"])}

    @property
    def real(self) -> int:
        """How many are real."""
        return len(self._places)

    async def of(self, hashes: Sequence[bytes], texts: Sequence[str]) -> NDArray[np.float32]:
        """A vector for each text: a real one where there is one or there are still too few, else a likeness."""
        missing = [place for place, hash in enumerate(hashes) if hash not in self._places]
        missing = missing[: max(REAL - self.real, 0)]
        if missing:
            self._learn([hashes[place] for place in missing], await self._embed([texts[place] for place in missing]))
        return np.stack([self._vector(hash) for hash in hashes])

    async def _embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return await self._embedder.embed_passages(texts)

    def _learn(self, hashes: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        start = self.real
        self._places |= {hash: start + place for place, hash in enumerate(hashes)}
        self._known = np.concatenate([self._known, vectors])
        rows = np.frombuffer(b"".join(self._places), np.uint8).reshape(-1, HASH_BYTES)
        np.savez(self._path, model=self._embedder.name, hashes=rows, vectors=self._known.astype(np.float16))

    def _vector(self, hash: bytes) -> NDArray[np.float32]:
        place = self._places.get(hash)
        return self._known[place] if place is not None else likeness(self._known, hash)


def likeness(known: NDArray[np.float32], hash: bytes) -> NDArray[np.float32]:
    """A vector near one of the known ones, the same for the same hash."""
    chance = np.random.default_rng(int.from_bytes(hash[:8]))
    noise = chance.standard_normal(known.shape[1], np.float32)
    vector: NDArray[np.float32] = known[chance.integers(len(known))] + NOISE * noise / np.linalg.norm(noise)
    vector /= np.linalg.norm(vector)
    return vector
