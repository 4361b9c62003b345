"""Places and the queue for them, also when those who wait are called off in an awkward moment."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from refdesk.config.models import CircuitBreakerConfig
from refdesk.errors import Overloaded
from refdesk.resilience.dependency import Dependency

pytestmark = pytest.mark.anyio


class Visitor:
    """A call that keeps its place until it may leave."""

    def __init__(self, dependency: Dependency) -> None:
        self.is_inside = False
        self.may_leave = asyncio.Event()
        self.task = asyncio.create_task(dependency.run(self._stay))

    async def _stay(self) -> None:
        self.is_inside = True
        await self.may_leave.wait()


async def visit(dependency: Dependency, count: int) -> list[Visitor]:
    visitors = [Visitor(dependency) for _ in range(count)]
    await anyio.wait_all_tasks_blocked()
    return visitors


async def free_places(dependency: Dependency) -> int:
    """The number of places. As many callers can wait for one, so that twice as many can come."""
    visitors = await visit(dependency, 10)
    inside = sum(visitor.is_inside for visitor in visitors)
    refused = [visitor for visitor in visitors if visitor.task.done()]
    assert len(visitors) - len(refused) == 2 * inside
    for visitor in visitors:
        visitor.may_leave.set()
    for visitor in visitors:
        with suppress(Overloaded):
            await visitor.task
    return inside


@pytest.fixture
def dependency() -> Dependency:
    """A dependency with two places, and a queue of two."""
    return Dependency("r2r", CircuitBreakerConfig(), concurrency=2)


async def test_a_place_goes_to_whoever_waits_longest(dependency: Dependency) -> None:
    one, other, first, second = await visit(dependency, 4)
    assert (one.is_inside, other.is_inside, first.is_inside, second.is_inside) == (True, True, False, False)
    one.may_leave.set()
    await one.task
    (later,) = await visit(dependency, 1)
    assert (first.is_inside, second.is_inside, later.is_inside) == (True, False, False)
    other.may_leave.set()
    (last,) = await visit(dependency, 1)
    assert (second.is_inside, later.is_inside, last.is_inside) == (True, False, False)
    for visitor in (first, second, later, last):
        visitor.may_leave.set()
        await visitor.task
    assert await free_places(dependency) == 2


async def test_when_the_queue_is_full_callers_are_told_to_come_back(dependency: Dependency) -> None:
    visitors = await visit(dependency, 4)
    with pytest.raises(Overloaded, match="r2r") as caught:
        await Visitor(dependency).task
    assert caught.value.retry_after
    for visitor in visitors:
        visitor.may_leave.set()
        await visitor.task


async def test_who_is_called_off_leaves_the_queue(dependency: Dependency) -> None:
    one, _, first, second = await visit(dependency, 4)
    first.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first.task
    (third,) = await visit(dependency, 1)
    assert not third.task.done()  # there is room in the queue
    one.may_leave.set()
    await anyio.wait_all_tasks_blocked()
    assert (first.is_inside, second.is_inside, third.is_inside) == (False, True, False)


async def test_who_is_called_off_after_his_turn_came_passes_the_place_on(dependency: Dependency) -> None:
    one, other, first, second = await visit(dependency, 4)
    one.may_leave.set()
    # After the first was given the place, and before he goes on.
    asyncio.get_running_loop().call_soon(first.task.cancel)
    await anyio.wait_all_tasks_blocked()
    assert first.task.cancelled()
    assert (first.is_inside, second.is_inside) == (False, True)
    for visitor in (other, second):
        visitor.may_leave.set()
        await visitor.task
    assert await free_places(dependency) == 2


async def test_who_was_called_off_before_his_turn_came_is_passed_over(dependency: Dependency) -> None:
    one, other, first, second = await visit(dependency, 4)
    first.task.cancel()
    one.may_leave.set()
    await anyio.wait_all_tasks_blocked()
    assert first.task.cancelled()
    assert second.is_inside
    for visitor in (other, second):
        visitor.may_leave.set()
        await visitor.task
    assert await free_places(dependency) == 2


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_is_called_off_no_place_is_lost_or_given_twice(seed: int) -> None:
    chance = random.Random(seed)
    dependency = Dependency("r2r", CircuitBreakerConfig(), concurrency=3)
    inside = most = 0

    async def stay() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        try:
            for _ in range(chance.randrange(4)):
                await checkpoint()
        finally:
            inside -= 1

    async def come_again() -> None:
        """Visit, and come again if there is no room in the queue."""
        while True:
            with suppress(Overloaded):
                return await dependency.run(stay)
            await checkpoint()

    tasks = [asyncio.create_task(come_again()) for _ in range(50)]
    for task in chance.sample(tasks, len(tasks)):
        await checkpoint()
        if chance.random() < 0.5:
            task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    assert (most, inside, await free_places(dependency)) == (3, 0, 3)
