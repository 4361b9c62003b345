"""What the engine asks of whatever turns text into vectors. Numpy is only named here, not imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Vector: TypeAlias = "npt.NDArray[np.float32]"
"""One text: `dimensions` numbers, of length one together."""

Vectors: TypeAlias = "npt.NDArray[np.float32]"
"""One row for each text."""


class Embedder(Protocol):
    """Turns questions and passages into vectors that lie close where their meanings do."""

    @property
    def name(self) -> str:
        """The model and its revision. Vectors of different names cannot be compared, so each is kept under its own."""

    @property
    def dimensions(self) -> int:
        """How many numbers a vector has; 0 as long as a model elsewhere has not answered for the first time."""

    async def embed_query(self, text: str) -> Vector:
        """One question, at once: somebody waits."""

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Many passages, in the background; to call it off stops what has not begun."""

    def embed_query_now(self, text: str) -> Vector | None:
        """One question for a caller that is in a thread anyway; None where only `embed_query` can do it."""
