"""Deadline policy: cancels calls that take too long."""

from __future__ import annotations

from collections.abc import Callable

from refdesk.calls import Answer, Call, Handler
from refdesk.errors import DeadlineExceeded
from refdesk.resilience.deadlines import Deadlines, Overdue


class Deadline:
    """Time limit for every call: the default, or the limit of its tool."""

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
