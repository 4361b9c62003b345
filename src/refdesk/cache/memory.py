"""Answers in the memory of this process: bounded by bytes and entries, the longest unused let go of first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from refdesk.cache.response_meta import WireAnswer
from refdesk.config import CacheConfig

Place = tuple[str, int]
"""A key's name, and the number of the tenant's last change that this process has made."""

ENTRY_BYTES = 1000
"""What an entry takes besides its answer: its name, its place in the book and Python's objects around them."""

BYTES_A_BYTE = 2
"""What an answer takes in memory for each byte that it has on the wire; measured on search answers, 1.6 to 2.1."""


@dataclass(frozen=True, slots=True)
class Held:
    """An answer that was kept; one that is not fresh is past its time, and may still be better than none."""

    answer: WireAnswer
    is_fresh: bool = True
    mark: bytes = b""
    """By which somebody else knows this very answer."""


@dataclass(frozen=True, slots=True)
class _Entry:
    held: Held
    until: float
    size: int


class Memory:
    """A book of answers. Wall clocks have no say in it."""

    def __init__(
        self,
        settings: CacheConfig,
        *,
        now: Callable[[], float] = time.monotonic,
        holds: Callable[[int, int], None] = lambda entries, size: None,
    ) -> None:
        """`holds` is told how many entries and bytes there are whenever that has changed."""
        self._max_bytes = settings.max_bytes
        self._max_entries = settings.max_entries
        self._stale_seconds = settings.stale_seconds
        self._now = now
        self._holds = holds
        self._entries: OrderedDict[Place, _Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """About what the answers take in memory."""
        return self._bytes

    def find(self, place: Place) -> Held | None:
        """What is kept there, unless it is too old for anything."""
        entry = self._entries.get(place)
        if entry is None:
            return None
        now = self._now()
        if now >= entry.until + self._stale_seconds:
            self._drop(place)
            self._tell()
            return None
        self._entries.move_to_end(place)
        return entry.held if now < entry.until else replace(entry.held, is_fresh=False)

    def keep(self, place: Place, held: Held, seconds: float) -> None:
        """Keep an answer, in place of an older one, if there can be room for it."""
        if place in self._entries:
            self._drop(place)
        size = len(orjson.dumps(held.answer)) * BYTES_A_BYTE + ENTRY_BYTES
        if size <= self._max_bytes:  # or it would push out all others and then itself
            self._entries[place] = _Entry(held, self._now() + seconds, size)
            self._bytes += size
            while self._entries and (self._bytes > self._max_bytes or len(self._entries) > self._max_entries):
                self._drop(next(iter(self._entries)))
        self._tell()

    def clear(self, matches: Callable[[str], bool] = lambda name: True) -> int:
        """Drop every answer whose name matches; how many there were."""
        gone = [place for place in self._entries if matches(place[0])]
        for place in gone:
            self._drop(place)
        self._tell()
        return len(gone)

    def _drop(self, place: Place) -> None:
        self._bytes -= self._entries.pop(place).size

    def _tell(self) -> None:
        self._holds(len(self._entries), self._bytes)
