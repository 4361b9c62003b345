"""Servers without embedding, one of them shared by the tests of a file: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import pytest

from refdesk.config.loading import load
from refdesk.config.models import Config
from tests.conftest import Serve
from tests.servers import RunningServer, running_server


@pytest.fixture
def settings(settings: Callable[..., Config]) -> Callable[..., Config]:
    """A configuration without embedding, which would keep a core busy for seconds."""
    return partial(settings, embedding__source="none")


@pytest.fixture(scope="module")
def serve_all(tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """Start a server for all tests of a file, as `serve` does for one."""

    def start(**overrides: Any) -> AbstractAsyncContextManager[RunningServer]:
        folder = tmp_path_factory.mktemp("data")
        given = {"data_dir": str(folder), "server.port": 0, "embedding.source": "none"}
        return running_server(
            load(None, {}, given | {key.replace("__", "."): value for key, value in overrides.items()})
        )

    return start


@pytest.fixture(scope="module")
async def shared_server(serve_all: Serve) -> AsyncIterator[RunningServer]:
    """A server with default settings."""
    async with serve_all() as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> Iterator[RunningServer]:
    """The shared server as it was when it started: what a test adds to it is removed afterwards."""
    registry, probe = shared_server.desk.registry, shared_server.probe
    tools, prompts = set(registry.tools), set(registry.prompts)
    probe.started.clear()
    probe.cancelled.clear()
    yield shared_server
    for name in set(registry.tools) - tools:
        registry.remove_tool(name)
    for name in set(registry.prompts) - prompts:
        registry.remove_prompt(name)
