"""A desk whose folder of files is a copy of the real files."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from refdesk.app import Desk, open_desk
from refdesk.config import Config
from tests.real_files import FILES


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the real files in it."""
    folder = tmp_path / "project"
    shutil.copytree(FILES, folder)
    return folder


@pytest.fixture
async def converting(settings: Callable[..., Config], project: Path) -> AsyncIterator[Desk]:
    """A desk that may read the project's files."""
    async with open_desk(settings(convert__roots=[str(project)])) as desk:
        yield desk
