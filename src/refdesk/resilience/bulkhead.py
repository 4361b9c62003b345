"""A bound on how many calls of a dependency run at a time, and on how many wait: one that is slow sinks only itself."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from refdesk.errors import Overloaded

FULL_PATIENCE_SECONDS = 1.0
"""What callers are asked to wait when the queue is full: by then some of it has gone."""


class Bulkhead:
    """Places, and a queue for them: first come, first served. Whoever waits leaves when he is called off."""

    def __init__(self, name: str, places: int, queue: int) -> None:
        self._name = name
        self._free = places
        self._most_waiting = queue
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def enter(self) -> bool:
        """Take a place that is free; False when there is none, and `wait` is what is left."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Have the next place that becomes free; raises when as many wait already as may."""
        if len(self._waiting) >= self._most_waiting:
            detail = f"Too many calls wait for {self._name}; try again in a moment"
            raise Overloaded(detail, retry_after=FULL_PATIENCE_SECONDS)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = None
        try:
            await turn
        except BaseException:
            self._waiting.pop(turn, None)
            if turn.done() and not turn.cancelled():
                self.leave()  # he was called off after his turn had come
            raise

    def leave(self) -> None:
        """Give the place back: to whoever waits longest, so that nobody who comes later is faster."""
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
