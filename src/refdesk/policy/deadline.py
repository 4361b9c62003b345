"""Deadline policy: cancels calls that take too long."""

from __future__ import annotations

from collections.abc import Callable

from refdesk.calls import Answer, Call, Handler
from refdesk.errors import DeadlineExceeded
from refdesk.resilience.deadlines import Deadlines, Overdue


class Deadline:
    """Time limit for every call: the default, or the limit of its tool."""

    def __init__(self, seconds: float, tool_seconds: Callable[[Call], float | None] = lambda _: None) -> None:
        self._default = Deadlines(seconds)
        self._tool_seconds = tool_seconds
        self._by_seconds: dict[float, Deadlines] = {}

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        deadlines = self._get_deadlines(call)
        try:
            return await deadlines.run(proceed, call)
        except Overdue:
            raise DeadlineExceeded(f"The call took longer than {deadlines.seconds:g} s and was stopped") from None

    def _get_deadlines(self, call: Call) -> Deadlines:
        seconds = self._tool_seconds(call)
        if seconds is None:
            return self._default
        if seconds not in self._by_seconds:
            self._by_seconds[seconds] = Deadlines(seconds)
        return self._by_seconds[seconds]
