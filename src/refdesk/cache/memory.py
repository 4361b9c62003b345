"""Cache keys and results, and the in-memory LRU cache with the tenants' versions that invalidate its entries."""

from __future__ import annotations

import re
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from refdesk.calls import TenantId, UserId, text_content
from refdesk.config import CacheConfig

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


def to_redis_pattern(pattern: str) -> str:
    """Escape the characters that only Redis treats as special."""
    return re.sub(r"([\[\]\\^])", r"\\\1", pattern)


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
        self.bytes = 0
        """Estimated memory use of the entries."""

    def __len__(self) -> int:
        return len(self._entries)

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
            self.bytes += size
            while self._entries and (self.bytes > self._max_bytes or len(self._entries) > self._max_entries):
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
        self._holds(len(self._entries), self.bytes)


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
