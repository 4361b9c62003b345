"""Engines on a scripted R2R, each with an account and a folder of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from refdesk.config.models import CircuitBreakerConfig, ConvertConfig, R2RConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.r2r.engine import R2REngine, open_r2r
from refdesk.engines.r2r.ingest import R2RPauses
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics
from tests.engines.r2r.scripted import EMAIL, PASSWORD, ScriptedR2R, open_scripted_r2r

SHORT_PAUSES = R2RPauses(queue_poll=0.01, poll=0.01, first_retry=0.01, error=0.01)

OpenEngine = Callable[..., AbstractAsyncContextManager[R2REngine]]


@pytest.fixture
async def r2r() -> AsyncIterator[ScriptedR2R]:
    async with open_scripted_r2r() as r2r:
        yield r2r


@pytest.fixture(scope="package")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


@pytest.fixture
def read_log(tmp_path: Path) -> Callable[[], str]:
    """What the engines have written to the log."""
    return (tmp_path / "log").read_text


@pytest.fixture
def open_engine(r2r: ScriptedR2R, tmp_path: Path, conversions: Conversions) -> OpenEngine:
    """Open an engine: `async with open_engine("folder", failure_threshold=2) as engine`."""

    @asynccontextmanager
    async def open_engine_with(
        folder: str = "r2r", metrics: Metrics | None = None, pauses: R2RPauses = SHORT_PAUSES, **breaker: Any
    ) -> AsyncIterator[R2REngine]:
        settings = R2RConfig(api_url=r2r.url, email=EMAIL, password=SecretStr(PASSWORD))
        with closing(Log("debug", "json", tmp_path / "log")) as log:
            async with open_r2r(
                settings,
                CircuitBreakerConfig(**breaker),
                tmp_path / folder,
                conversions,
                log=log,
                metrics=metrics or Metrics(),
                pauses=pauses,
            ) as engine:
                yield engine

    return open_engine_with


@pytest.fixture
async def engine(open_engine: OpenEngine) -> AsyncIterator[R2REngine]:
    """An engine whose breaker stays closed, whatever R2R does."""
    async with open_engine(failure_threshold=1000) as engine:
        yield engine
