"""The last known lists of each server, on disk."""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import orjson
import pytest

from refdesk.downstream.fleet.member import MAX_CACHED_BYTES, ListCache, Lists, fingerprint
from tests.downstream.scripted import server_settings, tool

LISTS: Lists = {"tools": (tool("a"),), "prompts": (), "resources": ({"uri": "x:1", "name": "one"},), "templates": ()}


def only_file(folder: Path) -> Path:
    (path,) = (folder / "listings").iterdir()
    return path


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    ListCache(tmp_path).write("docs", server_settings(), LISTS)
    assert ListCache(tmp_path).read("docs", server_settings()) == LISTS
    assert only_file(tmp_path).name == "docs.json"
    assert stat.S_IMODE(only_file(tmp_path).stat().st_mode) == 0o600


def test_nothing_is_known_of_a_server_never_seen(tmp_path: Path) -> None:
    assert ListCache(tmp_path).read("docs", server_settings()) is None


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "ünï", "x" * 300, "..", "CON\0"])
def test_no_name_of_a_server_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    ListCache(tmp_path).write(name, server_settings(), LISTS)
    assert only_file(tmp_path).parent == tmp_path / "listings"
    assert ListCache(tmp_path).read(name, server_settings()) == LISTS
    assert ListCache(tmp_path).read(only_file(tmp_path).stem, server_settings()) is None


def test_the_lists_of_a_server_that_is_reached_otherwise_are_another_servers(tmp_path: Path) -> None:
    ListCache(tmp_path).write("docs", server_settings(args=("one",)), LISTS)
    assert ListCache(tmp_path).read("docs", server_settings(args=("two",))) is None


def test_a_new_secret_is_still_the_same_server() -> None:
    assert fingerprint(server_settings(env={"KEY": "one"})) == fingerprint(server_settings(env={"KEY": "two"}))
    assert fingerprint(server_settings(env={"KEY": "one"})) != fingerprint(server_settings(env={"OTHER": "one"}))


def test_no_secret_gets_into_the_file(tmp_path: Path) -> None:
    ListCache(tmp_path).write("docs", server_settings(env={"KEY": "sk-very-secret"}), LISTS)
    assert b"sk-very-secret" not in only_file(tmp_path).read_bytes()


@pytest.mark.parametrize(
    "change", [{"format": 9}, {"tools": None}, {"tools": [1]}, {"prompts": {}}, {"templates": "x"}]
)
def test_a_file_that_is_not_as_we_write_it_counts_for_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, object]
) -> None:
    ListCache(tmp_path).write("docs", server_settings(), LISTS)
    path = only_file(tmp_path)
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **change}))
    with caplog.at_level(logging.WARNING):
        assert ListCache(tmp_path).read("docs", server_settings()) is None
    assert "downstream.listing_unread" in caplog.text


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b" " * (MAX_CACHED_BYTES + 1)])
def test_a_broken_file_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    ListCache(tmp_path).write("docs", server_settings(), LISTS)
    only_file(tmp_path).write_bytes(content)
    assert ListCache(tmp_path).read("docs", server_settings()) is None
    ListCache(tmp_path).write("docs", server_settings(), LISTS)
    assert ListCache(tmp_path).read("docs", server_settings()) == LISTS


def test_lists_that_are_too_long_are_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long: Lists = {**LISTS, "tools": (tool("a", "x" * MAX_CACHED_BYTES),)}
    ListCache(tmp_path).write("docs", server_settings(), long)
    assert "downstream.listing_unwritten" in caplog.text
    assert not list(tmp_path.rglob("*.json"))


def test_a_folder_that_cannot_be_written_is_told_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "listings").write_text("a file in the way")
    ListCache(tmp_path).write("docs", server_settings(), LISTS)
    assert "downstream.listing_unwritten" in caplog.text
