"""Response cache in memory or in Redis, with request coalescing.

A cached answer is returned to the same user of the same tenant for the same request:

- **Fresh** (within its TTL): returned as it is.
- **Stale** (past its TTL, within `stale_seconds`): a new answer is made. If that fails because a dependency fails, the
  stale answer is returned and flagged. Where the key's revision proves that nothing has changed, the stale answer is
  returned at once and refreshed in the background.
- **Invalidated** (another revision, `Cache.changed`, `clear_pattern`): never returned, even if no new answer can be
  made. The cache can't tell additions from deletions, and deleted content must not reappear. Changes made directly in
  R2R are not reported to Refdesk: there, the TTL bounds how long they go unnoticed.

Errors are never cached. With Redis, all processes share entries and coalesce requests; without it, each process falls
back to its own memory. Existing libraries store pickles, or let one cancelled caller cancel the request for all
waiters.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import orjson

from refdesk.calls import InputRequired, TenantId, UserId, text_content, track_shortfalls
from refdesk.config.models import CacheConfig
from refdesk.errors import ClientCannot, DependencyError, MissingCapability, Overloaded, RateLimited, RefdeskError
from refdesk.resilience.redis_connection import RedisAway, RedisLink
from refdesk.resilience.single_flight import SingleFlight
from refdesk.support.tasks import cancel_all
from refdesk.version import __version__

if TYPE_CHECKING:
    from refdesk.cache.redis import RedisCache

WireAnswer = dict[str, Any]
"""A tool result in its wire shape, so that a hit costs only a lookup."""

STALE_NOTE = (
    "(The knowledge base cannot answer at the moment: this is what it answered some minutes ago. "
    "Ask again later where being up to date matters.)"
)


class CacheResult(NamedTuple):
    """An answer and how it was obtained."""

    answer: WireAnswer
    is_cached: bool
    """Whether it was made for an earlier or a concurrent call."""
    is_stale: bool = False
    """Whether its TTL has passed and a new answer could not be made."""


FIELDS = frozenset({"content", "structuredContent", "_meta"})
"""Fields of a cacheable answer; one with `isError` is not cached."""


def is_answer(value: Any) -> bool:
    """Return whether a value has the shape of a tool result: text items and optional structured content."""
    return (
        isinstance(value, dict)
        and value.keys() <= FIELDS
        and isinstance(value.get("content"), list)
        and all(
            isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str)
            for item in value["content"]
        )
        and isinstance(value.get("structuredContent", {}), dict)
        and isinstance(value.get("_meta", {}), dict)
    )


def add_cache_flags(result: CacheResult) -> WireAnswer:
    """Return the answer with `cached` set where it has that field, and a note if it is stale."""
    answer = result.answer
    marks = {"cached": True} if result.is_cached and "cached" in answer.get("structuredContent", {}) else {}
    if result.is_stale:
        marks["stale"] = True
        answer = {**answer, "content": [*answer["content"], text_content(STALE_NOTE)]}
    if marks and "structuredContent" in answer:
        return {**answer, "structuredContent": {**answer["structuredContent"], **marks}}
    return answer


DIGEST_BYTES = 20
"""Long enough to rule out collisions, including deliberate ones."""


@dataclass(frozen=True, slots=True)
class Key:
    """Cache key: caller, tool, parameters and revision of the documents.

    All parts are plain values: strings, numbers, tuples and dataclasses of those.
    """

    tenant: TenantId
    user: UserId
    tool: str
    parameters: tuple[Hashable, ...]
    revision: Hashable = None

    def name(self, secret: bytes = b"") -> str:
        """Return the key as a unique name, `tenant:tool:digest`.

        The digest covers the `repr` of the parts, whose quotes and brackets keep them apart.
        """
        whole = repr((self.tenant, self.user, self.tool, self.parameters, self.revision))
        digest = blake2b(whole.encode("utf-8", "surrogatepass"), key=secret, digest_size=DIGEST_BYTES).hexdigest()
        return f"{escape(self.tenant)}:{escape(self.tool)}:{digest}"


@lru_cache(maxsize=4096)
def escape(word: str) -> str:
    """Percent-encode the characters that have a meaning in a name or a pattern."""
    return quote(word, safe="", errors="surrogatepass")


def build_pattern(tenant: TenantId | None = None, tool: str | None = None) -> str:
    """Return the pattern for `clear_pattern` that matches a tenant, a tool, or both; by default everything."""
    return f"{'*' if tenant is None else escape(tenant)}:{'*' if tool is None else escape(tool)}:*"


def compile_pattern(pattern: str) -> Callable[[str], bool]:
    """Return a matcher for names: `*` matches any characters and `?` one."""
    parts = {"*": ".*", "?": "."}
    whole = re.compile("".join(parts.get(character) or re.escape(character) for character in pattern), re.DOTALL)
    return lambda name: whole.fullmatch(name) is not None


MemoryKey = tuple[str, int]
"""An entry's name and the tenant's version when it was stored."""

ENTRY_OVERHEAD_BYTES = 1000
"""Memory of an entry besides its answer: name, key and Python objects."""

MEMORY_BYTES_PER_WIRE_BYTE = 2
"""Memory of an answer per byte of its JSON; measured on search answers, 1.6 to 2.1."""

MAX_TENANTS = 10_000
"""Tenants with a counter of their own. Evicted ones share the last evicted version, which can invalidate too much but
never too little."""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """A cached answer; one that is not fresh is past its TTL and serves as a fallback."""

    answer: WireAnswer
    is_fresh: bool = True
    head: bytes = b""
    """The first bytes of the same entry in Redis, which identify it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    cached: CachedAnswer
    expires_at: float
    size: int


