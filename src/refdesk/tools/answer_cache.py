"""Answers that were given, kept for a while in this process: bounded, and each made only once at a time.

A key is a value with all in it that decides on the answer (tool, tenant, user, every argument, the store's revision):
a change makes the old answer unreachable, and nobody is served what was made for another. What is kept is the answer as
it goes out, not what it was made from: to give it once more costs a look-up.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from refdesk.config import CacheConfig
from refdesk.errors import RefdeskError

WireAnswer = dict[str, Any]

ENTRY_BYTES = 1000
"""What an entry takes besides its answer: its key, its place in the book and Python's objects around them."""

BYTES_A_BYTE = 2
"""What an answer takes in memory for each byte that it has on the wire; measured on search answers, 1.6 to 2.1."""


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: WireAnswer
    bytes: int
    until: float


class AnswerCache:
    """The answers of one process, the longest unused let go of first."""

    def __init__(self, settings: CacheConfig, *, now: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = settings.max_bytes
        self._max_entries = settings.max_entries
        self._now = now
        self._entries: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._flights: dict[Hashable, asyncio.Future[WireAnswer]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """About what the answers take in memory."""
        return self._bytes

    async def answer(
        self, key: Hashable, seconds: float, make: Callable[[], Awaitable[WireAnswer]]
    ) -> tuple[WireAnswer, bool]:
        """The answer that is kept, or a new one, and whether it was kept; with no seconds nothing is.

        Whoever asks for what is being made waits for it, and shares an error that would meet him as well. When its
        maker goes away, or has to ask its client something first, the next one makes it.
        """
        if seconds <= 0:
            return await make(), False
        while True:
            if (kept := self._kept(key)) is not None:
                return kept, True
            flight = self._flights.get(key)
            if flight is None:
                return await self._fly(key, seconds, make), False
            await asyncio.wait([flight])
            if not flight.cancelled():
                return flight.result(), True

    async def _fly(self, key: Hashable, seconds: float, make: Callable[[], Awaitable[WireAnswer]]) -> WireAnswer:
        flight = self._flights[key] = asyncio.get_running_loop().create_future()
        try:
            answer = await make()
        except RefdeskError as error:
            flight.set_exception(error)
            flight.exception()  # seen, though nobody else may be waiting
            raise
        else:
            self._keep(key, seconds, answer)
            flight.set_result(answer)
            return answer
        finally:
            del self._flights[key]
            flight.cancel()

    def _kept(self, key: Hashable) -> WireAnswer | None:
        kept = self._entries.get(key)
        if kept is None:
            return None
        if kept.until <= self._now():
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return kept.answer

    def _keep(self, key: Hashable, seconds: float, answer: WireAnswer) -> None:
        size = len(orjson.dumps(answer)) * BYTES_A_BYTE + ENTRY_BYTES
        if size > self._max_bytes:
            return  # or it would push out all others and then itself
        self._entries[key] = _Kept(answer, size, self._now() + seconds)
        self._bytes += size
        while self._entries and (self._bytes > self._max_bytes or len(self._entries) > self._max_entries):
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        self._bytes -= self._entries.pop(key).bytes


def marked_cached(answer: Mapping[str, Any]) -> WireAnswer:
    """The same answer, saying of itself that it was kept; the parts of it are shared, not copied."""
    return {**answer, "structuredContent": {**answer["structuredContent"], "cached": True}}
