"""Retry policy: full jitter, `Retry-After` and a retry budget.

The budget limits retries to a share of the calls, plus a small reserve. Without it, a dependency that is down would get
three times the requests. Pure functions: randomness and time are passed in.
"""

from __future__ import annotations

import re

FIRST_PAUSE_SECONDS = 0.2
"""Longest pause before the first retry, doubled before each further one. Short disruptions, such as a connection closed
while idle, are over by then."""

LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause before a retry. For longer ones the caller gets an error with `retry_after`."""

RETRY_SHARE = 0.1
"""Share of the calls that may be retried, however many fail."""

RETRY_RESERVE = 10.0
"""Initial and maximum number of retries in the budget."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""Longer values of `Retry-After` are capped, unless the caller sets another cap."""

_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)


class RetryBudget:
    """Retry budget: every call adds a fraction of a retry, every retry takes one."""

    __slots__ = ("_balance",)

    def __init__(self) -> None:
        self._balance = RETRY_RESERVE

    def count_call(self) -> None:
        """Record the first attempt of a call."""
        self._balance = min(RETRY_RESERVE, self._balance + RETRY_SHARE)

    def take_retry(self) -> bool:
        """Take a retry from the budget. Return False if there is none."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


def compute_pause(retry: int, retry_after: float | None, patience: float, chance: float) -> float | None:
    """Return the seconds to wait before a retry (the first is 1), or None if that exceeds `patience`.

    `chance` is a random number between 0 and 1. Callers that failed together must not retry together, even if they all
    got the same `Retry-After`.
    """
    jitter = chance * min(patience, FIRST_PAUSE_SECONDS * float(2 ** (retry - 1)))
    if retry_after is None:
        return jitter
    return retry_after + jitter if retry_after <= patience else None


def parse_retry_after(header: str | None, max_seconds: float = LONGEST_RETRY_AFTER_SECONDS) -> float | None:
    """Parse a `Retry-After` header in seconds. Dates aren't supported."""
    text = (header or "").strip()
    return min(float(text), max_seconds) if _SECONDS.fullmatch(text) else None
