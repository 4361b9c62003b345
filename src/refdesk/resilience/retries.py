"""Whether a call that failed is made once more, and when: full jitter, what the other side asks for, and a budget.

The budget is what keeps a dependency that is down from being asked three times as often as one that is up: retries are
a share of the calls, besides a few for the first that fail. Pure: chance and time are passed in.
"""

from __future__ import annotations

import re

FIRST_PAUSE_SECONDS = 0.2
"""The longest pause before the first retry; twice as long before each further one. What passes by itself, such as a
connection that was closed while idle, has passed by then."""

LONGEST_PAUSE_SECONDS = 10.0
"""Somebody waits: a longer pause is for the caller to make, who is told how long it is."""

RETRY_SHARE = 0.1
"""Of the calls: the load that retries may add to a dependency, however many of its calls fail."""

RETRY_RESERVE = 10.0
"""Retries that a quiet dependency has in store; also the most that it can save up."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""Whoever asks for more patience than an hour is not believed."""

_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)


class RetryBudget:
    """Retries in store: every call adds a part of one, every retry takes one."""

    __slots__ = ("_store",)

    def __init__(self) -> None:
        self._store = RETRY_RESERVE

    def count_call(self) -> None:
        """A call is made for the first time."""
        self._store = min(RETRY_RESERVE, self._store + RETRY_SHARE)

    def take_retry(self) -> bool:
        """Whether there is a retry in store; if so, it is taken."""
        if self._store < 1:
            return False
        self._store -= 1
        return True


def pause_before(retry: int, retry_after: float | None, patience: float, chance: float) -> float | None:
    """The seconds to wait before that retry, counted from 1; None when it would take more patience than there is.

    `chance` is between 0 and 1: all who failed together must not come back together, not even when the other side
    told all of them the same time.
    """
    jitter = chance * min(patience, FIRST_PAUSE_SECONDS * float(2 ** (retry - 1)))
    if retry_after is None:
        return jitter
    return retry_after + jitter if retry_after <= patience else None


def retry_after_seconds(header: str | None) -> float | None:
    """The seconds that a `Retry-After` header asks for; a date, which it may also be, is not worth understanding."""
    text = (header or "").strip()
    return min(float(text), LONGEST_RETRY_AFTER_SECONDS) if _SECONDS.fullmatch(text) else None
