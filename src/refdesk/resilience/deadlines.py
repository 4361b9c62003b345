"""Deadlines of operations, which share one timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Overdue(TimeoutError):
    """The work exceeded its deadline. Distinct from timeouts that occur within the work."""


class Deadlines:
    """Operations with the same time limit.

    They are kept in the order of their deadlines, so one timer for the first is enough. A timeout for each would be the
    most expensive part of a short call.
    """

    __slots__ = ("_loop", "_running", "_timer", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._running: dict[_RunningTask, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        # The application runs in one loop, and looking it up costs a system call each time before Python 3.12.
        self._loop = asyncio.get_running_loop()

    async def run(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the work. It's cancelled at its deadline, and `Overdue` is raised."""
        running = _RunningTask(asyncio.current_task(self._loop))
        due = self._running[running] = self._loop.time() + self.seconds
        if self._timer is None:
            self._timer = self._loop.call_at(due, self._stop_overdue)
        try:
            return await work(*args, **kwargs)
        except asyncio.CancelledError:
            if running.is_cancelled_by_deadline():
                raise Overdue from None
            raise
        finally:
            self._running.pop(running, None)

    def close(self) -> None:
        """Cancel the timer. Nothing may be run afterwards."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_overdue(self) -> None:
        self._timer = None
        now = self._loop.time()
        for running, due in list(self._running.items()):
            if due > now:
                self._timer = self._loop.call_at(due, self._stop_overdue)
                break
            del self._running[running]
            running.stop()


class _RunningTask:
    """A task with work in progress."""

    __slots__ = ("_overdue", "_task")

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        self._task = task
        self._overdue = False

    def stop(self) -> None:
        if self._task is not None:
            self._overdue = True
            self._task.cancel()

    def is_cancelled_by_deadline(self) -> bool:
        """Return whether only the deadline cancelled the task, and undo that cancellation."""
        return self._overdue and self._task is not None and self._task.uncancel() == 0
