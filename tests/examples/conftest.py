"""One desk for all examples that take any desk, and one home for all of them, in which the manual is indexed once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.processes import Server, running_server


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples are at home."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
async def server(home: Path) -> AsyncIterator[Server]:
    """Refdesk as a process of its own."""
    async with running_server(home) as server:
        yield server
