"""One R2R for all of these tests, and engines and desks on accounts of their own: what one test does, no other sees."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from refdesk.config.loading import load
from refdesk.config.models import CircuitBreakerConfig, Config, ConvertConfig, R2RConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.r2r.engine import R2REngine, open_r2r
from refdesk.engines.r2r.ingest import R2RPauses
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics
from tests.r2r.lab import Account, Lab, Unavailable, lab
from tests.r2r.lab.proxy import Proxy, proxy

SHORT_PAUSES = R2RPauses(poll=0.05, first_retry=0.1, error=0.1)


@pytest.fixture(scope="session")
def r2r() -> Iterator[Lab]:
    """R2R itself, up and in order."""
    with ExitStack() as stack:
        try:
            opened = stack.enter_context(lab())
        except Unavailable as why:
            pytest.skip(str(why))
        yield opened


@pytest.fixture(scope="session")
async def conversions(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Conversions]:
    async with open_conversions(ConvertConfig(), tmp_path_factory.mktemp("conversions"), Metrics()) as conversions:
        yield conversions


@pytest.fixture
def account(r2r: Lab) -> Account:
    """A service account that nobody else has."""
    return r2r.account()


@pytest.fixture
async def way(r2r: Lab) -> AsyncIterator[Proxy]:
    """A way to R2R that counts what goes by, and can be disturbed."""
    async with proxy(r2r.url) as way:
        yield way


OpenEngine = Callable[..., AbstractAsyncContextManager[R2REngine]]


@pytest.fixture
def open_engine(tmp_path: Path, account: Account, conversions: Conversions) -> OpenEngine:
    """Open an engine: `async with open_engine(way.url, max_connections=5) as engine`."""

    @asynccontextmanager
    async def opened(url: str, *, log_file: Path | None = None, **more: Any) -> AsyncIterator[R2REngine]:
        as_account = {"email": account.email, "password": SecretStr(account.password)}
        settings = R2RConfig(api_url=url, **(as_account | more))
        with closing(Log("debug" if log_file else "error", "json", log_file)) as log:
            async with open_r2r(
                settings, CircuitBreakerConfig(), tmp_path / "r2r", conversions,
                log=log, metrics=Metrics(), pauses=SHORT_PAUSES,
            ) as engine:  # fmt: skip
                yield engine

    return opened


@pytest.fixture
def make_config(tmp_path: Path, account: Account) -> Callable[..., Config]:
    """Settings of a desk that keeps its documents in R2R; keyword arguments are settings with `__` for the dot."""

    def make(url: str, **more: Any) -> Config:
        given = {
            "data_dir": str(tmp_path / "data"),
            "server.port": 0,
            "r2r.api_url": url,
            "r2r.email": account.email,
            "r2r.password": account.password,
        }
        return load(None, {}, given | {name.replace("__", "."): value for name, value in more.items()})

    return make