@dataclass(eq=False, repr=False)
class MemoryCache:
    """LRU cache of answers, on a monotonic clock."""

    settings: CacheConfig
    now: Callable[[], float] = time.monotonic
    holds: Callable[[int, int], None] = lambda entries, size: None
    """Called with the number of entries and bytes after each change."""
    bytes: int = field(default=0, init=False)
    """Estimated memory use of the entries."""
    _entries: OrderedDict[MemoryKey, _Entry] = field(default_factory=OrderedDict, init=False)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: MemoryKey) -> CachedAnswer | None:
        """Return the entry, unless it is missing or past its stale period."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now = self.now()
        if now >= entry.expires_at + self.settings.stale_seconds:
            self._drop(key)
            self._report_size()
            return None
        self._entries.move_to_end(key)
        return entry.cached if now < entry.expires_at else replace(entry.cached, is_fresh=False)

    def store(self, key: MemoryKey, cached: CachedAnswer, seconds: float) -> None:
        """Store an answer if it fits, evicting the least recently used entries."""
        if key in self._entries:
            self._drop(key)
        size = len(orjson.dumps(cached.answer)) * MEMORY_BYTES_PER_WIRE_BYTE + ENTRY_OVERHEAD_BYTES
        limits = self.settings
        if size <= limits.max_bytes:  # a larger one would evict all others and then itself
            self._entries[key] = _Entry(cached, self.now() + seconds, size)
            self.bytes += size
            while self._entries and (self.bytes > limits.max_bytes or len(self._entries) > limits.max_entries):
                self._drop(next(iter(self._entries)))
        self._report_size()

    def clear(self, matches: Callable[[str], bool] = lambda name: True) -> int:
        """Drop the entries whose names match, and return their number."""
        matching = [key for key in self._entries if matches(key[0])]
        for key in matching:
            self._drop(key)
        self._report_size()
        return len(matching)

    def _drop(self, key: MemoryKey) -> None:
        self.bytes -= self._entries.pop(key).size

    def _report_size(self) -> None:
        self.holds(len(self._entries), self.bytes)


class TenantVersions:
    """A version number per tenant that changes with each invalidation within this process."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._counter = 0
        self._evicted_version = 0
        self._versions: OrderedDict[TenantId, int] = OrderedDict()

    def get(self, tenant: TenantId) -> int:
        """Return the tenant's current version."""
        return self._versions.get(tenant, self._evicted_version)

    def bump(self, tenant: TenantId) -> None:
        """Change the tenant's version."""
        self._counter += 1
        self._versions[tenant] = self._counter
        self._versions.move_to_end(tenant)
        if len(self._versions) > self._max_tenants:
            self._evicted_version = self._versions.popitem(last=False)[1]


Make = Callable[[], Awaitable[WireAnswer]]

MAX_REFRESHES = 16
"""Concurrent background refreshes; no caller waits for them."""

REFRESH_TIMEOUT_SECONDS = 60.0
"""Timeout of a background refresh, which runs outside of any call's deadline."""

FIRST_POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 0.25
"""Interval between polls while another process makes the answer, doubled each time."""

LOCK_SECONDS = 1.0
"""Lock TTL: how long others wait for a process that died while making an answer. Living ones renew it."""

MAX_PENDING = 1000
"""Tenants whose invalidations wait for Redis. Beyond that, everything is cleared on reconnect."""


