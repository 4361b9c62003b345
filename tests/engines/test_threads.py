"""The threads that searches run in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import ContextVar
from threading import Event, Semaphore, Thread, current_thread, get_ident
from threading import enumerate as running_threads

import anyio
import pytest

from refdesk.engines.embedded.tenant_store import SearchThreads
from refdesk.errors import EngineError
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

colour: ContextVar[str] = ContextVar("colour")


class Work:
    """Work that lasts until it is released; returns the thread that it was done in."""

    def __init__(self) -> None:
        self.release = Event()
        self._begun = Semaphore(0)

    def __call__(self) -> Thread:
        self._begun.release()
        assert self.release.wait(PATIENCE_SECONDS)
        return current_thread()

    async def has_begun(self, times: int) -> None:
        """Wait until it was begun so many times."""
        for _ in range(times):
            assert await asyncio.to_thread(self._begun.acquire, timeout=PATIENCE_SECONDS)


@pytest.fixture
def threads() -> Iterator[SearchThreads]:
    made = SearchThreads(2)
    yield made
    made.close()


async def test_what_is_found_or_raised_in_a_thread_reaches_whoever_waits(threads: SearchThreads) -> None:
    assert await threads.run(lambda: 6 * 7) == 42
    assert await threads.run(get_ident) != get_ident()
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)


async def test_the_work_sees_the_callers_context(threads: SearchThreads) -> None:
    colour.set("green")
    assert await threads.run(colour.get) == "green"


async def test_no_more_calls_are_under_way_than_there_are_threads(threads: SearchThreads) -> None:
    work = Work()
    calls = [asyncio.create_task(threads.run(work)) for _ in range(5)]
    await work.has_begun(2)
    await anyio.wait_all_tasks_blocked()
    work.release.set()
    assert len(set(await asyncio.gather(*calls))) == 2


async def test_the_thread_that_was_busy_last_is_busy_first(threads: SearchThreads) -> None:
    work = Work()
    both = [asyncio.create_task(threads.run(work)) for _ in range(2)]
    await work.has_begun(2)
    work.release.set()
    assert len(set(await asyncio.gather(*both))) == 2
    assert len({await threads.run(get_ident) for _ in range(20)}) == 1


async def test_a_call_that_is_cancelled_while_it_waits_never_begins(threads: SearchThreads) -> None:
    work, begun = Work(), list[str]()
    busy = [asyncio.create_task(threads.run(work)) for _ in range(2)]
    await work.has_begun(2)
    waiting = asyncio.create_task(threads.run(lambda: begun.append("cancelled")))
    after = asyncio.create_task(threads.run(lambda: begun.append("after")))
    await anyio.wait_all_tasks_blocked()
    waiting.cancel()
    work.release.set()
    await asyncio.gather(*busy, after)
    assert begun == ["after"]


async def test_a_call_that_is_cancelled_in_its_thread_leaves_the_thread_to_others(threads: SearchThreads) -> None:
    work = Work()
    call = asyncio.create_task(threads.run(work))
    await work.has_begun(1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    work.release.set()
    assert await asyncio.gather(*(threads.run(lambda: 1) for _ in range(4))) == [1, 1, 1, 1]


async def test_closed_threads_end_what_is_under_way_and_take_no_more() -> None:
    threads, work = SearchThreads(2), Work()
    call = asyncio.create_task(threads.run(work))
    await work.has_begun(1)
    idle = await threads.run(current_thread)
    threads.close()
    work.release.set()
    used = await call
    with pytest.raises(EngineError, match="closed"):
        await threads.run(get_ident)
    for thread in (idle, used):
        await asyncio.to_thread(thread.join, PATIENCE_SECONDS)
        assert thread not in running_threads()
