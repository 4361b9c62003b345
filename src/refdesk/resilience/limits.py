"""Rate limits: how much of something may be taken in a minute, counted in this process.

A limit is a bucket that is full at first and refills evenly (the generic cell rate algorithm): `units` may be taken at
once, and in any span of time no more than `units` and what came back meanwhile. What a call takes need not be known
when it comes: it is let in while there is at least one unit, takes what it is expected to cost, and settles afterwards.

Nothing is ever forgotten before it is paid back, and the table is bounded all the same: whoever asks for more buckets
than there is room for waits until some of them are full again, which is when they can be forgotten.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush, heapreplace
from math import ceil
from typing import Protocol

MAX_BUCKETS = 200_000
"""That are not full, in one table: some forty megabytes."""

MAX_BUCKETS_OF_ONE = 4_000
"""Of one owner, so that nobody's flood keeps the others out. A bucket is counted only until it has refilled, which
takes seconds: an honest owner has a few at a time."""

MAX_PART = 100
"""Characters of a key's part that are kept as they are."""

MAX_COST = 1_000_000_000
"""Of one call; more than any text has tokens."""

MAX_DEBT_SECONDS = 3600.0
"""How long a call that was dearer than its limit can keep its owner out."""

SLACK_SECONDS = 1e-6
"""What rounding may add up to: whoever comes back at the time that he was told is let in."""

ROOM_SECONDS = 5.0
"""After which whoever found no room for a bucket may try again: most buckets are full again within seconds."""

FORGOTTEN_AT_ONCE = 100
"""Buckets, so that a flood that is over is not paid for by a single call."""

Key = tuple[str, ...]
"""Of a bucket; its first part is the owner. Parts are compared as they are: names that only look alike are different
tenants or documents elsewhere, and so here."""


@dataclass(frozen=True, slots=True)
class Limit:
    """So many units at once, and so many again in each span of seconds."""

    units: int
    seconds: float = 60.0
    seconds_a_unit: float = field(init=False)
    """How long one unit takes to come back."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds_a_unit", self.seconds / self.units)


@dataclass(frozen=True, slots=True)
class Charge:
    """What a call takes from a bucket, or is expected to take; long keys are shortened."""

    key: Key
    limit: Limit
    cost: int = 1

    def __post_init__(self) -> None:
        for part in self.key:
            if len(part) > MAX_PART:
                object.__setattr__(self, "key", short_key(self.key))
                break


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing was taken; after `retry_after` seconds, exact to the millisecond, it can be."""

    retry_after: float
    charge: Charge | None = None
    """The one that has to wait longest; None when there is no room for another bucket, and the time is a guess."""


class Limits(Protocol):
    """Buckets of one process, or of many."""

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        """Take all of the charges, or none of them where one has to wait."""
        ...

    async def settle(self, charge: Charge, spent: int, held_seconds: float) -> None:
        """Correct a charge that was taken so many seconds ago by what it really came to."""
        ...


class Metered:
    """Work that was let in for what it is expected to cost, and settles by `spent` when it ends.

    Work that fails has spent nothing. Work that is cancelled pays what was expected: it was done, though for nobody,
    and nothing is to be waited for on the way out.
    """

    __slots__ = ("_charge", "_limits", "_now", "_since", "spent")

    def __init__(self, limits: Limits, charge: Charge, now: Callable[[], float] = time.monotonic) -> None:
        self.spent = 0
        self._limits = limits
        self._charge = charge
        self._now = now

    async def __aenter__(self) -> Metered:
        self._since = self._now()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_cancelled = kind is not None and issubclass(kind, CancelledError)
        if not is_cancelled and self.spent != self._charge.cost:
            await self._limits.settle(self._charge, self.spent, self._now() - self._since)


