"""`refdesk serve` as a process: told to stop, killed, and flooded. F37, F38, and the memory of F8, F9 and F12."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gateway.desks import Gateway, Settings, bad, listening
from tests.gateway.served import Served, serve_desk
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MEGABYTE = 1 << 20
TWICE_A_MESSAGE = 2 * 16 + 8
"""Megabytes: the largest message that is taken, and a copy of it, for a buffer that grows is copied at times."""

STUBBORN: dict[str, Settings] = {"good": bad(), "stubborn": bad("ignoreterm"), "parent": bad("fork")}


def family(*leaders: int) -> set[int]:
    """The processes that live in the groups of these, whoever their parents are by now."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group, *_ = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(group) in leaders and state != "Z":
            found.add(int(stat.parent.name))
    return found


async def leaders_of(desk: Gateway) -> tuple[int, ...]:
    """The process ids of the stubborn servers, of which one has started others."""
    leaders = tuple([int(await desk.text(f"{name}__pid")) for name in STUBBORN])
    assert int(await desk.text("parent__forked")) in family(*leaders)
    return leaders


async def test_f37_told_to_stop_it_ends_with_all_it_has_started_whatever_is_still_open(tmp_path: Path) -> None:
    async with serve_desk(tmp_path, **STUBBORN) as desk:
        leaders = await leaders_of(desk)
        with suppress(httpx2.HTTPError):  # how the idle stream ends does not matter
            async with listening(await desk.session()):
                hanging = [asyncio.create_task(desk.call(f"{name}__hang")) for name in ("good", "stubborn")]
                await desk.until_described("good", in_flight=1)
                await desk.until_described("stubborn", in_flight=1)
                await desk.stop()
        assert not family(*leaders)
        for answer in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(answer, httpx2.HTTPError) or "error" in answer  # type: ignore[operator]


async def test_f38_killed_it_leaves_none_of_what_it_has_started(tmp_path: Path) -> None:
    async with serve_desk(tmp_path, **STUBBORN) as desk:
        leaders = await leaders_of(desk)
        assert desk.server is not None
        desk.server.process.kill()
        await desk.server.process.wait()
        try:
            await eventually(lambda: not family(*leaders))
        finally:
            for pid in family(*leaders):  # or nothing would ever end them
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
async def flood_desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    """A process that all floods are for."""
    async with serve_desk(tmp_path_factory.mktemp("flooded"), bad=bad(), good=bad()) as desk:
        await desk.has_read_its_manual()
        for number in range(50):
            assert await desk.text("good__echo", text=str(number)) == str(number)
        yield desk


@pytest.mark.parametrize(
    ("fault", "arguments", "bound"),
    [
        pytest.param("bignonl", {}, TWICE_A_MESSAGE, id="f8 a line of 200 MB"),
        pytest.param("big", {"bytes": 50_000_000}, TWICE_A_MESSAGE, id="f9 a result of 50 MB"),
        pytest.param("notifyflood", {"count": 100_000}, 20, id="f12 100,000 notifications"),
        pytest.param("stderrflood", {"count": 50_000}, 20, id="f12 50,000 lines of stderr"),
    ],
)
async def test_f8_f9_f12_what_is_too_much_does_not_fill_the_memory(
    flood_desk: Served, fault: str, arguments: dict[str, Any], bound: int
) -> None:
    desk = flood_desk
    await desk.works("bad__echo", text="here")
    desk.forget_peak()
    before = desk.memory()
    answer = await desk.during(f"bad__{fault}", **arguments)
    assert ("error" in answer) == fault.startswith("big")
    assert desk.memory("VmHWM") - before <= bound * MEGABYTE
