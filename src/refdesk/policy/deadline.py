"""No call lasts longer than it may: what it is waiting for is cancelled, and the caller is told."""

from __future__ import annotations

import asyncio

from refdesk.calls import Answer, Call, Handler
from refdesk.errors import DeadlineExceeded


class Deadline:
    """The same bound for every call, counted from the moment it passed the door."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # A desk lives in one loop; asking for it costs a system call each time before Python 3.12.
        self._loop = asyncio.get_running_loop()

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        # A timer and nothing more: asyncio's own time-out costs three times as much, and this is on every call's path.
        expiry = _Expiry(asyncio.current_task(self._loop))
        timer = self._loop.call_later(self._seconds, expiry)
        try:
            return await proceed(call)
        except asyncio.CancelledError:
            if expiry.has_come and expiry.is_the_only_reason():
                raise DeadlineExceeded(f"The call took longer than {self._seconds:g} s and was stopped") from None
            raise
        finally:
            timer.cancel()


class _Expiry:
    """Cancels a task when it is called."""

    __slots__ = ("has_come", "task")

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        self.task = task
        self.has_come = False

    def __call__(self) -> None:
        if self.task is not None:
            self.has_come = True
            self.task.cancel()

    def is_the_only_reason(self) -> bool:
        """Take our cancellation back; somebody else's may be left, and goes first."""
        return self.task is not None and self.task.uncancel() == 0
