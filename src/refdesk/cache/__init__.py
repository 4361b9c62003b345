"""Answers that were given, kept for a while: in memory or in Redis, each made once at a time.

A kept answer is given again to the same user of the same tenant, for the same question, while nothing has changed:

- **Fresh** (within its seconds): given as it is.
- **Past its time, within `stale_seconds`**: a new one is made. If that fails because something behind us fails, the
  old one is given and says so. Where the key's revision proves that nothing has changed, the old one is given at once
  and the new one is made behind it.
- **After a change** (another revision, `Cache.changed`, `clear_pattern`): gone, also when nothing new can be made. A
  cache cannot tell a change that adds from one that deletes, and what was deleted is never shown again. Of a change
  that somebody makes in R2R itself nobody tells us; there, an answer's time is what bounds how long it goes unseen.

Errors are never kept. With Redis, all processes share what is kept and what is being made; while Redis is away, each
does the same by itself, in memory. Written by hand: the libraries there are keep pickles, or let one caller who leaves
take the answer from all who wait.
"""

from __future__ import annotations

from refdesk.cache.cache import Cache, open_cache
from refdesk.cache.key import Key, pattern_of
from refdesk.cache.response_meta import Given, WireAnswer, marked
from refdesk.cache.secret import shared_secret

__all__ = ["Cache", "Given", "Key", "WireAnswer", "marked", "open_cache", "pattern_of", "shared_secret"]
