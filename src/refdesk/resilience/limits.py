"""Rate limiters: in process memory, and shared through Redis.

A limit is a bucket that starts full and refills evenly (generic cell rate algorithm): a burst may take `units`, and any
longer span no more than `units` plus what was refilled. The cost of a call need not be known in advance: it's admitted
while there is at least one unit, takes its expected cost, and settles the difference afterwards.

The table is bounded without forgetting any debt. If there is no room for another bucket, callers wait until some are
full again and can be evicted.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from heapq import heappop, heappush, heapreplace
from math import ceil
from typing import Any, Protocol

from refdesk.resilience.redis_connection import RedisAway, RedisLink, Script

MAX_BUCKETS = 200_000
"""Buckets in one table that aren't full: about 40 MB."""

MAX_BUCKETS_PER_OWNER = 4_000
"""Buckets of one owner, so that nobody's flood locks out the others. A bucket only counts until it has refilled, which
takes seconds. Normal owners have a few at a time."""

MAX_PART_LENGTH = 100
"""Maximum number of characters of a key's part. Longer parts are hashed."""

MAX_COST = 1_000_000_000
"""Maximum cost of one call, more than any text has tokens."""

MAX_DEBT_SECONDS = 3600.0
"""Longest time that an expensive call can lock its owner out."""

SLACK_SECONDS = 1e-6
"""Tolerance for rounding: a caller who returns exactly at the given time is admitted."""

ROOM_SECONDS = 5.0
"""`retry_after` if there is no room for a bucket. Most buckets refill within seconds."""

MAX_EVICTIONS = 100
"""Maximum number of buckets to evict per call, so that no single call pays for a flood that is over."""

Key = tuple[str, ...]
"""Key of a bucket. The first part is the owner. Parts are compared exactly, as tenants and documents are elsewhere."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of units per period."""

    units: int
    seconds: float = 60.0
    seconds_per_unit: float = field(init=False)
    """Time in which one unit is refilled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds_per_unit", self.seconds / self.units)


@dataclass(frozen=True, slots=True)
class Charge:
    """The actual or expected cost of a call for one bucket. Long parts of a key are hashed."""

    key: Key
    limit: Limit
    cost: int = 1

    def __post_init__(self) -> None:
        if max(map(len, self.key)) > MAX_PART_LENGTH:
            object.__setattr__(self, "key", shorten_key(self.key))


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected call, which took nothing. `retry_after` is exact to the millisecond."""

    retry_after: float
    charge: Charge | None = None
    """The charge with the longest wait. None if there is no room for a bucket, in which case `retry_after` is a
    guess."""


class RateLimiter(Protocol):
    """Rate limiter of one process, or shared by several."""

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        """Take all charges, or none if one of them has to wait."""

    async def settle(self, charge: Charge, spent: int, held_seconds: float) -> None:
        """Correct a charge that was taken `held_seconds` ago to its real cost."""


class Metered:
    """Context manager for work that was admitted for its expected cost and settles to `spent`.

    Failed work costs nothing. Cancelled work costs what was expected: it was done, and settling would delay the
    cancellation.
    """

    __slots__ = ("_charge", "_limits", "_now", "_since", "spent")

    def __init__(self, limits: RateLimiter, charge: Charge, now: Callable[[], float] = time.monotonic) -> None:
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


@dataclass(eq=False, repr=False, kw_only=True)
class MemoryRateLimiter:
    """Rate limiter of this process.

    A bucket is the time at which it will be full. The same times are in a heap, each once and possibly outdated, so
    that full buckets are found without a scan.
    """

    max_buckets: int = MAX_BUCKETS
    max_of_one: int = MAX_BUCKETS_PER_OWNER
    now: Callable[[], float] = time.monotonic
    _full_at: dict[Key, float] = field(default_factory=dict, init=False)
    _heap: list[tuple[float, Key]] = field(default_factory=list, init=False)
    _buckets_by_owner: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def buckets(self) -> int:
        """Number of buckets that aren't known to be full."""
        return len(self._full_at)

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        refusal = self.check_capacity(charges)
        now, longest = self.now(), SLACK_SECONDS
        for charge in charges:
            full_at = max(self._full_at.get(charge.key, now), now)
            wait = full_at - now + charge.limit.seconds_per_unit - charge.limit.seconds
            if wait > longest:
                longest, refusal = wait, Refusal(round_up_to_milliseconds(wait), charge)
        if refusal is None:
            self.record(charges)
        return refusal

    async def settle(self, charge: Charge, spent: int, held_seconds: float) -> None:
        """Correct a charge to its real cost.

        Never rejected: buckets beyond the limit can't outnumber the calls in progress.
        """
        self._extend(charge.key, compute_settlement(charge, spent, held_seconds) * charge.limit.seconds_per_unit)

    def check_capacity(self, charges: Sequence[Charge]) -> Refusal | None:
        """Return a refusal if there is no room for a new bucket."""
        self._evict_full()
        for charge in charges:
            if charge.key not in self._full_at and (
                len(self._full_at) >= self.max_buckets
                or self._buckets_by_owner.get(charge.key[0], 0) >= self.max_of_one
            ):
                return Refusal(ROOM_SECONDS)
        return None

    def record(self, charges: Sequence[Charge]) -> None:
        """Take charges that have been admitted."""
        for charge in charges:
            self._extend(charge.key, clamp_cost(charge.cost) * charge.limit.seconds_per_unit)

    def _extend(self, key: Key, seconds: float) -> None:
        """Move the time at which a bucket is full."""
        now, known = self.now(), self._full_at.get(key)
        full_at = min(max(now if known is None else known, now) + seconds, now + MAX_DEBT_SECONDS)
        if known is None:
            if full_at <= now:
                return
            heappush(self._heap, (full_at, key))
            self._buckets_by_owner[key[0]] = self._buckets_by_owner.get(key[0], 0) + 1
        self._full_at[key] = full_at

    def _evict_full(self) -> None:
        now = self.now()
        for _ in range(MAX_EVICTIONS):
            if not self._heap or self._heap[0][0] > now:
                return
            key = self._heap[0][1]
            if self._full_at[key] > now:
                heapreplace(self._heap, (self._full_at[key], key))
            else:
                heappop(self._heap)
                del self._full_at[key]
                self._buckets_by_owner[key[0]] -= 1
                if not self._buckets_by_owner[key[0]]:
                    del self._buckets_by_owner[key[0]]


