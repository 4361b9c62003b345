"""Tracks whether a result is incomplete because part of its work failed: it's returned, but not cached.

The code that skips a part marks it, and the cache asks. Code in between isn't involved.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Shortfalls:
    """Number of parts that were skipped so far."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_shortfalls: ContextVar[Shortfalls | None] = ContextVar("refdesk.shortfalls", default=None)


@contextmanager
def track_shortfalls() -> Iterator[Shortfalls]:
    """Track the shortfalls in the block, and in the tasks started in it."""
    shortfalls = Shortfalls()
    token = _shortfalls.set(shortfalls)
    try:
        yield shortfalls
    finally:
        _shortfalls.reset(token)


def mark_partial_result() -> None:
    """Mark the current result as incomplete."""
    shortfalls = _shortfalls.get()
    if shortfalls is not None:
        shortfalls.count += 1
