"""No call lasts longer than it may: what it is waiting for is cancelled, and the caller is told."""

from __future__ import annotations

import asyncio

from refdesk.calls import Answer, Call, Handler
from refdesk.errors import DeadlineExceeded


class Deadline:
    """The same bound for every call, counted from the moment it passed the door."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        # asyncio's own time-out: anyio's cancel scope costs three times as much, and this is on every call's path.
        timeout = asyncio.timeout(self._seconds)
        try:
            async with timeout:
                return await proceed(call)
        except TimeoutError:
            if timeout.expired():
                raise DeadlineExceeded(f"The call took longer than {self._seconds:g} s and was stopped") from None
            raise
