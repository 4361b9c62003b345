"""Cache facade: lookup, request coalescing, background refresh and invalidation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b

from refdesk.cache.memory import (
    CachedAnswer,
    CacheResult,
    Key,
    MemoryCache,
    MemoryKey,
    TenantVersions,
    WireAnswer,
    compile_pattern,
)
from refdesk.cache.redis import LOCK_SECONDS, MAX_PENDING, Lookup, LookupResult, RedisCache, is_answer
from refdesk.calls import InputRequired, TenantId, track_shortfalls
from refdesk.config import CacheConfig
from refdesk.errors import ClientCannot, DependencyError, MissingCapability, Overloaded, RateLimited, RefdeskError
from refdesk.resilience.concurrency import SingleFlight
from refdesk.resilience.redis_connection import RedisAway, RedisLink
from refdesk.support.tasks import cancel_all
from refdesk.version import __version__

Make = Callable[[], Awaitable[WireAnswer]]

MAX_REFRESHES = 16
"""Concurrent background refreshes; no caller waits for them."""

REFRESH_TIMEOUT_SECONDS = 60.0
"""Timeout of a background refresh, which runs outside of any call's deadline."""

FIRST_POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 0.25
"""Interval between polls while another process makes the answer, doubled each time."""


class _CallerLeft(Exception):
    """The caller whose client was needed has disconnected; another caller has to make the answer."""


CALLER_ERRORS = (InputRequired, ClientCannot, MissingCapability, _CallerLeft)
"""Errors specific to one caller's client; coalesced callers retry with their own."""


@dataclass(slots=True, eq=False)
class _Request:
    """One caller's request for an answer."""

    memory_key: MemoryKey
    lookup: Lookup
    make: Make
    is_certain: bool
    found: LookupResult | None = None
    """The entry before an answer is made."""
    redis_cache: RedisCache | None = None
    """Where the answer is stored; None if in memory."""
    is_leader: bool = False
    """Whether this caller's request is the one that the coalesced callers wait for."""
    has_left: asyncio.Event | None = None
    """Set when the caller disconnects; only where the caller's client is needed."""


