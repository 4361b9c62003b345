"""What Redis does in one step. The times are Redis's own, so that the clocks of the processes do not matter.

KEYS: 1 the answer, 2 the generation of the tenant, 3 the lock of whoever makes the answer. A write that is refused (no
room, a replica) is a step left out: what can be read is still read.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha1
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redis.asyncio import Redis


class Script:
    """Commands that Redis runs as one; after the first time, only their digest is sent."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._digest = sha1(source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: Redis, keys: Sequence[str], *arguments: bytes | int) -> Any:
        """What the script returns."""
        from redis.exceptions import NoScriptError

        given = len(keys), *keys, *arguments
        try:
            return await redis.execute_command("EVALSHA", self._digest, *given)  # type: ignore[no-untyped-call]
        except NoScriptError:
            return await redis.execute_command("EVAL", self._source, *given)  # type: ignore[no-untyped-call]


READ = Script("""
-- ARGV: 1 how long past its time an answer is kept (ms), 2 how long it can last at most (ms),
--       3 the head of the answer that whoever asks has read before
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'string' and string.sub(value, 17, 32) == redis.pcall('GET', KEYS[2]) then
  local left = redis.call('PTTL', KEYS[1])
  if left > tonumber(ARGV[1]) and left <= tonumber(ARGV[2]) then
    return string.sub(value, 1, 32) == ARGV[3] and 1 or value
  end
end
return false
""")
"""The answer if it is of this generation and fresh, or 1 if it is the one that is known already. Most calls are this
one, so that it takes and gives little."""

LOOK = Script("""
-- ARGV: 1 how long past its time an answer is kept (ms), 2 a new generation, 3 how long that lasts (s),
--       4 whoever asks, 5 how long a lock lasts (ms)
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
"""The answer if it is of this generation, how long it lasts, the generation, and whether it is ours to make."""

KEEP = Script("""
-- ARGV: 1 the answer, 2 how long it lasts (ms), 3 its generation, 4 who has made it
local kept = false
if redis.call('GET', KEYS[2]) == ARGV[3] then kept = redis.pcall('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) end
if redis.call('GET', KEYS[3]) == ARGV[4] then redis.call('DEL', KEYS[3]) end
return kept
""")
"""Keep the answer unless the tenant's documents have changed since it was begun, and let the next one make it."""

RELEASE = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end")
"""Let the next one make it."""

RENEW = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end")
"""Still making it."""
