"""Atomic replacement and locks of files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from refdesk.support.fs import lock_file, replace_file


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_replaced_behind_its_link_and_readable_by_its_owner_only(tmp_path: Path, is_durable: bool) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("before")
    link.symlink_to(target)
    replace_file(link, b"after", is_durable=is_durable)
    assert link.is_symlink()
    assert target.read_text() == "after"
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_failed_replacement_leaves_the_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def fail(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"after")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "before"


def test_a_lock_excludes_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    code = "import fcntl, sys; fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    with lock_file(path):
        lock = path.with_name(".file.lock")
        held = subprocess.run([sys.executable, "-c", code, str(lock)], capture_output=True, check=False)
    free = subprocess.run([sys.executable, "-c", code, str(lock)], capture_output=True, check=False)
    assert b"BlockingIOError" in held.stderr
    assert free.returncode == 0
