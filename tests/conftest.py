"""Fixtures that any test may use: a desk on a folder of its own, and a real server around it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings as examples

from refdesk.app import Desk, open_desk
from refdesk.config import Config, load
from tests.servers import RunningServer, running_server

# How long an example takes says more of the machine than of what is tested.
examples.register_profile("refdesk", deadline=None)
examples.load_profile("refdesk")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the server itself runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Config]:
    """A configuration in a folder of its own; keyword arguments are settings with `__` for the dot."""

    def make(**overrides: Any) -> Config:
        given = {"data_dir": str(tmp_path / "data"), "server.port": 0}
        return load(None, {}, given | {name.replace("__", "."): value for name, value in overrides.items()})

    return make


@pytest.fixture
async def desk(settings: Callable[..., Config]) -> AsyncIterator[Desk]:
    """An open desk with default settings."""
    async with open_desk(settings()) as desk:
        yield desk


Serve = Callable[..., AbstractAsyncContextManager[RunningServer]]


@pytest.fixture
def serve(settings: Callable[..., Config]) -> Serve:
    """Start a real server on a free port of loopback: `async with serve(server__workers=1) as server`."""

    def start(**overrides: Any) -> AbstractAsyncContextManager[RunningServer]:
        return running_server(settings(**overrides))

    return start