class Cache:
    """Cached answers and coalesced requests."""

    def __init__(
        self,
        settings: CacheConfig,
        redis: RedisLink | None = None,
        *,
        namespace: str = "",
        secret: bytes = b"",
        counted: Callable[[str], None] = lambda result: None,
        holds: Callable[[int, int], None] = lambda entries, size: None,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        lock_seconds: float = LOCK_SECONDS,
        max_pending: int = MAX_PENDING,
    ) -> None:
        """Initialize a cache in memory, or in Redis if a link is given.

        Processes share entries if they have the same `namespace`, which identifies what their answers are made from,
        and the same `secret`, which rejects entries written by others to the same Redis. `counted` is called for each
        request with `hit`, `miss`, `shared` (coalesced) or `stale`, and with `error` for each Redis error. `holds` is
        called with the number of entries and bytes in memory.
        """
        self._link = redis
        self._memory = MemoryCache(settings, now=now, holds=holds)
        # Versions running side by side during an upgrade don't share entries.
        shared_by = repr((namespace, __version__)).encode()
        self._secret = blake2b(shared_by, key=blake2b(secret).digest()).digest()
        self._redis_cache: RedisCache | None = None
        if redis is not None:
            self._redis_cache = RedisCache(
                redis, self._memory, settings.stale_seconds, self._secret, counted,
                lock_seconds=lock_seconds, max_pending=max_pending, pause=pause,
            )  # fmt: skip
        self._counted = counted
        self._pause = pause
        self._versions = TenantVersions()
        self._flights: SingleFlight[MemoryKey, CacheResult] = SingleFlight()
        self._refreshes: dict[MemoryKey, asyncio.Task[None]] = {}
        self._publishing: asyncio.Task[None] | None = None
        self._clear_count = 0
        self._seen_losses = redis.losses if redis else 0

    def __len__(self) -> int:
        return len(self._memory)

    @property
    def bytes(self) -> int:
        """Estimated memory use of the entries in memory."""
        return self._memory.bytes

    async def answer(
        self,
        key: Key,
        seconds: float,
        make: Make,
        *,
        fits: Callable[[WireAnswer], bool] = is_answer,
        is_certain: bool = False,
        needs_client: bool = False,
    ) -> CacheResult:
        """Return a cached answer, or make a new one; `seconds` is the TTL, 0 disables caching.

        `fits` validates an entry read from Redis. `is_certain` means that the key's revision proves a stale answer
        correct. `needs_client` means that making the answer may take the caller's own client, so it is cancelled when
        the caller disconnects.
        """
        if seconds <= 0:
            return CacheResult(await make(), is_cached=False)
        if self._redis_cache is not None and not is_certain:
            # The revision is local to this machine; with Redis, invalidations reach all processes instead.
            key = replace(key, revision=None)
        name = key.name(self._secret)
        memory_key = name, self._versions.get(key.tenant)
        if not self._has_redis() and (cached := self._memory.find(memory_key)) and cached.is_fresh:
            self._counted("hit")
            return CacheResult(cached.answer, is_cached=True)
        lookup = Lookup(name, key.tenant, seconds, fits)
        has_left = asyncio.Event() if needs_client else None
        return await self._answer_coalesced(
            _Request(memory_key, lookup, make, is_certain and not needs_client, has_left=has_left)
        )

    def changed(self, tenant: TenantId) -> None:
        """Invalidate all answers of a tenant; answers that are being made are returned, but not cached."""
        self._versions.bump(tenant)
        if self._redis_cache is not None:
            self._redis_cache.invalidate(tenant)
            if self._publishing is None or self._publishing.done():
                self._publishing = asyncio.create_task(self._redis_cache.publish_when_reconnected())

    async def clear_pattern(self, pattern: str) -> int:
        """Drop the entries whose names match, such as `build_pattern(tenant)`, and return their number.

        Answers that other processes are making at this moment may still be cached afterwards.
        """
        self._clear_count += 1
        dropped = self._memory.clear(compile_pattern(pattern))
        return await self._redis_cache.clear(pattern) if self._redis_cache else dropped

    async def aclose(self) -> None:
        """Cancel background tasks."""
        await cancel_all([*self._refreshes.values(), *([self._publishing] if self._publishing else [])])

    def _has_redis(self) -> bool:
        """Return whether Redis is available.

        After an outage the entries in memory are dropped: other processes may have invalidated them meanwhile.
        """
        if self._link is None or self._link.is_away:
            return False
        if self._seen_losses != self._link.losses:
            self._seen_losses = self._link.losses
            self._memory.clear()
        return True

    async def _answer_coalesced(self, request: _Request) -> CacheResult:
        """Answer a request, sharing the work with concurrent identical requests."""
        while True:
            try:
                result = await self._flights.run(request.memory_key, lambda: self._look_up_or_make(request))
            except CALLER_ERRORS:
                if request.is_leader:
                    raise
            except asyncio.CancelledError:
                if request.has_left is not None:
                    request.has_left.set()
                raise
            else:
                if request.is_leader:
                    return result
                self._counted("stale" if result.is_stale else "hit" if result.is_cached else "shared")
                return result._replace(is_cached=True)

    async def _look_up_or_make(self, request: _Request) -> CacheResult:
        """Return the cached answer, or make one."""
        request.is_leader = True
        found = await self._wait_for_redis(request) if self._has_redis() else None
        request.redis_cache = self._redis_cache if found else None
        if found is None:
            found = LookupResult(self._memory.find(request.memory_key), is_leader=True)
        request.found, cached = found, found.cached
        if cached is not None and cached.is_fresh:
            self._counted("hit")
            return CacheResult(cached.answer, is_cached=True)
        if cached is not None and request.is_certain:
            self._counted("stale")
            if found.is_leader:
                await self._start_refresh(request)
            return CacheResult(cached.answer, is_cached=True)
        result = await self._make_and_store(request)
        self._counted("stale" if result.is_stale else "miss")
        return result

    async def _wait_for_redis(self, request: _Request) -> LookupResult | None:
        """Look up Redis until the entry is usable or this process holds the lock to make it.

        Returns None if Redis is unavailable.
        """
        assert self._redis_cache is not None
        pause = FIRST_POLL_SECONDS
        while True:
            try:
                found = await self._redis_cache.look_up(request.lookup)
            except RedisAway:
                self._counted("error")
                return None
            if found.is_leader or (found.cached and (found.cached.is_fresh or request.is_certain)):
                return found
            await self._pause(pause)
            pause = min(pause * 2, MAX_POLL_SECONDS)

    async def _make_and_store(self, request: _Request) -> CacheResult:
        """Make and store an answer; fall back to the stale one if a dependency fails."""
        clear_count, found = self._clear_count, request.found
        assert found is not None
        lock = request.redis_cache.hold_lock(request.lookup) if request.redis_cache else nullcontext()
        try:
            async with lock:
                with track_shortfalls() as shortfalls:
                    answer = await (
                        _run_while_connected(request.make, request.has_left) if request.has_left else request.make()
                    )
        except BaseException as error:
            await self._release_lock(request)
            if found.cached is None or not isinstance(error, (DependencyError, Overloaded, RateLimited)):
                raise
            return CacheResult(found.cached.answer, is_cached=True, is_stale=True)
        if clear_count != self._clear_count or shortfalls.count:
            await self._release_lock(request)
        elif request.redis_cache is not None:
            try:
                await request.redis_cache.store(request.lookup, found, answer)
            except RedisAway:
                self._counted("error")
        elif not self._has_redis():
            self._memory.store(request.memory_key, CachedAnswer(answer), request.lookup.seconds)
        return CacheResult(answer, is_cached=False)

    async def _release_lock(self, request: _Request) -> None:
        if request.redis_cache is not None:
            with suppress(RedisAway):  # the lock expires by itself
                await request.redis_cache.release(request.lookup)

    async def _start_refresh(self, request: _Request) -> None:
        """Refresh a stale answer in the background, unless too many refreshes are running."""
        memory_key = request.memory_key
        if memory_key in self._refreshes:
            return
        if len(self._refreshes) >= MAX_REFRESHES:
            await self._release_lock(request)
            return
        self._refreshes[memory_key] = task = asyncio.create_task(self._refresh(request))
        task.add_done_callback(lambda task: self._refreshes.pop(memory_key))

    async def _refresh(self, request: _Request) -> None:
        """Make and store an answer, ignoring failures: the next request retries."""
        with suppress(RefdeskError, TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_SECONDS):
                await self._make_and_store(request)


async def _run_while_connected(make: Make, has_left: asyncio.Event) -> WireAnswer:
    """Make an answer with the help of the caller's client; cancel it when the caller disconnects."""
    making = asyncio.ensure_future(make())
    leaving = asyncio.ensure_future(has_left.wait())
    try:
        await asyncio.wait((making, leaving), return_when=asyncio.FIRST_COMPLETED)
        if making.done():
            return making.result()
        raise _CallerLeft
    finally:
        making.cancel()
        leaving.cancel()
