"""Watching a folder, with a clock and a sleep that take no time: what happens meanwhile is told to the sleep."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from refdesk.errors import CannotOpen
from refdesk.ingest.folder_watch import MAX_PAUSE_SECONDS, MAX_SETTLE_ATTEMPTS, MIN_PAUSE_SECONDS, changes

pytestmark = pytest.mark.anyio

SETTLE = 0.25


class Night:
    """A sleep during which things happen, one after the other; when nothing is left to happen, it is over."""

    def __init__(self, *events: Callable[[], object] | None) -> None:
        self._events = list(events)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        if not self._events:
            raise Morning
        event = self._events.pop(0)
        if event is not None:
            event()


class Morning(Exception):
    pass


async def times_told(folder: Path, night: Night, *ignore: str, clock: Callable[[], float] = lambda: 0.0) -> int:
    told = 0
    watched = changes(folder, settle_seconds=SETTLE, ignore=ignore, max_files=1000, sleep=night.sleep, clock=clock)
    try:
        async for _ in watched:
            told += 1
    except Morning:
        return told
    raise AssertionError("watching ended by itself")


def writing(path: Path, text: str = "new") -> Callable[[], object]:
    return lambda: path.write_text(text)


async def test_a_folder_is_told_once_at_the_beginning_and_not_again_while_nothing_changes(tmp_path: Path) -> None:
    night = Night(None, None)
    assert await times_told(tmp_path, night) == 1
    assert night.slept == [MIN_PAUSE_SECONDS] * 3


async def test_a_change_is_told_when_the_folder_has_come_to_rest(tmp_path: Path) -> None:
    night = Night(writing(tmp_path / "a.md"), writing(tmp_path / "b.md"), None)
    assert await times_told(tmp_path, night) == 2
    assert night.slept == [MIN_PAUSE_SECONDS, SETTLE, SETTLE, MIN_PAUSE_SECONDS]


@pytest.mark.parametrize("kind", ["grown", "touched", "replaced", "deleted", "renamed", "ignored"])
async def test_every_kind_of_change_is_seen(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "a.md", tmp_path / "other.tmp"
    path.write_text("old")
    other.write_text("new")
    os.utime(path, ns=(5, 5))
    os.utime(other, ns=(5, 5))
    events: dict[str, Callable[[], object]] = {
        "grown": writing(path, "longer"),
        "touched": lambda: os.utime(path, ns=(5, 6)),
        "replaced": lambda: other.replace(path),
        "deleted": path.unlink,
        "renamed": lambda: path.rename(tmp_path / "b.md"),
        "ignored": writing(tmp_path / ".gitignore", "a.md"),
    }
    assert await times_told(tmp_path, Night(events[kind], None)) == 2


async def test_what_is_no_document_or_ignored_is_no_change(tmp_path: Path) -> None:
    night = Night(writing(tmp_path / "x.o"), writing(tmp_path / "log.txt"), None)
    assert await times_told(tmp_path, night, "log.txt") == 1


async def test_a_change_that_is_undone_before_it_has_settled_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    night = Night(writing(path), path.unlink, None, None)
    assert await times_told(tmp_path, night) == 1


async def test_a_folder_that_never_rests_is_told_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    night = Night(*(writing(path, "x" * n) for n in range(1, MAX_SETTLE_ATTEMPTS + 2)))
    assert await times_told(tmp_path, night) == 2


async def test_what_changes_while_the_folder_is_being_read_is_told_next(tmp_path: Path) -> None:
    night = Night(None, None)
    watched = changes(tmp_path, settle_seconds=SETTLE, max_files=9, sleep=night.sleep)
    async with aclosing(watched):
        await anext(watched)
        (tmp_path / "a.md").write_text("x")
        await anext(watched)
    assert night.slept == [MIN_PAUSE_SECONDS, SETTLE]


async def test_a_folder_that_is_out_of_reach_for_a_while_has_not_changed(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "disk", tmp_path / "drawer"
    folder.mkdir()
    (folder / "a.md").write_text("x")
    night = Night(lambda: folder.rename(elsewhere), None, lambda: elsewhere.rename(folder), None)
    assert await times_told(folder, night) == 1


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen):
        await anext(changes(tmp_path / "missing", settle_seconds=SETTLE, max_files=9))


@pytest.mark.parametrize(("seconds", "pause"), [(0.5, 10.0), (100.0, MAX_PAUSE_SECONDS)])
async def test_the_longer_a_look_takes_the_rarer_it_is(tmp_path: Path, seconds: float, pause: float) -> None:
    ticks = iter(seconds * tick for tick in range(99))
    night = Night()
    await times_told(tmp_path, night, clock=lambda: next(ticks))
    assert night.slept == [pause]


async def test_watching_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    told = 0
    with anyio.move_on_after(60) as scope:
        async with aclosing(changes(tmp_path, settle_seconds=SETTLE, max_files=9)) as watched:
            async for _ in watched:
                told += 1
                scope.cancel()
    assert told == 1
    assert scope.cancelled_caught
