"""Embedder interface. Numpy is only imported for type checking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from refdesk.resilience.dependency import Dependency

Vector: TypeAlias = "npt.NDArray[np.float32]"
"""Vector of one text: `dimensions` numbers with a norm of one."""

Vectors: TypeAlias = "npt.NDArray[np.float32]"
"""One row per text."""


class Embedder(Protocol):
    """Converts queries and passages to vectors that are close if their meanings are."""

    @property
    def name(self) -> str:
        """Model and revision. Vectors of different names can't be compared, so they are stored separately."""

    @property
    def dimensions(self) -> int:
        """Length of a vector; 0 until a remote model has answered for the first time."""

    @property
    def dependency(self) -> Dependency | None:
        """Remote service that is monitored; None for a local model."""

    async def embed_query(self, text: str) -> Vector:
        """Embed one query with priority, because a caller waits."""

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed many passages in the background. Cancelling skips what hasn't started."""

    @property
    def embed_query_sync(self) -> Callable[[str], Vector] | None:
        """Function that embeds one query in the current thread. None for a remote model."""
