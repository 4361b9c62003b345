"""Whether something was made without a part that failed: it is still worth giving, and not worth keeping.

Who does without says so where it happens, and who keeps what was made asks; those in between need not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class Shortfalls:
    """What was done without, so far."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


_noted: ContextVar[Shortfalls | None] = ContextVar("refdesk.shortfalls", default=None)


@contextmanager
def noting_shortfalls() -> Iterator[Shortfalls]:
    """What falls short in the block, and in the tasks that are begun in it."""
    shortfalls = Shortfalls()
    token = _noted.set(shortfalls)
    try:
        yield shortfalls
    finally:
        _noted.reset(token)


def fell_short() -> None:
    """What is being made will be the worse for want of something."""
    shortfalls = _noted.get()
    if shortfalls is not None:
        shortfalls.count += 1