CALLER_ERRORS = (InputRequired, ClientCannot, MissingCapability)
"""Errors specific to one caller's client; coalesced callers retry with their own."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """The entry found, and whether this process holds the lock to make a new one."""

    cached: CachedAnswer | None
    is_leader: bool
    generation: bytes = b""


@dataclass(slots=True, eq=False)
class Lookup:
    """One caller's request for an answer."""

    name: str
    memory_key: MemoryKey
    tenant: TenantId
    seconds: float
    """TTL of the answer."""
    make: Make
    fits: Callable[[WireAnswer], bool]
    """Whether an entry is a valid answer to this lookup."""
    is_certain: bool
    redis_cache: RedisCache | None = None
    """Where the answer is stored; None if in memory."""
    is_leader: bool = False
    """Whether this caller's request is the one that the coalesced callers wait for."""


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
            # Most installations have no Redis, and that module builds on this one.
            from refdesk.cache.redis import RedisCache

            self._redis_cache = RedisCache(
                link=redis, memory=self._memory, stale_seconds=settings.stale_seconds, secret=self._secret,
                counted=counted, lock_seconds=lock_seconds, max_pending=max_pending, pause=pause,
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
    ) -> CacheResult:
        """Return a cached answer, or make a new one; `seconds` is the TTL, 0 disables caching.

        `fits` validates an entry read from Redis. `is_certain` means that the key's revision proves a stale answer
        correct.
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
        return await self._answer_coalesced(Lookup(name, memory_key, key.tenant, seconds, make, fits, is_certain))

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

    async def _answer_coalesced(self, lookup: Lookup) -> CacheResult:
        """Answer a request, sharing the work with concurrent identical requests."""
        while True:
            try:
                result = await self._flights.run(lookup.memory_key, lambda: self._look_up_or_make(lookup))
            except CALLER_ERRORS:
                if lookup.is_leader:
                    raise
            else:
                if lookup.is_leader:
                    return result
                self._counted("stale" if result.is_stale else "hit" if result.is_cached else "shared")
                return result._replace(is_cached=True)

    async def _look_up_or_make(self, lookup: Lookup) -> CacheResult:
        lookup.is_leader = True
        found = await self._wait_for_redis(lookup) if self._has_redis() else None
        lookup.redis_cache = self._redis_cache if found else None
        if found is None:
            found = LookupResult(self._memory.find(lookup.memory_key), is_leader=True)
        cached = found.cached
        if cached is not None and cached.is_fresh:
            self._counted("hit")
            return CacheResult(cached.answer, is_cached=True)
        if cached is not None and lookup.is_certain:
            self._counted("stale")
            if found.is_leader:
                await self._start_refresh(lookup, found)
            return CacheResult(cached.answer, is_cached=True)
        result = await self._make_and_store(lookup, found)
        self._counted("stale" if result.is_stale else "miss")
        return result

    async def _wait_for_redis(self, lookup: Lookup) -> LookupResult | None:
        """Look up Redis until the entry is usable or this process holds the lock to make it.

        Returns None if Redis is unavailable.
        """
        assert self._redis_cache is not None
        pause = FIRST_POLL_SECONDS
        while True:
            try:
                found = await self._redis_cache.look_up(lookup)
            except RedisAway:
                self._counted("error")
                return None
            if found.is_leader or (found.cached and (found.cached.is_fresh or lookup.is_certain)):
                return found
            await self._pause(pause)
            pause = min(pause * 2, MAX_POLL_SECONDS)

    async def _make_and_store(self, lookup: Lookup, found: LookupResult) -> CacheResult:
        """Make and store an answer; fall back to the stale one if a dependency fails."""
        clear_count = self._clear_count
        lock = lookup.redis_cache.hold_lock(lookup) if lookup.redis_cache else nullcontext()
        try:
            async with lock:
                with track_shortfalls() as shortfalls:
                    answer = await lookup.make()
        except BaseException as error:
            await self._release_lock(lookup)
            if found.cached is None or not isinstance(error, (DependencyError, Overloaded, RateLimited)):
                raise
            return CacheResult(found.cached.answer, is_cached=True, is_stale=True)
        if clear_count != self._clear_count or shortfalls.count:
            await self._release_lock(lookup)
        elif lookup.redis_cache is not None:
            try:
                await lookup.redis_cache.store(lookup, found, answer)
            except RedisAway:
                self._counted("error")
        elif not self._has_redis():
            self._memory.store(lookup.memory_key, CachedAnswer(answer), lookup.seconds)
        return CacheResult(answer, is_cached=False)

    async def _release_lock(self, lookup: Lookup) -> None:
        if lookup.redis_cache is not None:
            with suppress(RedisAway):  # the lock expires by itself
                await lookup.redis_cache.release(lookup)

    async def _start_refresh(self, lookup: Lookup, found: LookupResult) -> None:
        """Refresh a stale answer in the background, unless too many refreshes are running."""
        memory_key = lookup.memory_key
        if memory_key in self._refreshes:
            return
        if len(self._refreshes) >= MAX_REFRESHES:
            await self._release_lock(lookup)
            return
        self._refreshes[memory_key] = task = asyncio.create_task(self._refresh(lookup, found))
        task.add_done_callback(lambda task: self._refreshes.pop(memory_key))

    async def _refresh(self, lookup: Lookup, found: LookupResult) -> None:
        """Make and store an answer, ignoring failures: the next request retries."""
        with suppress(RefdeskError, TimeoutError):
            async with asyncio.timeout(REFRESH_TIMEOUT_SECONDS):
                await self._make_and_store(lookup, found)
