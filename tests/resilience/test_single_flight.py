"""One run for any number of waiters, whoever of them leaves and when."""

from __future__ import annotations

import asyncio
import gc
from contextvars import ContextVar
from traceback import walk_tb
from typing import Any

import pytest
from anyio import wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from refdesk.errors import EngineError
from refdesk.resilience.single_flight import SingleFlight

pytestmark = pytest.mark.anyio

TRACE: ContextVar[str] = ContextVar("trace", default="none")


class Work:
    """Runs until it is let go; counts how often it was begun and called off."""

    def __init__(self, result: str | Exception = "result") -> None:
        self.result = result
        self.begun = self.called_off = 0
        self.go = asyncio.Event()

    async def __call__(self) -> str:
        self.begun += 1
        number = self.begun
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.called_off += 1
            raise
        if isinstance(self.result, Exception):
            raise self.result
        return f"{self.result} {number}"


async def waiters(flights: SingleFlight[str, str], work: Work, count: int) -> list[asyncio.Task[str]]:
    tasks = [asyncio.create_task(flights.run("key", work)) for _ in range(count)]
    await wait_all_tasks_blocked()
    return tasks


async def test_a_thousand_callers_make_one_run() -> None:
    flights, work = SingleFlight[str, str](), Work()
    tasks = await waiters(flights, work, 1000)
    work.go.set()
    assert set(await asyncio.gather(*tasks)) == {"result 1"}
    assert (work.begun, len(flights)) == (1, 0)


async def test_other_keys_and_later_callers_have_runs_of_their_own() -> None:
    flights, work = SingleFlight[str, str](), Work()
    work.go.set()
    both = await asyncio.gather(flights.run("a", work), flights.run("b", work))
    assert set(both) == {"result 1", "result 2"}
    assert await flights.run("a", work) == "result 3"


async def test_an_error_is_shared_by_all_and_forgotten() -> None:
    flights, work = SingleFlight[str, str](), Work(EngineError("down"))
    tasks = await waiters(flights, work, 10)
    work.go.set()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(error) for error in errors] == ["down"] * 10
    work.result = "result"
    assert await flights.run("key", work) == "result 2"


async def test_the_traceback_of_a_shared_error_does_not_grow_with_those_who_share_it() -> None:
    lengths = []
    for count in (1, 300):
        flights, work = SingleFlight[str, str](), Work(error := EngineError("down"))
        tasks = await waiters(flights, work, count)
        work.go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        lengths.append(len(list(walk_tb(error.__traceback__))))
    assert lengths[1] <= lengths[0]


async def test_whoever_leaves_even_the_first_leaves_the_others_with_their_result() -> None:
    flights, work = SingleFlight[str, str](), Work()
    first, *others = await waiters(flights, work, 10)
    first.cancel()
    await wait_all_tasks_blocked()
    work.go.set()
    assert first.cancelled()
    assert await asyncio.gather(*others) == ["result 1"] * 9
    assert (work.begun, work.called_off) == (1, 0)


async def test_the_last_one_to_leave_stops_the_work() -> None:
    flights, work = SingleFlight[str, str](), Work()
    for task in await waiters(flights, work, 3):
        assert work.called_off == 0
        task.cancel()
        await wait_all_tasks_blocked()
    assert (work.called_off, len(flights)) == (1, 0)


@pytest.mark.parametrize("ticks", range(5))
async def test_who_joins_while_the_work_is_being_called_off_gets_a_result(ticks: int) -> None:
    flights, work = SingleFlight[str, str](), Work()
    (leaver,) = await waiters(flights, work, 1)
    leaver.cancel()
    for _ in range(ticks):
        await checkpoint()
    joiner = asyncio.create_task(flights.run("key", work))
    await wait_all_tasks_blocked()
    work.go.set()
    assert (await joiner).startswith("result")
    await wait_all_tasks_blocked()
    assert (leaver.cancelled(), len(flights)) == (True, 0)


async def test_work_that_takes_its_time_to_leave_does_not_take_the_new_one_with_it() -> None:
    flights, work = SingleFlight[str, str](), Work()
    may_leave = asyncio.Event()

    async def reluctant() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await may_leave.wait()
        return "never"

    leaver = asyncio.create_task(flights.run("key", reluctant))
    await wait_all_tasks_blocked()
    leaver.cancel()
    await wait_all_tasks_blocked()
    tasks = await waiters(flights, work, 1)
    may_leave.set()
    await wait_all_tasks_blocked()
    tasks += await waiters(flights, work, 1)
    work.go.set()
    assert await asyncio.gather(*tasks) == ["result 1"] * 2


async def test_who_comes_in_the_tick_in_which_the_work_ended_has_a_run_of_his_own() -> None:
    flights, work, ending = SingleFlight[str, str](), Work(), asyncio.Event()

    async def says_when_it_ends() -> str:
        await checkpoint()
        ending.set()
        return "old"

    async def join_late() -> str:
        await ending.wait()
        return await flights.run("key", work)

    work.go.set()
    late = asyncio.create_task(join_late())
    await wait_all_tasks_blocked()
    assert await flights.run("key", says_when_it_ends) == "old"
    assert await late == "result 1"


async def test_the_work_runs_in_the_context_of_who_wanted_it_first() -> None:
    flights = SingleFlight[str, str]()
    go = asyncio.Event()

    async def read_trace() -> str:
        await go.wait()
        return TRACE.get()

    async def ask(trace: str) -> str:
        TRACE.set(trace)
        return await flights.run("key", read_trace)

    tasks = [asyncio.create_task(ask(trace)) for trace in ("first", "second")]
    await wait_all_tasks_blocked()
    go.set()
    assert await asyncio.gather(*tasks) == ["first", "first"]


async def test_an_error_after_everybody_left_disturbs_nobody() -> None:
    loop, complaints = asyncio.get_running_loop(), list[dict[str, Any]]()
    flights = SingleFlight[str, str]()

    async def breaks_when_called_off() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise EngineError("while leaving")

    task = asyncio.create_task(flights.run("key", breaks_when_called_off))
    await wait_all_tasks_blocked()
    before = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: complaints.append(context))
    try:
        task.cancel()
        await wait_all_tasks_blocked()
        gc.collect()
    finally:
        loop.set_exception_handler(before)
    assert (task.cancelled(), complaints) == (True, [])
