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

from refdesk.cache.cache import Cache
from refdesk.cache.memory import CacheResult, Key, WireAnswer, add_cache_flags, build_pattern
from refdesk.cache.redis import load_cache_secret

__all__ = [
    "Cache",
    "CacheResult",
    "Key",
    "WireAnswer",
    "add_cache_flags",
    "build_pattern",
    "load_cache_secret",
]
