"""Single flight: concurrent identical requests share one task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True)
class _Flight(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class SingleFlight(Generic[K, T]):
    """Tasks in progress by key.

    The work runs in its own task, in the context of its first caller. Any caller may be cancelled without affecting the
    others. When the last one leaves, the task is cancelled.
    """

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    def __len__(self) -> int:
        return len(self._flights)

    async def run(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the work, joining the task in progress for this key if there is one."""
        flight = self._flights.get(key)
        if flight is None or flight.task.done() or flight.task.cancelling():
            flight = self._start(key, work)
        flight.waiters += 1
        try:
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                flight.task.cancel()
        return flight.task.result()

    def _start(self, key: K, work: Callable[[], Awaitable[T]]) -> _Flight[T]:
        async def run_work() -> T:
            return await work()

        flight = self._flights[key] = _Flight(asyncio.create_task(run_work()))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(lambda task: self._finish(key, flight))
        return flight

    def _finish(self, key: K, flight: _Flight[T]) -> None:
        """Remove a finished task, and retrieve its exception, which the callers have already received."""
        if self._flights.get(key) is flight:
            del self._flights[key]
        self._tasks.discard(flight.task)
        if not flight.task.cancelled():
            flight.task.exception()
