"""Models on this machine: what they are asked at once, and what goes to worker processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from refdesk.config.models import EmbeddingConfig
from refdesk.documents.sandbox import SandboxLimits, open_sandbox
from refdesk.engines.embedded.embedding import Vectors, open_embedder
from refdesk.engines.embedded.embedding.local import BATCH, JOBS, LocalEmbedder, embed_in_sandbox
from refdesk.engines.embedded.embedding.onnx import OnnxModel, read_builtin_model, read_model_folder
from refdesk.errors import EngineError
from tests.engines.embedding.test_onnx import TINY
from tests.processes import children
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_passages_and_questions_come_from_one_model_and_in_order() -> None:
    texts = [f"passage number {number}" for number in range(2 * BATCH + 3)]
    async with open_embedder(EmbeddingConfig()) as embedder:
        assert embedder is not None
        assert embedder.embed_query_sync is not None
        vectors = await embedder.embed_passages(texts)
        assert vectors.shape == (len(texts), embedder.dimensions)
        for place in (0, BATCH, len(texts) - 1):
            # Processes may round the last bit differently; neighbouring texts differ by 0.04.
            assert vectors[place] == pytest.approx(await embedder.embed_query(texts[place]), abs=1e-6)
            assert vectors[place] == pytest.approx(embedder.embed_query_sync(texts[place]), abs=1e-6)


async def test_odd_passages_are_embedded_too() -> None:
    async with open_embedder(EmbeddingConfig(workers=1)) as embedder:
        assert embedder is not None
        vectors = await embedder.embed_passages(["", "half a character \ud83d", "x" * 200_000, "\x00"])
        assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
        assert (await embedder.embed_passages([])).shape == (0, embedder.dimensions)


async def test_a_worker_that_dies_is_told_and_another_takes_its_place() -> None:
    before = children()
    async with open_sandbox(SandboxLimits(workers=1), jobs=JOBS) as sandbox, anyio.create_task_group() as tasks:
        embed_batch = partial(embed_in_sandbox, sandbox, 384)
        await embed_batch(["text"])
        (worker,) = map(int, children() - before)
        os.kill(worker, signal.SIGSTOP)  # so that it cannot be done before it is killed

        async def kill_it_at_work() -> None:
            await eventually(lambda: sandbox.state()["busy"])
            os.kill(worker, signal.SIGKILL)

        tasks.start_soon(kill_it_at_work)
        with pytest.raises(EngineError, match="worker"):
            await embed_batch(["text"])
        assert len(await embed_batch(["text"])) == 1


async def test_a_model_from_elsewhere_serves_both() -> None:
    async with open_embedder(EmbeddingConfig(source="onnx", model_path=TINY)) as embedder:
        assert embedder is not None
        assert embedder.name == read_model_folder(TINY).name
        vectors = await embedder.embed_passages(["a", "b"] * BATCH)
        assert (vectors[-1] == await embedder.embed_query("b")).all()


async def test_without_a_model_there_is_no_embedder() -> None:
    async with open_embedder(EmbeddingConfig(source="none")) as embedder:
        assert embedder is None


@pytest.mark.parametrize(("source", "setting"), [("onnx", "model_path"), ("endpoint", "api_url")])
async def test_a_source_that_is_not_said_where_is_refused(source: str, setting: str) -> None:
    with pytest.raises(EngineError, match=f"embedding.{setting}"):
        async with open_embedder(EmbeddingConfig.model_validate({"source": source})):
            pass


async def test_a_call_has_no_more_batches_under_way_than_there_are_workers() -> None:
    under_way: list[int] = []
    most = 0

    async def embed_batch(texts: Sequence[str]) -> Vectors:
        nonlocal most
        under_way.append(len(texts))
        most = max(most, len(under_way))
        await anyio.lowlevel.checkpoint()
        under_way.pop()
        return np.zeros((len(texts), 384), np.float32)

    embedder = LocalEmbedder(OnnxModel(read_builtin_model()), embed_batch, workers=3)
    await embedder.embed_passages(["text"] * (10 * BATCH))
    assert most == 3


async def test_the_failure_of_one_batch_is_told_and_ends_the_others() -> None:
    ended = anyio.Event()

    async def embed_batch(texts: Sequence[str]) -> Vectors:
        if texts[0] == "bad":
            raise EngineError("no vectors")
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()
        raise AssertionError

    embedder = LocalEmbedder(OnnxModel(read_builtin_model()), embed_batch, workers=2)
    with pytest.raises(EngineError, match="no vectors"):
        await embedder.embed_passages(["good"] * BATCH + ["bad"])
    assert ended.is_set()
