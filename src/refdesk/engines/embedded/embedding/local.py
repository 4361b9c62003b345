"""Models on this machine: questions in a thread of this process, passages where they disturb nobody.

onnxruntime lets go of the interpreter while it computes, but cutting texts into tokens does not, and a core that is
busy for minutes is felt by whoever waits for an answer. So the passages of the model that Refdesk carries go to worker
processes of low priority. Those open nothing outside Python's own folders, so a model from elsewhere stays in threads.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import IO

import anyio
import orjson
from anyio import CapacityLimiter, to_thread

from refdesk.documents.sandbox import Limits, Sandbox, open_sandbox
from refdesk.documents.scratch import scratch_file
from refdesk.engines.embedded.embedding.base import Vector, Vectors
from refdesk.engines.embedded.embedding.onnx import ModelFolder, OnnxModel
from refdesk.errors import CannotConvert, EngineError, RefdeskError

JOBS = "refdesk.engines.embedded.embedding.jobs:run"

BATCH = 16
"""Passages that a worker gets at once: about a second of work, and so long does a more urgent call wait."""

BATCH_SECONDS = 300.0
"""For one batch. It takes about a second; a machine that is overrun may take much longer, a hung worker must not."""

JOBS_PER_WORKER = 1_000
"""Then a worker is replaced, so that leaks cannot grow; to start another is little beside 16,000 passages."""

QUERY_THREADS = 4
"""Questions embedded at once. More would only wait for each other."""

EmbedBatch = Callable[[Sequence[str]], Awaitable[Vectors]]


class LocalEmbedder:
    """A model in this process for questions, and `embed_batch` for passages, `workers` batches at a time."""

    def __init__(self, model: OnnxModel, embed_batch: EmbedBatch, workers: int) -> None:
        self._model = model
        self._embed_batch = embed_batch
        self._workers = workers
        self._threads = CapacityLimiter(QUERY_THREADS)
        self.name = model.name
        self.dimensions = model.dimensions

    async def embed_query(self, text: str) -> Vector:
        return await to_thread.run_sync(self._model.embed, text, limiter=self._threads)

    def embed_query_now(self, text: str) -> Vector:
        return self._model.embed(text)

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        """In batches, of which no call has more under way than there are workers: the next call's come in between."""
        import numpy as np

        vectors = np.empty((len(texts), self.dimensions), np.float32)
        batches = [slice(start, start + BATCH) for start in range(0, len(texts), BATCH)]
        left = iter(batches)
        failed: list[RefdeskError] = []

        async def work() -> None:
            try:
                for batch in left:
                    vectors[batch] = await self._embed_batch(texts[batch])
            except RefdeskError as error:
                failed.append(error)
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for _ in batches[: self._workers]:
                tasks.start_soon(work)
        if failed:
            raise failed[0]
        return vectors


@asynccontextmanager
async def open_in_processes(folder: ModelFolder, workers: int) -> AsyncIterator[LocalEmbedder]:
    """The model that Refdesk carries, with `workers` processes for passages, started when there are any."""
    model = OnnxModel(folder)
    limits = Limits(workers=workers, jobs_per_worker=JOBS_PER_WORKER)
    async with open_sandbox(limits, jobs=JOBS) as sandbox:
        yield LocalEmbedder(model, SandboxedBatches(sandbox, model.dimensions), workers)


@asynccontextmanager
async def open_in_threads(folder: ModelFolder, workers: int) -> AsyncIterator[LocalEmbedder]:
    """A model from elsewhere, with `workers` threads for passages."""
    model = OnnxModel(folder)
    await to_thread.run_sync(lambda: model.dimensions)  # which may have to load it
    threads = CapacityLimiter(workers)

    async def embed_batch(texts: Sequence[str]) -> Vectors:
        return await to_thread.run_sync(model.embed_all, texts, limiter=threads)

    yield LocalEmbedder(model, embed_batch, workers)


class SandboxedBatches:
    """Embeds a batch in one of the sandbox's workers."""

    def __init__(self, sandbox: Sandbox, dimensions: int) -> None:
        self._sandbox = sandbox
        self._dimensions = dimensions

    async def __call__(self, texts: Sequence[str]) -> Vectors:
        async with scratch_file() as source, scratch_file() as output:
            await to_thread.run_sync(_write_texts, source, texts)
            try:
                await self._sandbox.run({}, source=source.fileno(), output=output.fileno(), seconds=BATCH_SECONDS)
            except CannotConvert as error:
                # What the sandbox says is about files that were to be converted.
                raise EngineError("A worker that embeds documents failed; the log says why", retry_after=1) from error
            return await to_thread.run_sync(_read_vectors, output, len(texts), self._dimensions)


def _write_texts(source: IO[bytes], texts: Sequence[str]) -> None:
    source.write(orjson.dumps([text.encode("utf-8", "replace").decode() for text in texts]))
    source.flush()


def _read_vectors(output: IO[bytes], count: int, dimensions: int) -> Vectors:
    """The answer of a worker, which is looked at before it is believed."""
    import numpy as np

    output.seek(0)
    vectors = np.frombuffer(output.read(), np.float32)
    if len(vectors) != count * dimensions or not np.isfinite(vectors).all():
        raise EngineError("A worker that embeds documents answered with something else than their vectors")
    return vectors.reshape(count, dimensions)
