"""Response cache in Redis, shared by all processes: entries, locks and invalidation.

Each tenant has a generation in Redis, a random token that every entry carries. Invalidation deletes it; the next lookup
creates a new one, and all entries of the old generation become invalid in every process at once. The same happens when
a generation is lost (evicted, expired, Redis restarted): no entry can become valid again.

Only Redis knows whether an entry is valid, so every lookup asks it. An entry that this process has read or written
stays in its memory, and Redis only confirms that it is current: that is cheaper than reading, verifying and parsing it
again. TTLs are measured by Redis, so process clocks don't matter.

Redis isn't trusted. Entries are signed:

    16 bytes   signature: a digest of name, generation and answer, keyed with the secret if there is one
    16 bytes   generation of the tenant
    the rest   the answer as JSON

Without a secret the signature detects corrupt and misplaced entries; with one, forged entries too.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import orjson

from refdesk.cache.cache import CachedAnswer, Lookup, LookupResult, MemoryCache, WireAnswer, escape, is_answer
from refdesk.calls import TenantId
from refdesk.errors import StorageError
from refdesk.resilience.redis_connection import RedisAway, RedisLink, Script
from refdesk.support.fs import make_private_folder

if TYPE_CHECKING:
    from redis.asyncio import Redis


# KEYS of the scripts: 1 the entry, 2 the tenant's generation, 3 the lock. A refused write (out of memory, replica) is
# skipped, and reads still work.

READ = Script("refdesk.cache", "read")
"""Return the entry if it is current and fresh, or 1 if the caller has it in memory. Most calls are this one, so that it
transfers little."""

CLAIM = Script("refdesk.cache", "claim")
"""Return the entry if it is current, its TTL, the generation, and whether the caller now holds the lock."""

STORE = Script("refdesk.cache", "store")
"""Store the entry unless the tenant was invalidated since the lookup, and release the lock."""

RELEASE = Script("refdesk.cache", "release")
"""Release the lock."""

RENEW = Script("refdesk.cache", "renew")
"""Extend the lock."""


SECRET_FILE = "cache.secret"
SECRET_BYTES = 32

SIGNATURE_BYTES = 16
GENERATION_BYTES = 16
HEAD_BYTES = SIGNATURE_BYTES + GENERATION_BYTES


class InvalidEntry(ValueError):
    """An entry with a wrong signature or malformed content."""


def sign(name: str, generation: bytes, answer: WireAnswer, secret: bytes) -> bytes:
    """Serialize and sign an answer; `verify` accepts it under the same name only."""
    body = orjson.dumps(answer)
    return _sign(name, generation, body, secret) + generation + body


def verify(name: str, value: bytes, secret: bytes) -> WireAnswer:
    """Return the answer that was signed under this name; raise InvalidEntry for anything else."""
    generation, body = value[SIGNATURE_BYTES:HEAD_BYTES], value[HEAD_BYTES:]
    if not compare_digest(value[:SIGNATURE_BYTES], _sign(name, generation, body, secret)):
        raise InvalidEntry("the seal does not fit")
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidEntry("not JSON") from error
    if not is_answer(answer):
        raise InvalidEntry("not an answer of a tool")
    return dict(answer)


def _sign(name: str, generation: bytes, body: bytes, secret: bytes) -> bytes:
    signature = blake2b(key=secret, digest_size=SIGNATURE_BYTES)
    # The separator and the fixed length of the generation make the signed bytes unambiguous.
    for part in (name.encode(), b"\n", generation, body):
        signature.update(part)
    return signature.digest()


def load_cache_secret(data: Path) -> bytes:
    """Return the secret of all processes on a data folder. The first process creates it atomically."""
    path = data / SECRET_FILE
    try:
        make_private_folder(data)
        if not path.exists():
            with NamedTemporaryFile(dir=data, prefix=f".{SECRET_FILE}.") as draft:
                draft.write(secrets.token_bytes(SECRET_BYTES))
                draft.flush()
                with suppress(FileExistsError):
                    os.link(draft.name, path)
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot keep a secret in {data}: {error.strerror}") from error


PREFIX = "refdesk:1:"
"""Prefix of every key. The number is the version of the entry format."""

REFUSED_RETRY_SECONDS = 5.0
"""Pause before retrying invalidations that a reachable Redis refused to write."""

GENERATION_SECONDS = 7 * 86_400
"""TTL of a generation: longer than any entry, so that few are lost with it."""

MAX_VALUE_BYTES = 1_000_000
"""Largest entry: a larger one could not be read within Redis's timeout."""

