"""Desks over the real files, or over a copy of them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from refdesk.app import Desk, open_desk
from refdesk.config.loading import load
from refdesk.config.models import Config
from tests.real_files import FILES


@pytest.fixture
def settings(settings: Callable[..., Config]) -> Callable[..., Config]:
    """Without a model, which would embed the manual meanwhile; what it adds is shown where search itself is tested."""
    return lambda **overrides: settings(**{"embedding__source": "none"} | overrides)


@pytest.fixture(scope="module")
async def shared_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """A desk that may read the real files, for tests that do not mind what others have converted."""
    given = {
        "data_dir": str(tmp_path_factory.mktemp("shared")),
        "embedding.source": "none",
        "convert.roots": [str(FILES)],
        "reader.rate_limit_calls": 1_000_000,
        "reader.rate_limit_tokens": 1_000_000_000,
    }
    async with open_desk(load(None, {}, given)) as desk:
        yield desk


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the real files in it."""
    folder = tmp_path / "project"
    shutil.copytree(FILES, folder)
    return folder


@pytest.fixture
async def converting(settings: Callable[..., Config], project: Path) -> AsyncIterator[Desk]:
    """A desk of one test, that may read the project's files."""
    async with open_desk(settings(convert__roots=[str(project)])) as desk:
        yield desk
