"""The manual's index: shared by data folders and processes, apart by embedding model."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from refdesk.app import open_desk
from refdesk.calls import Event, ListChanged
from refdesk.config.loading import load
from refdesk.config.models import EmbeddingConfig
from refdesk.engines.base import SHARED
from refdesk.engines.storage.databases import DATABASE
from refdesk.manual import find_manual_index_folder
from tests.tools.knowing import open_indexed_desk
from tests.waiting import eventually


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_data_folders_share_an_index(tmp_path: Path) -> None:
    assert find_manual_index_folder(tmp_path / "a", EmbeddingConfig()) == find_manual_index_folder(
        tmp_path / "b", EmbeddingConfig()
    )


@pytest.mark.parametrize(
    "other",
    [EmbeddingConfig(source="none"), EmbeddingConfig(source="onnx", model_path=Path("/models/bge"))],
)
def test_models_have_an_index_each(other: EmbeddingConfig, tmp_path: Path) -> None:
    assert find_manual_index_folder(tmp_path, EmbeddingConfig()) != find_manual_index_folder(tmp_path, other)


def test_without_a_cache_folder_the_index_is_beside_the_data(cache_folder: Path, tmp_path: Path) -> None:
    cache_folder.write_text("a file in its place")
    assert find_manual_index_folder(tmp_path / "data", EmbeddingConfig()) == tmp_path / "data" / "manual"


@pytest.mark.anyio
async def test_a_desk_opens_while_another_process_writes_the_index(tmp_path: Path) -> None:
    async with open_indexed_desk(tmp_path / "a"):
        pass
    async with open_indexed_desk(tmp_path / "a") as desk:  # the first one may not know of its last changes yet
        revision = desk.engine.revision(SHARED)
    index = find_manual_index_folder(tmp_path / "a", EmbeddingConfig(source="none"))
    with closing(sqlite3.connect(index / DATABASE, isolation_level=None)) as other_process:
        other_process.execute("BEGIN IMMEDIATE")
        async with open_indexed_desk(tmp_path / "b") as desk:
            assert (await desk.readiness())[0]
            assert desk.engine.revision(SHARED) == revision


@pytest.mark.anyio
async def test_indexing_the_manual_changes_no_list(tmp_path: Path) -> None:
    async with open_desk(load(None, {}, {"data_dir": str(tmp_path / "data"), "embedding.source": "none"})) as desk:
        events: list[Event] = []
        desk.registry.listen(events.append)
        await eventually(lambda: events)
        assert not any(isinstance(event, ListChanged) for event in events)
