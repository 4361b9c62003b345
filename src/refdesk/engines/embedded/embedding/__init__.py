"""Embedding of text: the built-in model, an ONNX folder, or an OpenAI-compatible endpoint.

Importing this is cheap: onnxruntime and the HTTP client are imported with the source that needs them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from anyio import to_thread

from refdesk.errors import EngineError

if TYPE_CHECKING:
    # Type checking only: embedding workers need neither settings nor pydantic.
    import numpy as np
    import numpy.typing as npt

    from refdesk.config.models import EmbeddingConfig
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


__all__ = ["Embedder", "Vector", "Vectors", "embed_with_priority", "open_embedder"]


@asynccontextmanager
async def open_embedder(settings: EmbeddingConfig) -> AsyncIterator[Embedder | None]:
    """Open the configured embedder. Yields None if semantic search is disabled."""
    match settings.source:
        case "none":
            yield None
        case "endpoint":
            from refdesk.engines.embedded.embedding.endpoint import open_endpoint

            if settings.api_url is None:
                raise EngineError("embedding.api_url: must be set when embedding.source is endpoint")
            key = settings.api_key.get_secret_value() if settings.api_key else None
            async with open_endpoint(
                str(settings.api_url), key, settings.api_model, settings.timeout_seconds
            ) as endpoint:
                yield endpoint
        case "onnx":
            from refdesk.engines.embedded.embedding.local import open_in_threads
            from refdesk.engines.embedded.embedding.onnx import read_model_folder

            if settings.model_path is None:
                raise EngineError("embedding.model_path: must be set when embedding.source is onnx")
            folder = await to_thread.run_sync(read_model_folder, settings.model_path)
            async with open_in_threads(folder, settings.workers) as embedder:
                yield embedder
        case "builtin":
            from refdesk.engines.embedded.embedding.local import open_in_processes
            from refdesk.engines.embedded.embedding.onnx import read_builtin_model

            async with open_in_processes(read_builtin_model(), settings.workers) as embedder:
                yield embedder


async def embed_with_priority(embedder: Embedder, texts: Sequence[str]) -> Vectors:
    """Embed a few texts that a caller waits for, ahead of queued passages where possible."""
    embed_query = embedder.embed_query_sync
    if embed_query is None or not texts:
        return await embedder.embed_passages(texts)
    import numpy as np

    return np.stack(await to_thread.run_sync(lambda: [embed_query(text) for text in texts]))
