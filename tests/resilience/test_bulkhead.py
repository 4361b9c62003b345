"""Places and the queue for them, also when those who wait are called off in an awkward moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from refdesk.errors import Overloaded
from refdesk.resilience.dependency import Bulkhead

pytestmark = pytest.mark.anyio


async def waiting(bulkhead: Bulkhead) -> asyncio.Task[None]:
    """Somebody who waits in the queue."""
    before = bulkhead.waiting
    task = asyncio.create_task(bulkhead.wait())
    await anyio.wait_all_tasks_blocked()
    assert bulkhead.waiting == before + 1
    return task


def free_places(bulkhead: Bulkhead) -> int:
    taken = sum(iter(bulkhead.enter, False))
    for _ in range(taken):
        bulkhead.leave()
    return taken


def full(places: int = 1, queue: int = 2) -> Bulkhead:
    bulkhead = Bulkhead("r2r", places, queue)
    assert [bulkhead.enter() for _ in range(places + 1)] == [True] * places + [False]
    return bulkhead


async def test_a_place_goes_to_whoever_waits_longest() -> None:
    bulkhead = full()
    first, second = await waiting(bulkhead), await waiting(bulkhead)
    bulkhead.leave()
    assert not bulkhead.enter()  # who comes later is not faster
    await first
    assert not second.done()
    bulkhead.leave()
    await second
    bulkhead.leave()
    assert free_places(bulkhead) == 1


async def test_when_the_queue_is_full_callers_are_told_to_come_back() -> None:
    bulkhead = full(queue=1)
    task = await waiting(bulkhead)
    with pytest.raises(Overloaded, match="r2r") as caught:
        await bulkhead.wait()
    assert caught.value.retry_after
    bulkhead.leave()
    await task


async def test_who_is_called_off_leaves_the_queue() -> None:
    bulkhead = full()
    first, second = await waiting(bulkhead), await waiting(bulkhead)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert bulkhead.waiting == 1
    bulkhead.leave()
    await second


async def test_who_is_called_off_after_his_turn_came_passes_the_place_on() -> None:
    bulkhead = full()
    first, second = await waiting(bulkhead), await waiting(bulkhead)
    bulkhead.leave()
    first.cancel()
    await second
    assert first.cancelled()
    bulkhead.leave()
    assert free_places(bulkhead) == 1


async def test_who_was_called_off_before_his_turn_came_is_passed_over() -> None:
    bulkhead = full()
    first, second = await waiting(bulkhead), await waiting(bulkhead)
    first.cancel()
    bulkhead.leave()
    await second
    assert first.cancelled()
    bulkhead.leave()
    assert free_places(bulkhead) == 1


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_called_off_no_place_is_lost_or_given_twice(seed: int) -> None:
    chance = random.Random(seed)
    bulkhead = Bulkhead("r2r", 3, 50)
    inside = most = 0

    async def visit() -> None:
        nonlocal inside, most
        if not bulkhead.enter():
            await bulkhead.wait()
        inside += 1
        most = max(most, inside)
        try:
            for _ in range(chance.randrange(4)):
                await checkpoint()
        finally:
            inside -= 1
            bulkhead.leave()

    async def disturb(tasks: Iterator[asyncio.Task[None]]) -> None:
        for task in tasks:
            await checkpoint()
            if chance.random() < 0.5:
                task.cancel()

    tasks = [asyncio.create_task(visit()) for _ in range(50)]
    await disturb(iter(chance.sample(tasks, len(tasks))))
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    assert (most, inside, bulkhead.waiting, free_places(bulkhead)) == (3, 0, 0, 3)
