"""What servers say on standard error: kept, bounded, masked, for its owner only."""

from __future__ import annotations

import logging
import stat
from itertools import count
from pathlib import Path

import pytest

from refdesk.downstream.files.server_log import (
    LINES_PER_SECOND,
    MAX_BYTES,
    MAX_LINE_CHARACTERS,
    ServerLog,
    log_path,
    read_last_lines,
)

SECRET = "hunter2hunter2"


def texts(folder: Path, name: str = "a", lines: int = 1000) -> list[str]:
    return [line.partition(" ")[2] for line in read_last_lines(folder, name, lines)]


def test_lines_are_kept_with_their_time_and_the_last_are_given(tmp_path: Path) -> None:
    log = ServerLog(tmp_path, "My server-1.0")
    for number in range(10):
        log(f"line {number}\n")
    assert texts(tmp_path, "My server-1.0", 3) == ["line 7", "line 8", "line 9"]
    assert read_last_lines(tmp_path, "My server-1.0", 1)[0].startswith("20")
    assert read_last_lines(tmp_path, "other", 3) == []
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_secrets_are_masked_the_longest_first(tmp_path: Path) -> None:
    log = ServerLog(tmp_path, "a", [SECRET, f"{SECRET}-more", "abc"])
    log(f"key {SECRET}-more and {SECRET} and abc")
    assert texts(tmp_path) == ["key ******** and ******** and abc"]


def test_a_server_that_writes_without_end_has_two_files_and_no_more(tmp_path: Path) -> None:
    log = ServerLog(tmp_path, "a", now=count().__next__)
    for number in range(2000):
        log(f"{number} " + "x" * 500)
    log("y" * 1_000_000)
    files = list((tmp_path / "logs").iterdir())
    assert {file.name for file in files} == {"a.log", "a.log.1"}
    assert all(file.stat().st_size <= MAX_BYTES + MAX_LINE_CHARACTERS + 100 for file in files)
    kept = texts(tmp_path)
    assert len(kept[-1]) == MAX_LINE_CHARACTERS
    numbers = [int(line.split()[0]) for line in kept[:-1]]
    assert numbers == list(range(numbers[0], 2000))
    assert len(numbers) > 200


def test_of_a_flood_only_the_number_is_told(tmp_path: Path) -> None:
    seconds = 100.0
    log = ServerLog(tmp_path, "a", now=lambda: seconds)
    for number in range(1000):
        log(str(number))
    seconds += 1
    log("calm")
    kept = read_last_lines(tmp_path, "a", 1000)
    assert len(kept) == LINES_PER_SECOND + 2
    assert kept[-2] == f"({1000 - LINES_PER_SECOND} lines were left out)"
    assert kept[-1].endswith(" calm")


def test_nothing_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    logs = [ServerLog(tmp_path, f"s{number}") for number in range(20)]
    for log in logs:
        log("line")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_two_processes_that_have_the_server_turn_the_file_over_once(tmp_path: Path) -> None:
    first, second = (ServerLog(tmp_path, "a", now=count().__next__) for _ in range(2))
    for number in range(400):
        first(f"first {number} " + "x" * 300)
        second(f"second {number} " + "x" * 300)
    kept = [line.split()[:2] for line in texts(tmp_path)]
    assert ["first", "399"] in kept
    assert ["second", "399"] in kept
    assert len(kept) > 300


def test_a_link_in_its_place_is_not_followed_and_what_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    path = log_path(tmp_path, "a")
    path.parent.mkdir()
    path.symlink_to(target)
    log = ServerLog(tmp_path, "a")
    log("one")
    log("two")
    assert target.read_text() == "mine"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_bytes_of_no_encoding_are_kept_as_marks(tmp_path: Path) -> None:
    log = ServerLog(tmp_path, "a")
    log("odd \udcff one")
    assert texts(tmp_path) == ["odd ? one"]
