"""Single flight: what many want at once is made once, and all get it."""

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

    @property
    def is_open(self) -> bool:
        """Whether it can be joined: not when it has just ended, nor when it is being called off, or who comes now
        would be called off too."""
        return not self.task.done() and not self.task.cancelling()


class Flights(Generic[K, T]):
    """What is being made, by its key. It is a task of its own, in the context of who wanted it first: whoever leaves,
    the first one too, leaves the others with it. The last one to leave stops it."""

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()

    def __len__(self) -> int:
        return len(self._flights)

    async def run(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        """The result of the work, or its error: of the one that is under way for this key, or of a new one."""
        flight = self._flights.get(key)
        if flight is None or not flight.is_open:
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
        async def fly() -> T:
            return await work()

        flight = self._flights[key] = _Flight(asyncio.create_task(fly()))
        self._tasks.add(flight.task)
        flight.task.add_done_callback(lambda task: self._landed(key, flight))
        return flight

    def _landed(self, key: K, flight: _Flight[T]) -> None:
        """The error counts as seen: those who waited get it, and nobody else is left to be told."""
        if self._flights.get(key) is flight:
            del self._flights[key]
        self._tasks.discard(flight.task)
        if not flight.task.cancelled():
            flight.task.exception()
