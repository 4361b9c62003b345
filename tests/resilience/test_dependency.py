"""A dependency with everything around it: who is let through, who is tried again, and what a refusal costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked

from refdesk.config.models import CircuitBreakerConfig
from refdesk.errors import (
    BreakerOpen,
    DocumentNotFound,
    EngineError,
    InternalError,
    InvalidCall,
    Overloaded,
    RateLimited,
    RefdeskError,
    WriterMisconfigured,
)
from refdesk.resilience.breaker import State
from refdesk.resilience.dependency import RETRY_RESERVE, Dependency
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

COOL_DOWN = 60.0
Work = Callable[[], Awaitable[str]]


@dataclass
class World:
    """A dependency, the clock that it goes by, and what it does to those who call it."""

    given: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    time: float = 100.0
    calls: int = 0
    error: BaseException | None = None
    pauses: list[float] = field(default_factory=list)
    changes: list[tuple[str, State]] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    retries: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = CircuitBreakerConfig.model_validate({"timeout_seconds": COOL_DOWN, **self.settings})
        given = {"pause": self.pause, **self.given}
        self.dependency = Dependency("r2r", settings, now=lambda: self.time, chance=lambda: 1.0, **given)
        self.dependency.watch(self)

    def on_breaker_change(self, name: str, state: State) -> None:
        self.changes.append((name, state))

    def on_breaker_rejection(self, name: str) -> None:
        self.rejected.append(name)

    def on_retry(self, name: str) -> None:
        self.retries.append(name)

    def asking(self, name: str, operation: str) -> AbstractContextManager[None]:
        return nullcontext()

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.time += seconds

    async def work(self) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return "done"

    async def fail(self, times: int, error: BaseException | None = None) -> None:
        self.error = error or EngineError("down")
        for _ in range(times):
            with pytest.raises(type(self.error)):
                await self.dependency.run(self.work)
        self.error = None

    async def open(self) -> None:
        await self.fail(self.settings.get("failure_threshold", 5))
        assert self.dependency.state == "open"
        self.calls = 0


async def test_a_call_passes_with_its_result() -> None:
    world = World()
    assert await world.dependency.run(world.work) == "done"
    assert world.dependency.describe() == {"state": "closed", "failures": 0}


@pytest.mark.parametrize("error", [EngineError("down"), OSError("broken pipe"), TimeoutError(), ConnectionResetError()])
async def test_after_five_failures_callers_are_told_at_once_when_to_come_back(error: Exception) -> None:
    world = World()
    await world.fail(5, error)
    world.time += 20
    with pytest.raises(BreakerOpen, match=r"'r2r' .* 40\.0 seconds") as caught:
        await world.dependency.run(world.work, retries=3)
    assert (caught.value.code, caught.value.retryable, caught.value.retry_after) == (-32003, True, COOL_DOWN - 20)
    assert (world.calls, world.pauses) == (5, [])
    assert world.dependency.describe() == {"state": "open", "failures": 5, "retry_after": COOL_DOWN - 20}


@pytest.mark.parametrize(
    "error", [DocumentNotFound("?"), InvalidCall("?"), RateLimited("?"), InternalError("?"), ValueError()]
)
async def test_what_callers_do_wrong_and_our_own_mistakes_are_no_failures(error: Exception) -> None:
    world = World()
    await world.fail(20, error)
    assert world.dependency.describe() == {"state": "closed", "failures": 0}


async def test_an_error_that_will_not_pass_still_counts() -> None:
    world = World()
    await world.fail(5, WriterMisconfigured("wrong address"))
    assert world.dependency.state == "open"


@pytest.mark.parametrize(("error", "state"), [
    (DocumentNotFound("?"), "closed"),
    (RateLimited("?"), "closed"),
    (ValueError(), "half_open"),
    (asyncio.CancelledError(), "half_open"),
    (EngineError("?"), "open"),
])  # fmt: skip
async def test_as_a_trial_an_answer_to_a_wrong_call_is_one_and_a_call_that_was_called_off_is_none(
    error: BaseException, state: State
) -> None:
    world = World(settings={"success_threshold": 1})
    await world.open()
    world.time += COOL_DOWN
    await world.fail(1, error)
    assert world.dependency.state == state


async def test_every_change_of_state_is_told_once() -> None:
    world = World()
    await world.open()
    world.time += COOL_DOWN
    await world.fail(1)
    world.time += 2 * COOL_DOWN
    assert [await world.dependency.run(world.work) for _ in range(3)] == ["done"] * 3
    states = [state for name, state in world.changes if name == "r2r"]
    assert states == ["closed", "open", "half_open", "open", "half_open", "closed"]


async def test_refused_and_repeated_calls_are_told() -> None:
    world = World()
    world.error = EngineError("down")
    with pytest.raises(EngineError):
        await world.dependency.run(world.work, retries=2)
    assert world.retries == ["r2r", "r2r"]
    assert world.dependency.describe()["failures"] == 1  # of the call, not of its attempts
    await world.fail(4)
    assert world.rejected == []
    with pytest.raises(BreakerOpen):
        await world.dependency.run(world.work)
    assert world.rejected == ["r2r"]


@pytest.mark.parametrize("trials", [1, 3])
async def test_of_a_thousand_callers_exactly_the_trials_are_let_through(trials: int) -> None:
    world = World({"trials": trials, "concurrency": 2000})
    await world.open()
    world.time += COOL_DOWN
    go = asyncio.Event()

    async def slow() -> str:
        world.calls += 1
        await go.wait()
        return "done"

    tasks = [asyncio.create_task(world.dependency.run(slow)) for _ in range(1000)]
    await wait_all_tasks_blocked()
    done, under_way = await asyncio.wait(tasks, timeout=0)
    assert (world.calls, len(under_way)) == (trials, trials)
    assert {type(task.exception()) for task in done} == {BreakerOpen}
    go.set()
    assert [await task for task in under_way] == ["done"] * trials


async def test_a_trial_that_is_called_off_gives_its_place_back() -> None:
    world = World(settings={"success_threshold": 1})
    await world.open()
    world.time += COOL_DOWN
    trial = asyncio.create_task(world.dependency.run(lambda: asyncio.Event().wait()))
    await wait_all_tasks_blocked()
    with pytest.raises(BreakerOpen):
        await world.dependency.run(world.work)
    trial.cancel()
    await asyncio.wait([trial])
    assert await world.dependency.run(world.work) == "done"
    assert world.dependency.state == "closed"


async def test_calls_that_are_called_off_say_nothing_against_the_dependency() -> None:
    world = World()
    tasks = [asyncio.create_task(world.dependency.run(lambda: asyncio.Event().wait())) for _ in range(20)]
    await wait_all_tasks_blocked()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert world.dependency.describe() == {"state": "closed", "failures": 0}


async def test_slow_calls_open_it_when_that_is_set() -> None:
    world = World(settings={"slow_call_seconds": 2.0, "failure_threshold": 3})

    async def slow() -> str:
        world.time += 2.5
        return "done"

    assert [await world.dependency.run(slow) for _ in range(3)] == ["done"] * 3
    assert world.dependency.state == "open"


async def test_a_retry_that_succeeds_is_the_callers_answer() -> None:
    world = World()
    errors = [EngineError("down"), EngineError("busy", retry_after=3.0)]

    async def work() -> str:
        if errors:
            raise errors.pop(0)
        return "done"

    assert await world.dependency.run(work, retries=2) == "done"
    assert world.pauses == [0.2, 3.4]


@pytest.mark.parametrize(
    "error", [WriterMisconfigured("?"), DocumentNotFound("?"), OSError(), TimeoutError(), ValueError()]
)
async def test_only_an_error_that_says_it_may_pass_is_retried(error: Exception) -> None:
    world = World()
    world.error = error
    with pytest.raises(type(error)):
        await world.dependency.run(world.work, retries=3)
    assert (world.calls, world.pauses) == (1, [])


@pytest.mark.parametrize("error", [EngineError("?"), RateLimited("?")])
async def test_retries_end_with_the_error_itself(error: RefdeskError) -> None:
    world = World()
    world.error = error
    with pytest.raises(type(error)) as caught:
        await world.dependency.run(world.work, retries=2)
    assert caught.value is error
    assert (world.calls, world.pauses) == (3, [0.2, 0.4])


async def test_without_leave_nothing_is_retried() -> None:
    world = World()
    await world.fail(1)
    assert (world.calls, world.pauses) == (1, [])


async def test_a_service_that_wants_more_patience_than_the_caller_has_is_quoted() -> None:
    world = World()
    world.error = EngineError("busy", retry_after=3.0)
    with pytest.raises(EngineError) as caught:
        await world.dependency.run(world.work, retries=2, patience=1.0)
    assert (caught.value.retry_after, world.calls) == (3.0, 1)


async def test_nobody_pauses_for_a_breaker_that_will_not_let_him_through() -> None:
    world = World(settings={"failure_threshold": 2})

    async def work() -> str:
        await world.fail(1)
        raise EngineError("down")

    with pytest.raises(EngineError, match="down"):
        await world.dependency.run(work, retries=5)
    assert (world.calls, world.pauses) == (2, [0.2])


async def test_two_hundred_callers_of_a_dead_dependency_retry_within_the_budget() -> None:
    world = World(settings={"failure_threshold": 10_000})
    await_all = [world.dependency.run(world.work, retries=3) for _ in range(200)]
    world.error = EngineError("down")
    outcomes = await asyncio.gather(*await_all, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {EngineError}
    assert world.calls <= 200 * 1.1 + RETRY_RESERVE
    assert world.calls >= 200 + RETRY_RESERVE


async def test_calls_that_are_refused_earn_no_retries() -> None:
    world = World(settings={"failure_threshold": 2})
    world.error = EngineError("down")
    with pytest.raises(EngineError):
        await world.dependency.run(world.work, retries=100, patience=0)
    await world.fail(1)
    for _ in range(200):
        with pytest.raises(BreakerOpen):
            await world.dependency.run(world.work)
    world.time += COOL_DOWN
    world.error, world.calls = RateLimited("busy"), 0
    with pytest.raises(RateLimited):
        await world.dependency.run(world.work, retries=1)
    assert world.calls == 1


async def test_who_is_called_off_during_a_pause_makes_no_further_call() -> None:
    paused = asyncio.Event()

    async def for_ever(_seconds: float) -> None:
        paused.set()
        await asyncio.Event().wait()

    world = World({"pause": for_ever})
    world.error = EngineError("down")
    task = asyncio.create_task(world.dependency.run(world.work, retries=3))
    await paused.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.calls == 1


async def test_a_full_bulkhead_refuses_and_says_when_to_come_back() -> None:
    world = World({"concurrency": 2})
    go = asyncio.Event()
    most = inside = 0

    async def visit() -> str:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await go.wait()
        inside -= 1
        return "done"

    tasks = [asyncio.create_task(world.dependency.run(visit)) for _ in range(4)]
    await wait_all_tasks_blocked()
    with pytest.raises(Overloaded) as caught:
        await world.dependency.run(visit, retries=3)
    assert caught.value.retry_after
    assert world.pauses == []
    go.set()
    assert await asyncio.gather(*tasks) == ["done"] * 4
    assert most == 2
    assert world.dependency.describe() == {"state": "closed", "failures": 0}


async def test_who_has_waited_long_enough_for_a_place_waits_no_longer() -> None:
    world = World({"concurrency": 1})
    go = asyncio.Event()

    async def visit() -> str:
        await go.wait()
        return "done"

    first = asyncio.create_task(world.dependency.run(visit))
    await wait_all_tasks_blocked()
    with pytest.raises(Overloaded, match="No free slot for a call"):
        await world.dependency.run(visit, queue_seconds=0.01)
    go.set()
    assert await first == await world.dependency.run(visit, queue_seconds=0.01) == "done"
    assert world.dependency.describe() == {"state": "closed", "failures": 0}


async def test_a_place_is_not_held_during_a_pause() -> None:
    entered: list[str] = []

    async def other() -> None:
        entered.append("other")

    async def pause(_seconds: float) -> None:
        world.error = None
        await world.dependency.run(other)

    world = World({"concurrency": 1, "pause": pause})
    world.error = EngineError("down")
    assert await world.dependency.run(world.work, retries=1) == "done"
    assert entered == ["other"]


async def test_who_waits_for_a_place_is_refused_as_soon_as_the_breaker_opens() -> None:
    world = World({"concurrency": 5})
    go = asyncio.Event()

    async def fails() -> str:
        world.calls += 1
        await go.wait()
        raise EngineError("down")

    tasks = [asyncio.create_task(world.dependency.run(fails)) for _ in range(10)]
    await wait_all_tasks_blocked()
    go.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [EngineError] * 5 + [BreakerOpen] * 5
    assert world.calls == 5
    with pytest.raises(BreakerOpen):
        await world.dependency.run(world.work)


async def test_nobody_queues_for_a_place_that_the_breaker_would_not_let_him_use() -> None:
    world = World({"concurrency": 6})
    hung = [asyncio.create_task(world.dependency.run(lambda: asyncio.Event().wait())) for _ in range(5)]
    await wait_all_tasks_blocked()
    await world.open()
    world.time += COOL_DOWN
    hung.append(asyncio.create_task(world.dependency.run(lambda: asyncio.Event().wait())))
    await wait_all_tasks_blocked()
    with pytest.raises(BreakerOpen):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await world.dependency.run(world.work)
    for task in hung:
        task.cancel()
    await asyncio.wait(hung)
    assert all(task.cancelled() for task in hung)


async def test_every_refusal_is_an_error_of_its_own_whose_traceback_does_not_grow() -> None:
    world = World()
    await world.open()
    refusals: list[BreakerOpen] = []
    for _ in range(100):
        with pytest.raises(BreakerOpen) as caught:
            await world.dependency.run(world.work)
        refusals.append(caught.value)
    assert len({id(refusal) for refusal in refusals}) == 100
    assert len({len(list(walk_tb(refusal.__traceback__))) for refusal in refusals}) == 1


async def test_what_is_known_to_be_back_need_not_be_found_out() -> None:
    world = World()
    await world.open()
    world.dependency.mark_recovered()
    assert await world.dependency.run(world.work) == "done"
    assert world.changes[-1] == ("r2r", "closed")
    await world.fail(4)
    world.dependency.mark_recovered()
    await world.fail(4)
    assert world.dependency.state == "closed"
