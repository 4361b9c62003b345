"""In-memory LRU cache bounded by bytes and entries, and the tenants' versions that invalidate its entries."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from refdesk.cache.response_meta import WireAnswer
from refdesk.calls import TenantId
from refdesk.config import CacheConfig

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


class MemoryCache:
    """LRU cache of answers, on a monotonic clock."""

    def __init__(
        self,
        settings: CacheConfig,
        *,
        now: Callable[[], float] = time.monotonic,
        holds: Callable[[int, int], None] = lambda entries, size: None,
    ) -> None:
        """`holds` is called with the number of entries and bytes after each change."""
        self._max_bytes = settings.max_bytes
        self._max_entries = settings.max_entries
        self._stale_seconds = settings.stale_seconds
        self._now = now
        self._holds = holds
        self._entries: OrderedDict[MemoryKey, _Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        """Estimated memory use of the entries."""
        return self._bytes

    def find(self, key: MemoryKey) -> CachedAnswer | None:
        """Return the entry, unless it is missing or past its stale period."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        now = self._now()
        if now >= entry.expires_at + self._stale_seconds:
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
        if size <= self._max_bytes:  # a larger one would evict all others and then itself
            self._entries[key] = _Entry(cached, self._now() + seconds, size)
            self._bytes += size
            while self._entries and (self._bytes > self._max_bytes or len(self._entries) > self._max_entries):
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
        self._bytes -= self._entries.pop(key).size

    def _report_size(self) -> None:
        self._holds(len(self._entries), self._bytes)


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
