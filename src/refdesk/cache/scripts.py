"""Lua scripts of the Redis cache. TTLs are measured by Redis, so process clocks don't matter.

KEYS: 1 the entry, 2 the tenant's generation, 3 the lock. A refused write (out of memory, replica) is skipped, and reads
still work.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Script:
    """A Lua script, sent by its digest after the first run."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: Redis, keys: Sequence[str], *arguments: bytes | int) -> Any:
        """Run the script and return its result."""
        from redis.exceptions import NoScriptError

        parameters = len(keys), *keys, *arguments
        try:
            return await redis.execute_command("EVALSHA", self._digest, *parameters)  # type: ignore[no-untyped-call]
        except NoScriptError:
            return await redis.execute_command("EVAL", self._source, *parameters)  # type: ignore[no-untyped-call]


READ = Script("""
-- ARGV: 1 stale period (ms), 2 longest possible TTL (ms), 3 head of the entry that the caller has in memory
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 17, 32) == redis.pcall('GET', KEYS[2]) then
  local left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[1]) and left <= tonumber(ARGV[2]) then
    return string.sub(value, 1, 32) == ARGV[3] and 1 or value
  end
end
return false
""")
"""Return the entry if it is current and fresh, or 1 if the caller has it in memory. Most calls are this one, so that it
transfers little."""

CLAIM = Script("""
-- ARGV: 1 stale period (ms), 2 a new generation, 3 its TTL (s), 4 lock token, 5 lock TTL (ms)
local generation = redis.pcall('GET', KEYS[2])
if type(generation) ~= 'string' then
  generation = ARGV[2]
  redis.pcall('SET', KEYS[2], generation, 'EX', ARGV[3])
end
local value = redis.pcall('GET', KEYS[1])
local left = 0
if type(value) == 'string' and string.sub(value, 17, 32) == generation then
  left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[1]) then return {value, left, generation, 0} end
else
  value = false
end
local others = redis.pcall('SET', KEYS[3], ARGV[4], 'NX', 'PX', ARGV[5]) == false
if others and redis.call('GET', KEYS[3]) == ARGV[4] then
  others = redis.call('PEXPIRE', KEYS[3], ARGV[5]) == 0
end
return {value, left, generation, others and 0 or 1}
""")
"""Return the entry if it is current, its TTL, the generation, and whether the caller now holds the lock."""

STORE = Script("""
-- ARGV: 1 entry, 2 its TTL (ms), 3 its generation, 4 lock token
local stored = false
if redis.call('GET', KEYS[2]) == ARGV[3] then stored = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if redis.call('GET', KEYS[3]) == ARGV[4] then redis.call('DEL', KEYS[3]) end
return stored
""")
"""Store the entry unless the tenant was invalidated since the lookup, and release the lock."""

RELEASE = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end")
"""Release the lock."""

RENEW = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end")
"""Extend the lock."""