def shorten_key(key: Key) -> Key:
    """Return the key in bounded space. A digest is longer than any unhashed part, so they never collide."""
    return tuple(
        part if len(part) <= MAX_PART_LENGTH else blake2b(part.encode("utf-8", "surrogatepass")).hexdigest()
        for part in key
    )


def clamp_cost(cost: int) -> int:
    """Clamp a cost to a valid range. Negative costs become 0."""
    return min(max(cost, 0), MAX_COST)


def compute_settlement(charge: Charge, spent: int, held_seconds: float) -> float:
    """Return the units still to be taken, or to be refunded if negative.

    Units that were held have refilled in the meantime. Refunding those too would make holding profitable.
    """
    more = clamp_cost(spent) - clamp_cost(charge.cost)
    return more if more >= 0 else min(0.0, more + max(held_seconds, 0.0) / charge.limit.seconds_per_unit)


def round_up_to_milliseconds(seconds: float) -> float:
    """Round up to milliseconds, apart from the rounding tolerance, so that a caller never returns too early."""
    return max(ceil((seconds - SLACK_SECONDS) * 1000), 1) / 1000


PREFIX = "refdesk:limit:"

KEY_BYTES = 16
"""Bytes of a key's digest. With a million buckets, the chance that two collide is one in 10²⁶."""

TAKE = Script("refdesk.resilience", "buckets", "take")
"""Take all charges or none. Returns the key with the longest wait and the wait in microseconds, or zeros."""

SETTLE = Script("refdesk.resilience", "buckets", "settle")


class RedisRateLimiter:
    """Rate limiter shared through Redis: one atomic script per call, using the server's clock.

    Every charge is also recorded in this process. If Redis goes down, each process continues with its own counts: no
    call is rejected for lack of Redis, and none goes uncounted. The local limit on buckets also bounds what one process
    stores in Redis.
    """

    def __init__(self, link: RedisLink, local: MemoryRateLimiter) -> None:
        self._link = link
        self._local = local

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        if (refusal := self._local.check_capacity(charges)) is not None:
            return refusal
        try:
            which, microseconds = await _run(self._link, TAKE, charges, [clamp_cost(c.cost) for c in charges])
        except RedisAway:
            return await self._local.take(charges)
        if which:
            return Refusal(round_up_to_milliseconds(microseconds / 1e6), charges[which - 1])
        self._local.record(charges)
        return None

    async def settle(self, charge: Charge, spent: int, held_seconds: float) -> None:
        await self._local.settle(charge, spent, held_seconds)
        try:
            await _run(self._link, SETTLE, [charge], [compute_settlement(charge, spent, held_seconds)])
        except RedisAway:
            return  # recorded in this process, which is the one that counts now


async def _run(link: RedisLink, script: Script, charges: Sequence[Charge], costs: Sequence[float]) -> Any:
    keys = [redis_key(charge.key) for charge in charges]
    arguments = [
        number
        for charge, cost in zip(charges, costs, strict=True)
        for number in (charge.limit.units, charge.limit.seconds * 1e6, cost)
    ]
    bounds = MAX_DEBT_SECONDS * 1e6, SLACK_SECONDS * 1e6
    return await link.run(lambda redis: script.run(redis, keys, *bounds, *arguments))


def redis_key(key: Key) -> str:
    """Return the Redis key of a bucket: fixed length, unique and without names in clear text.

    Every part is hashed with its length, so that no two keys have the same input.
    """
    digest = blake2b(digest_size=KEY_BYTES)
    for part in key:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return PREFIX + digest.hexdigest()