IN_REDIS = -1
"""Version in the memory keys of entries that mirror Redis, so that they have keys of their own."""

SCAN_COUNT = 1000
"""Keys per SCAN step while clearing: well within Redis's timeout."""


@dataclass(eq=False, repr=False, kw_only=True)
class RedisCache:
    """Answers in Redis; raises RedisAway if Redis fails."""

    link: RedisLink
    memory: MemoryCache
    stale_seconds: float
    secret: bytes
    counted: Callable[[str], None]
    lock_seconds: float
    max_pending: int
    pause: Callable[[float], Awaitable[None]]
    _lock_token: bytes = field(default_factory=partial(secrets.token_bytes, 16), init=False)
    """Identifies this process as the owner of a lock. A claim whose reply was lost may have succeeded, so that the
    process can find the lock to be its own."""
    _pending: dict[TenantId, int] = field(default_factory=dict, init=False)
    _is_clear_pending: bool = field(default=False, init=False)
    _change_count: int = field(default=0, init=False)

    async def look_up(self, lookup: Lookup) -> LookupResult:
        """Return the entry; unless it is fresh, try to take the lock to make a new one."""
        await self.publish_invalidations()
        stale, longest = self._get_lifetimes(lookup)
        known = self.memory.find((lookup.name, IN_REDIS))
        arguments = stale, longest, known.head if known else b""
        value = await self.link.run(lambda redis: READ.run(redis, _build_keys(lookup)[:2], *arguments))
        if value == 1 and known is not None:
            return LookupResult(CachedAnswer(known.answer, is_fresh=True), is_leader=False)
        if isinstance(value, bytes) and (answer := self._verify(lookup, value)):
            return LookupResult(CachedAnswer(answer, is_fresh=True), is_leader=False)
        return await self._claim(lookup)

    async def _claim(self, lookup: Lookup) -> LookupResult:
        stale, longest = self._get_lifetimes(lookup)
        new = secrets.token_bytes(GENERATION_BYTES)
        arguments = stale, new, GENERATION_SECONDS, self._lock_token, _to_milliseconds(self.lock_seconds)
        match await self.link.run(lambda redis: CLAIM.run(redis, _build_keys(lookup), *arguments)):
            case [None, int(), bytes(generation), int(is_leader)]:
                return LookupResult(None, bool(is_leader), generation)
            case [bytes(value), int(left), bytes(generation), int(is_leader)]:
                answer = self._verify(lookup, value) if 0 <= left <= longest else None
                if answer is not None:
                    return LookupResult(CachedAnswer(answer, is_fresh=left > stale), bool(is_leader), generation)
                # An untrusted entry counts as missing: this caller makes a new one, lock or not.
                self.counted("error")
                return LookupResult(None, True, generation)
        raise RedisAway("Redis answered what it was not asked for")

    def _verify(self, lookup: Lookup, value: bytes) -> WireAnswer | None:
        try:
            answer = verify(lookup.name, value, self.secret)
        except InvalidEntry:
            return None
        if not lookup.fits(answer):
            return None
        self._mirror(lookup, value, answer)
        return answer

    def _mirror(self, lookup: Lookup, value: bytes, answer: WireAnswer) -> None:
        self.memory.store((lookup.name, IN_REDIS), CachedAnswer(answer, head=value[:HEAD_BYTES]), lookup.seconds)

    def _get_lifetimes(self, lookup: Lookup) -> tuple[int, int]:
        """Return the stale period and the total lifetime of the entry in Redis."""
        return _to_milliseconds(self.stale_seconds), _to_milliseconds(lookup.seconds + self.stale_seconds)

    async def store(self, lookup: Lookup, found: LookupResult, answer: WireAnswer) -> None:
        """Store an answer, unless the tenant was invalidated since the lookup, and release the lock."""
        value = sign(lookup.name, found.generation, answer, self.secret)
        if len(value) > MAX_VALUE_BYTES:
            await self.release(lookup)
            return
        arguments = value, self._get_lifetimes(lookup)[1], found.generation, self._lock_token
        await self.link.run(lambda redis: STORE.run(redis, _build_keys(lookup), *arguments))
        self._mirror(lookup, value, answer)

    async def release(self, lookup: Lookup) -> None:
        """Release the lock."""
        await self.link.run(lambda redis: RELEASE.run(redis, _build_keys(lookup)[2:], self._lock_token))

    @asynccontextmanager
    async def hold_lock(self, lookup: Lookup) -> AsyncIterator[None]:
        """Renew the lock until the block ends."""
        renewing = asyncio.create_task(self._renew_lock(lookup))
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew_lock(self, lookup: Lookup) -> None:
        arguments = self._lock_token, _to_milliseconds(self.lock_seconds)
        while True:
            await self.pause(self.lock_seconds / 3)
            with suppress(RedisAway):  # without Redis, nobody waits for the lock
                await self.link.run(lambda redis: RENEW.run(redis, _build_keys(lookup)[2:], *arguments))

    def invalidate(self, tenant: TenantId) -> None:
        """Queue the invalidation of a tenant's entries; lookups of this process publish it first."""
        self._change_count += 1
        self._pending[tenant] = self._change_count
        if len(self._pending) > self.max_pending:
            self._pending.clear()
            self._is_clear_pending = True

    async def publish_invalidations(self) -> None:
        """Send the queued invalidations to Redis, and so to all processes."""
        if self._is_clear_pending:
            count = self._change_count
            await self.clear("*")
            self._is_clear_pending = count != self._change_count
        if self._pending:
            pending = dict(self._pending)
            keys = [_build_generation_key(tenant) for tenant in pending]
            await self.link.run(lambda redis: redis.delete(*keys))
            self._pending = {tenant: n for tenant, n in self._pending.items() if pending.get(tenant) != n}

    async def publish_when_reconnected(self) -> None:
        """Send the queued invalidations as soon as Redis is available."""
        while self._pending or self._is_clear_pending:
            await self.link.back()
            try:
                await self.publish_invalidations()
            except RedisAway:
                await self.pause(REFUSED_RETRY_SECONDS)

    async def clear(self, pattern: str) -> int:
        """Drop the entries whose names match, and return their number."""
        matching = f"{PREFIX}answer:{to_redis_pattern(pattern)}"
        cursor, total = 0, 0

        async def step(redis: Redis) -> tuple[int, int]:
            after, keys = await redis.scan(cursor, match=matching, count=SCAN_COUNT)
            return int(after), int(await redis.unlink(*keys)) if keys else 0

        while True:
            cursor, dropped = await self.link.run(step)
            total += dropped
            if cursor == 0:
                return total


def _build_keys(lookup: Lookup) -> tuple[str, str, str]:
    """Return the Redis keys of the entry, the tenant's generation and the lock."""
    return f"{PREFIX}answer:{lookup.name}", _build_generation_key(lookup.tenant), f"{PREFIX}lock:{lookup.name}"


def _build_generation_key(tenant: TenantId) -> str:
    return f"{PREFIX}generation:{escape(tenant)}"


def to_redis_pattern(pattern: str) -> str:
    """Escape the characters that only Redis treats as special."""
    return re.sub(r"([\[\]\\^])", r"\\\1", pattern)


def _to_milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
