"""Rate limiter shared through Redis: one atomic script per call, using the server's clock.

Every charge is also recorded in this process. If Redis goes down, each process continues with its own counts: no call
is rejected for lack of Redis, and none goes uncounted. The local limit on buckets also bounds what one process stores
in Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from refdesk.resilience.limits import (
    MAX_DEBT_SECONDS,
    SLACK_SECONDS,
    Charge,
    Key,
    MemoryRateLimiter,
    Refusal,
    clamp_cost,
    compute_settlement,
    round_up_to_milliseconds,
)
from refdesk.resilience.redis_connection import RedisAway, RedisLink, Script

PREFIX = "refdesk:limit:"

KEY_BYTES = 16
"""Bytes of a key's digest. With a million buckets, the chance that two collide is one in 10²⁶."""

# A bucket stores the units missing from it and the time of that level. A process stores the time at which a bucket will
# be full, by its monotonic clock. With a wall clock that would break when the clock is set back: here no time has
# passed then, instead of an hour that has to pass again. Invalid values count as a full bucket.
_BUCKETS = f"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function missing(key, units, period)
  local value = redis.call('GET', key)
  local level, at = string.match(value or '', '^(%S+) (%S+)$')
  level, at = tonumber(level), tonumber(at)
  local most = units * (1 + {MAX_DEBT_SECONDS * 1e6} / period)
  if not level or not at or not (at >= 0 and level >= 0 and level <= most) then
    return 0
  end
  if at > now then
    redis.call('SET', key, string.format('%.17g %.0f', level, now), 'KEEPTTL')
  end
  return math.max(0, level - math.max(0, now - at) * units / period)
end

local function keep(key, units, period, level)
  local microseconds = math.min(level * period / units, {MAX_DEBT_SECONDS * 1e6})
  if microseconds < 1 then
    redis.call('DEL', key)
  else
    local value = string.format('%.17g %.0f', microseconds * units / period, now)
    redis.call('SET', key, value, 'PX', math.ceil(microseconds / 1000))
  end
end
"""

TAKE = Script(f"""{_BUCKETS}
local levels, longest, slowest = {{}}, {SLACK_SECONDS * 1e6}, 0
for i, key in ipairs(KEYS) do
  local units, period = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1])
  levels[i] = missing(key, units, period)
  local wait = (levels[i] + 1 - units) * period / units
  if wait > longest then longest, slowest = wait, i end
end
if slowest > 0 then return {{slowest, math.ceil(longest)}} end
for i, key in ipairs(KEYS) do
  local units, period, cost = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  keep(key, units, period, levels[i] + cost)
end
return {{0, 0}}
""")
"""Arguments per key: units, period in microseconds, cost. Returns the key with the longest wait and the wait in
microseconds, or zeros."""

SETTLE = Script(f"""{_BUCKETS}
local units, period, more = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
keep(KEYS[1], units, period, math.max(0, missing(KEYS[1], units, period) + more))
return 0
""")


class RedisRateLimiter:
    """Token buckets in Redis, and in this process while Redis is down."""

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
    return await link.run(lambda redis: script.run(redis, keys, *arguments))


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
