"""Local embedding models: queries run in threads, passages in worker processes.

onnxruntime releases the GIL while it computes, but tokenization doesn't, and a core that is busy for minutes slows down
requests. So passages for the built-in model go to low-priority worker processes. These can only open files in Python's
own folders, so other models run in threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import IO

import anyio
import orjson
from anyio import CapacityLimiter, to_thread

from refdesk.documents.sandbox import Sandbox, SandboxLimits, open_sandbox
from refdesk.documents.scratch import scratch_file
from refdesk.engines.embedded.embedding import Vector, Vectors
from refdesk.engines.embedded.embedding.onnx import ModelFolder, OnnxModel
from refdesk.errors import CannotConvert, EngineError, RefdeskError

JOBS = "refdesk.engines.embedded.embedding.onnx:run_embedding_job"

BATCH = 16
"""Passages per job: about a second of work, which is how long a more urgent job waits."""

BATCH_SECONDS = 300.0
"""Timeout of a batch. It takes about a second, and much longer on an overloaded machine."""

JOBS_PER_WORKER = 1_000
"""Jobs before a worker is replaced, so that leaks can't grow. A restart costs little compared to 16,000 passages."""

QUERY_THREADS = 4
"""Concurrent query embeddings. More would only wait for each other."""

EmbedBatch = Callable[[Sequence[str]], Awaitable[Vectors]]


class LocalEmbedder:
    """Embeds queries in this process and passages with `embed_batch`, `workers` batches at a time."""

    dependency = None

    def __init__(self, model: OnnxModel, embed_batch: EmbedBatch, workers: int) -> None:
        self._model = model
        self._embed_batch = embed_batch
        self._workers = workers
        self._threads = CapacityLimiter(QUERY_THREADS)
        self.name = model.name
        self.dimensions = model.dimensions
        self.embed_query_sync = model.embed

    async def embed_query(self, text: str) -> Vector:
        return await to_thread.run_sync(self._model.embed, text, limiter=self._threads)

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """Embed in batches. A call has at most `workers` batches in flight, so that concurrent calls interleave."""
        import numpy as np

        vectors = np.empty((len(texts), self.dimensions), np.float32)
        batches = [slice(start, start + BATCH) for start in range(0, len(texts), BATCH)]
        remaining = iter(batches)
        errors: list[RefdeskError] = []

        async def work() -> None:
            try:
                for batch in remaining:
                    vectors[batch] = await self._embed_batch(texts[batch])
            except RefdeskError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in batches[: self._workers]:
                tasks.start_soon(work)
        if errors:
            raise errors[0]
        return vectors


@asynccontextmanager
async def open_in_processes(folder: ModelFolder, workers: int) -> AsyncIterator[LocalEmbedder]:
    """Open the built-in model, with `workers` processes for passages that start on demand."""
    model = OnnxModel(folder)
    limits = SandboxLimits(workers=workers, jobs_per_worker=JOBS_PER_WORKER)
    async with open_sandbox(limits, jobs=JOBS) as sandbox:
        yield LocalEmbedder(model, partial(embed_in_sandbox, sandbox, model.dimensions), workers)


@asynccontextmanager
async def open_in_threads(folder: ModelFolder, workers: int) -> AsyncIterator[LocalEmbedder]:
    """Open a model from a folder, with `workers` threads for passages."""
    model = OnnxModel(folder)
    await to_thread.run_sync(lambda: model.dimensions)  # may load the model
    threads = CapacityLimiter(workers)

    async def embed_batch(texts: Sequence[str]) -> Vectors:
        return await to_thread.run_sync(model.embed_all, texts, limiter=threads)

    yield LocalEmbedder(model, embed_batch, workers)


async def embed_in_sandbox(sandbox: Sandbox, dimensions: int, texts: Sequence[str]) -> Vectors:
    """Embed a batch in a sandbox worker."""

    def write_texts() -> None:
        source.write(orjson.dumps([text.encode("utf-8", "replace").decode() for text in texts]))
        source.flush()

    async with scratch_file() as source, scratch_file() as output:
        await to_thread.run_sync(write_texts)
        try:
            await sandbox.run({}, source=source.fileno(), output=output.fileno(), seconds=BATCH_SECONDS)
        except CannotConvert as error:
            # The sandbox's message is about files to convert.
            raise EngineError("An embedding worker failed; see the log", retry_after=1) from error
        return await to_thread.run_sync(_read_vectors, output, len(texts), dimensions)


def _read_vectors(output: IO[bytes], count: int, dimensions: int) -> Vectors:
    """Read and validate a worker's output."""
    import numpy as np

    output.seek(0)
    vectors = np.frombuffer(output.read(), np.float32)
    if len(vectors) != count * dimensions or not np.isfinite(vectors).all():
        raise EngineError("An embedding worker returned invalid vectors")
    return vectors.reshape(count, dimensions)
