"""No call lasts longer than it may: what it is waiting for is cancelled, and the caller is told."""

from __future__ import annotations

from collections.abc import Callable

from refdesk.calls import Answer, Call, Handler
from refdesk.errors import DeadlineExceeded
from refdesk.resilience.deadlines import Deadlines, Overdue


class Deadline:
    """A bound for every call, counted from the moment it passed the door: the common one, or its tool's own."""

    def __init__(self, seconds: float, own_seconds: Callable[[Call], float | None] = lambda _: None) -> None:
        self._common = Deadlines(seconds)
        self._own_seconds = own_seconds
        self._own: dict[float, Deadlines] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        deadlines = self._deadlines(call)
        try:
            return await deadlines.run(proceed, call)
        except Overdue:
            raise DeadlineExceeded(f"The call took longer than {deadlines.seconds:g} s and was stopped") from None

    def _deadlines(self, call: Call) -> Deadlines:
        seconds = self._own_seconds(call)
        if seconds is None:
            return self._common
        if seconds not in self._own:
            self._own[seconds] = Deadlines(seconds)
        return self._own[seconds]
