"""The embedded engine is put through what every engine must do, and what is its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path

import pytest

from refdesk.config import ConvertConfig, EmbeddingConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.embedded.embedding import open_embedder
from refdesk.engines.embedded.embedding.port import Embedder
from refdesk.engines.embedded.engine import EmbeddedEngine, open_embedded
from refdesk.telemetry import Log, Metrics
from tests.contracts.engine import EngineContract

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


@pytest.fixture(scope="module")
async def embedder() -> AsyncIterator[Embedder | None]:
    async with open_embedder(EmbeddingConfig()) as embedder:
        yield embedder


def opened(
    folder: Path, embedder: Embedder | None, conversions: Conversions, log: Log
) -> AbstractAsyncContextManager[EmbeddedEngine]:
    return open_embedded(folder / "tenants", folder / "shared", embedder, conversions, log=log, metrics=Metrics())


class TestEmbedded(EngineContract):
    @pytest.fixture
    async def engine(
        self, tmp_path: Path, conversions: Conversions, embedder: Embedder | None
    ) -> AsyncIterator[EmbeddedEngine]:
        with closing(Log("warning")) as log:
            async with opened(tmp_path / "data", embedder, conversions, log) as engine:
                yield engine
