"""Fixtures that any test may use: a desk on a folder of its own, and a real server around it.

They import the application themselves: a test of one small module should not wait for all others to be imported.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as examples

if TYPE_CHECKING:
    from refdesk.app import Desk
    from refdesk.config.models import Config
    from tests.servers import RunningServer

# An example's duration says more about the machine than about what is tested.
examples.register_profile("refdesk", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.load_profile("refdesk")


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loop that the server itself runs on."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Config]:
    """A configuration in a folder of its own; keyword arguments are settings with `__` for the dot."""

    from refdesk.config.loading import load

    def make(**overrides: Any) -> Config:
        # One worker of each kind: a second one costs more to start than a few documents to convert and embed.
        given = {
            "data_dir": str(tmp_path / "data"), "server.port": 0, "convert.workers": 1, "embedding.workers": 1,
        }  # fmt: skip
        return load(None, {}, given | {name.replace("__", "."): value for name, value in overrides.items()})

    return make


@pytest.fixture
async def desk(settings: Callable[..., Config]) -> AsyncIterator[Desk]:
    """An open desk with default settings."""
    from refdesk.app import open_desk

    async with open_desk(settings()) as desk:
        yield desk


Serve = Callable[..., AbstractAsyncContextManager["RunningServer"]]


@pytest.fixture
def serve(settings: Callable[..., Config]) -> Serve:
    """Start a real server on a free port of loopback: `async with serve(server__workers=1) as server`."""

    from tests.servers import running_server

    def start(**overrides: Any) -> AbstractAsyncContextManager[RunningServer]:
        return running_server(settings(**overrides))

    return start
