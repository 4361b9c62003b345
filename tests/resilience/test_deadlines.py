"""Many bounds on one timer: each holds, and no cancellation is taken for another."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from anyio.lowlevel import checkpoint

from refdesk.resilience.deadlines import Deadlines, Overdue

pytestmark = pytest.mark.anyio


async def work() -> str:
    """Work that never waits, and so is never overdue."""
    return "works"


async def test_work_in_time_gives_what_it_gives() -> None:
    async def add(a: int, *, b: int) -> int:
        return a + b

    assert await Deadlines(10).run(add, 1, b=2) == 3


async def test_work_that_is_overdue_is_cancelled_and_the_task_goes_on() -> None:
    ended = asyncio.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(Overdue):
        await Deadlines(0.01).run(hang)
    assert ended.is_set()
    await checkpoint()  # which would raise if the cancellation were still pending


async def test_a_time_out_of_the_work_itself_is_not_ours() -> None:
    async def fail() -> None:
        raise TimeoutError("of mine")

    with pytest.raises(TimeoutError, match="of mine") as caught:
        await Deadlines(10).run(fail)
    assert not isinstance(caught.value, Overdue)


async def test_whoever_cancels_the_caller_is_obeyed() -> None:
    task = asyncio.create_task(Deadlines(10).run(asyncio.Event().wait))
    await anyio.wait_all_tasks_blocked()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_every_one_of_many_is_stopped_when_it_is_due() -> None:
    deadlines = Deadlines(0.02)
    results = await asyncio.gather(*(deadlines.run(asyncio.Event().wait) for _ in range(500)), return_exceptions=True)
    assert all(isinstance(result, Overdue) for result in results)
    assert await deadlines.run(work) == "works"


async def test_what_is_closed_keeps_no_timer() -> None:
    deadlines = Deadlines(3600)
    await deadlines.run(work)
    timer = deadlines._timer
    assert timer is not None
    deadlines.close()
    assert timer.cancelled()
    assert await deadlines.run(work) == "works"
    deadlines.close()
