"""No call lasts longer than it may: what it is waiting for is cancelled, and the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from refdesk.calls import Answer, Call, Handler
from refdesk.errors import DeadlineExceeded


class Deadline:
    """A bound for every call, counted from the moment it passed the door: the common one, or its tool's own."""

    def __init__(self, seconds: float, own_seconds: Callable[[Call], float | None] = lambda _: None) -> None:
        self._common = _Queue(seconds)
        self._own_seconds = own_seconds
        self._queues: dict[float, _Queue] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        return await self._queue(call).run(call, proceed)

    def _queue(self, call: Call) -> _Queue:
        seconds = self._own_seconds(call)
        if seconds is None:
            return self._common
        if seconds not in self._queues:
            self._queues[seconds] = _Queue(seconds)
        return self._queues[seconds]


class _Queue:
    """Calls with the same bound.

    They are written down in the order in which they will be due, so that one timer, for the first of them, is enough;
    a time-out of its own for each would be the dearest part of a short call.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[_Running, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # A desk lives in one loop; asking for it costs a system call each time before Python 3.12.
        self._loop = asyncio.get_running_loop()

    async def run(self, call: Call, proceed: Handler) -> Answer:
        running = _Running(asyncio.current_task(self._loop))
        due = self._running[running] = self._loop.time() + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._stop_overdue)
        try:
            return await proceed(call)
        except asyncio.CancelledError:
            if running.is_only_overdue():
                raise DeadlineExceeded(f"The call took longer than {self._seconds:g} s and was stopped") from None
            raise
        finally:
            self._running.pop(running, None)

    def _stop_overdue(self) -> None:
        self._timer = None
        now = self._loop.time()
        for running, due in list(self._running.items()):
            if due > now:
                self._timer = self._loop.call_at(due, self._stop_overdue)
                break
            del self._running[running]
            running.stop()


class _Running:
    """A task with a call under way."""

    __slots__ = ("_overdue", "_task")

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        self._task = task
        self._overdue = False

    def stop(self) -> None:
        if self._task is not None:
            self._overdue = True
            self._task.cancel()

    def is_only_overdue(self) -> bool:
        """Whether it was cancelled by us and nobody else; takes our cancellation back."""
        return self._overdue and self._task is not None and self._task.uncancel() == 0
