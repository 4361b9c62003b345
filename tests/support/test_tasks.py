"""Background tasks."""

from __future__ import annotations

import asyncio

import pytest
from anyio import wait_all_tasks_blocked

from refdesk.support.tasks import TaskSet, wait_all

pytestmark = pytest.mark.anyio


async def test_a_task_is_dropped_when_it_ends() -> None:
    tasks, may_end = TaskSet(), asyncio.Event()

    async def wait() -> None:
        await may_end.wait()

    task = tasks.spawn(wait(), name="waiting")
    assert (len(tasks), task.get_name()) == (1, "waiting")
    may_end.set()
    await task
    await wait_all_tasks_blocked()
    assert not tasks


async def test_all_tasks_are_cancelled_and_waited_for() -> None:
    tasks, ended = TaskSet(), list[int]()

    async def hang(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    for number in range(3):
        tasks.spawn(hang(number))
    await wait_all_tasks_blocked()
    await tasks.cancel()
    assert sorted(ended) == [0, 1, 2]
    await tasks.cancel()


async def test_a_wait_that_is_cancelled_cancels_the_tasks_and_waits_for_their_end() -> None:
    await wait_all(())
    may_end = asyncio.Event()

    async def end_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    task = asyncio.create_task(end_slowly())
    waiting = asyncio.create_task(wait_all({task}))
    await wait_all_tasks_blocked()
    waiting.cancel()
    await wait_all_tasks_blocked()
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert task.cancelled()
