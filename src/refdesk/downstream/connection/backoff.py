"""When a server that was lost, or could not be reached, is tried again. No clock and no waiting: whoever uses it says
what time it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_MAX_SECONDS = 1.0
"""The most that is waited after the first failure; twice that after the second, and so on."""

LAST_MAX_SECONDS = 30.0
"""Where the doubling ends."""

GIVEN_UP_SECONDS = 60.0
"""The most that is waited, once trying has been given up, before a server that nobody asks for is tried again."""

MAX_FAILED_ATTEMPTS, FAILED_ATTEMPTS_SECONDS = 6, 60.0
"""What a server that only crashes may cost, however the dice of the pauses fall: a start of a process each."""

MAX_RESTARTS, RESTART_SECONDS = 5, 5.0
"""What a server may cost that works until somebody makes it crash: at once a few times, then one each second."""


@dataclass(frozen=True, slots=True)
class Delay:
    """How long a server is let alone."""

    seconds: float
    """Until it is tried again by itself."""
    on_demand: float
    """Until it is tried because somebody asks for it."""


class RestartPolicy:
    """The tries of one server."""

    def __init__(self, tries: int) -> None:
        self.failures = 0
        """How many tries in a row came to nothing."""
        self._tries = tries
        self._failed_attempts = _SlidingWindow(MAX_FAILED_ATTEMPTS, FAILED_ATTEMPTS_SECONDS)
        self._attempts = _SlidingWindow(MAX_RESTARTS, RESTART_SECONDS)

    def record_attempt(self, now: float) -> None:
        """A try begins."""
        self._failed_attempts.record(now)
        self._attempts.record(now)

    def reset(self) -> None:
        """The session answered something: whatever happens next is no crash loop."""
        self.failures = 0
        self._failed_attempts.clear()

    def back_off_after_use(self, now: float) -> Delay:
        """A session that had been of use is lost."""
        self.reset()
        wait = self._attempts.wait(now)
        return Delay(wait, wait)

    def back_off_after_loss(self, now: float, jitter: float) -> Delay:
        """A session is lost that never answered anything; the first time that says little."""
        self.failures += 1
        return (
            Delay(0.0, 0.0)
            if self.failures == 1 and not self._failed_attempts.wait(now)
            else self._compute_delay(now, jitter)
        )

    def back_off_after_failure(self, now: float, jitter: float) -> Delay:
        """There was no session to be had. `chance` is between 0 and 1."""
        self.failures += 1
        return self._compute_delay(now, jitter)

    def _compute_delay(self, now: float, jitter: float) -> Delay:
        max_seconds = min(LAST_MAX_SECONDS, FIRST_MAX_SECONDS * 2.0 ** min(self.failures - 1, 30))
        on_demand = max(jitter * max_seconds, self._failed_attempts.wait(now), self._attempts.wait(now))
        if self.failures < self._tries:
            return Delay(on_demand, on_demand)
        return Delay(max(on_demand, GIVEN_UP_SECONDS * (1 + jitter) / 2), on_demand)


class _SlidingWindow:
    """So many within so many seconds, and no more."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._times: deque[float] = deque(maxlen=limit)
        self._limit = limit
        self._seconds = seconds

    def record(self, now: float) -> None:
        self._times.append(now)

    def clear(self) -> None:
        self._times.clear()

    def wait(self, now: float) -> float:
        """The seconds until there is room for one more."""
        return max(0.0, self._times[0] + self._seconds - now) if len(self._times) == self._limit else 0.0