class MemoryLimits:
    """The buckets of this process.

    A bucket is the time at which it will be full. Those times are also in a heap, each once and perhaps out of date, so
    that the buckets to be forgotten are found without looking at the others.
    """

    def __init__(
        self,
        *,
        max_buckets: int = MAX_BUCKETS,
        max_of_one: int = MAX_BUCKETS_OF_ONE,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_buckets = max_buckets
        self._max_of_one = max_of_one
        self._now = now
        self._full_at: dict[Key, float] = {}
        self._queue: list[tuple[float, Key]] = []
        self._owned: dict[str, int] = {}

    @property
    def buckets(self) -> int:
        """How many are not full, or not known to be yet."""
        return len(self._full_at)

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        """Take all of the charges, or none of them where one has to wait."""
        now = self._now()
        self._forget_full_ones(now)
        refusal = self._longest_wait(charges, now) or self._no_room(charges)
        if refusal is None:
            self._note(charges, now)
        return refusal

    async def settle(self, charge: Charge, spent: int, held_seconds: float) -> None:
        """Correct a charge by what it really came to.

        Never refused: there are no more buckets beyond the bound than there are calls under way.
        """
        seconds = unsettled_units(charge, spent, held_seconds) * charge.limit.seconds_a_unit
        self._add(charge.key, seconds, self._now())

    def no_room(self, charges: Sequence[Charge]) -> Refusal | None:
        """A refusal when there is no room for a bucket that is not there yet."""
        self._forget_full_ones(self._now())
        return self._no_room(charges)

    def note(self, charges: Sequence[Charge]) -> None:
        """Take charges that somebody else has allowed."""
        self._note(charges, self._now())

    def _no_room(self, charges: Sequence[Charge]) -> Refusal | None:
        for charge in charges:
            if charge.key not in self._full_at and self._is_full_for(charge.key[0]):
                return Refusal(ROOM_SECONDS)
        return None

    def _is_full_for(self, owner: str) -> bool:
        return len(self._full_at) >= self._max_buckets or self._owned.get(owner, 0) >= self._max_of_one

    def _longest_wait(self, charges: Sequence[Charge], now: float) -> Refusal | None:
        longest, slowest = SLACK_SECONDS, None
        for charge in charges:
            full_at = max(self._full_at.get(charge.key, now), now)
            wait = full_at - now + charge.limit.seconds_a_unit - charge.limit.seconds
            if wait > longest:
                longest, slowest = wait, charge
        return None if slowest is None else Refusal(whole_milliseconds(longest), slowest)

    def _note(self, charges: Sequence[Charge], now: float) -> None:
        for charge in charges:
            self._add(charge.key, reasonable(charge.cost) * charge.limit.seconds_a_unit, now)

    def _add(self, key: Key, seconds: float, now: float) -> None:
        """Make a bucket need so much longer, or less long, until it is full."""
        known = self._full_at.get(key)
        full_at = min(max(now if known is None else known, now) + seconds, now + MAX_DEBT_SECONDS)
        if known is None:
            if full_at <= now:
                return
            heappush(self._queue, (full_at, key))
            self._owned[key[0]] = self._owned.get(key[0], 0) + 1
        self._full_at[key] = full_at

    def _forget_full_ones(self, now: float) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._queue or self._queue[0][0] > now:
                return
            key = self._queue[0][1]
            if self._full_at[key] > now:
                heapreplace(self._queue, (self._full_at[key], key))
            else:
                heappop(self._queue)
                self._forget(key)

    def _forget(self, key: Key) -> None:
        del self._full_at[key]
        self._owned[key[0]] -= 1
        if not self._owned[key[0]]:
            del self._owned[key[0]]


def short_key(key: Key) -> Key:
    """The key in bounded space. A digest is longer than any part that is kept, so the two are never taken for one."""
    return tuple(part if len(part) <= MAX_PART else _digest(part) for part in key)


def _digest(part: str) -> str:
    return blake2b(part.encode("utf-8", "surrogatepass")).hexdigest()


def reasonable(cost: int) -> int:
    """A cost within reason: nobody earns by a call."""
    return min(max(cost, 0), MAX_COST)


def unsettled_units(charge: Charge, spent: int, held_seconds: float) -> float:
    """What is still to be taken, or to be given back when negative.

    What was held came back by itself at the bucket's pace: giving that back once more would make holding profitable.
    """
    more = reasonable(spent) - reasonable(charge.cost)
    if more >= 0:
        return more
    return min(0.0, more + max(held_seconds, 0.0) / charge.limit.seconds_a_unit)


def whole_milliseconds(seconds: float) -> float:
    """Rounded up, but for the slack: a time to come back at is never too early."""
    return max(ceil((seconds - SLACK_SECONDS) * 1000), 1) / 1000
