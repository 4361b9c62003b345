"""Bulkhead: limits concurrent and queued calls of a dependency, so that a slow one affects only itself."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from refdesk.errors import Overloaded

FULL_RETRY_AFTER_SECONDS = 1.0
"""`retry_after` when the queue is full. Part of it is done by then."""


class Bulkhead:
    """Concurrency slots with a bounded FIFO queue. A cancelled waiter leaves the queue."""

    def __init__(self, name: str, slots: int, queue: int) -> None:
        self._name = name
        self._free = slots
        self._max_waiting = queue
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
        if len(self._waiting) >= self._max_waiting:
            detail = f"Too many calls wait for {self._name}; try again in a moment"
            raise Overloaded(detail, retry_after=FULL_RETRY_AFTER_SECONDS)
        grant: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[grant] = None
        try:
            await grant
        except BaseException:
            self._waiting.pop(grant, None)
            if grant.done() and not grant.cancelled():
                self.leave()  # cancelled after it was granted the slot
            raise

    def leave(self) -> None:
        """Release a slot to the longest waiting caller."""
        while self._waiting:
            grant, _ = self._waiting.popitem(last=False)
            if not grant.done():
                grant.set_result(None)
                return
        self._free += 1
