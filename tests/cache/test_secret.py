"""What processes that share a cache know, and nobody else."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from refdesk.cache.redis import load_cache_secret
from refdesk.errors import StorageError


def test_processes_on_one_folder_have_one_secret_whoever_makes_it(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: load_cache_secret(data), range(32)))
    [secret] = found
    assert len(secret) == 32
    assert [path.name for path in data.iterdir()] == ["cache.secret"]
    assert stat.S_IMODE((data / "cache.secret").stat().st_mode) == 0o600
    assert load_cache_secret(tmp_path / "other") != secret


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot keep a secret"):
        load_cache_secret(tmp_path / "data")
