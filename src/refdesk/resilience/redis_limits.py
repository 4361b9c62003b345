"""The same limits for all processes that share a Redis: one script a call, by the server's clock, all or nothing.

Every charge is also noted in this process. So a Redis that goes away takes nobody's debt with it: each process goes on
counting by itself, never refusing a call for want of Redis and never letting calls through uncounted. The bound on the
number of buckets is kept there too, which bounds what one process can put into Redis.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b, sha1
from typing import TYPE_CHECKING, Any

from refdesk.resilience.limits import (
    MAX_DEBT_SECONDS,
    SLACK_SECONDS,
    Charge,
    Key,
    MemoryLimits,
    Refusal,
    reasonable,
    unsettled_units,
    whole_milliseconds,
)
from refdesk.resilience.redis import RedisAway, RedisLink

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "refdesk:limit:"

KEY_BYTES = 16
"""Of a key's digest: two buckets share one with a chance of one in 10²⁶, were there a million of them."""

# A bucket is what is missing from it, and when that was so. Unlike the time at which it will be full, which is what a
# process keeps by its monotonic clock, this survives a wall clock that is set back: no time has passed then, instead of
# an hour that has to pass again. What is not a bucket, whoever wrote it, is taken for a full one.
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

TAKE = f"""{_BUCKETS}
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
"""
"""For each key its units, the microseconds in which they come back, and the cost; answers which key has to wait longest
and how many microseconds, or zero."""

SETTLE = f"""{_BUCKETS}
local units, period, more = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
keep(KEYS[1], units, period, math.max(0, missing(KEYS[1], units, period) + more))
return 0
"""


class RedisLimits:
    """Buckets in Redis, and in this process while Redis is away."""

    def __init__(self, link: RedisLink, local: MemoryLimits) -> None:
        self._link = link
        self._local = local

    async def take(self, charges: Sequence[Charge]) -> Refusal | None:
        """Take all of the charges, or none of them where one has to wait."""
        if (refusal := self._local.no_room(charges)) is not None:
            return refusal
        try:
            which, microseconds = await _evaluate(self._link, TAKE, charges, [reasonable(c.cost) for c in charges])
        except RedisAway:
            return await self._local.take(charges)
        if which:
            return Refusal(whole_milliseconds(microseconds / 1e6), charges[which - 1])
        self._local.note(charges)
        return None

    async def settle(self, charge: Charge, spent: int, held_seconds: float) -> None:
        """Correct a charge by what it really came to."""
        await self._local.settle(charge, spent, held_seconds)
        try:
            await _evaluate(self._link, SETTLE, [charge], [unsettled_units(charge, spent, held_seconds)])
        except RedisAway:
            return  # this process has counted it, and it is this process that counts from now on


async def _evaluate(link: RedisLink, script: str, charges: Sequence[Charge], costs: Sequence[float]) -> Any:
    keys = [redis_key(charge.key) for charge in charges]
    arguments = [
        number
        for charge, cost in zip(charges, costs, strict=True)
        for number in (charge.limit.units, charge.limit.seconds * 1e6, cost)
    ]

    async def evaluate(redis: Redis) -> Any:
        from redis.exceptions import NoScriptError

        try:
            return await redis.evalsha(_DIGESTS[script], len(keys), *keys, *arguments)
        except NoScriptError:
            return await redis.eval(script, len(keys), *keys, *arguments)

    return await link.run(evaluate)


_DIGESTS = {script: sha1(script.encode(), usedforsecurity=False).hexdigest() for script in (TAKE, SETTLE)}


def redis_key(key: Key) -> str:
    """The bucket's name in Redis: of one length, telling nobody's name, and of no other bucket.

    Every part is written with its length, so that no two keys are written alike.
    """
    digest = blake2b(digest_size=KEY_BYTES)
    for part in key:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return PREFIX + digest.hexdigest()
