"""Bulkhead: limits concurrent and queued calls of a dependency, so that a slow one affects only itself."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from refdesk.errors import Overloaded

FULL_PATIENCE_SECONDS = 1.0
"""`retry_after` when the queue is full. Part of it is done by then."""


class Bulkhead:
    """Concurrency slots with a bounded FIFO queue. A cancelled waiter leaves the queue."""

    def __init__(self, name: str, places: int, queue: int) -> None:
        self._name = name
        self._free = places
        self._most_waiting = queue
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Number of queued callers."""
        return len(self._waiting)

    def enter(self) -> bool:
        """Take a free slot. Return False if there is none, in which case the caller can `wait`."""
        if self._free <= 0:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Wait for the next free slot. Raises Overloaded if the queue is full."""
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
                self.leave()  # cancelled after it was granted the slot
            raise

    def leave(self) -> None:
        """Release a slot to the longest waiting caller."""
        while self._waiting:
            turn, _ = self._waiting.popitem(last=False)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
