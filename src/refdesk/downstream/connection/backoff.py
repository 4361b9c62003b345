"""Restart policy: when to reconnect to a server that was lost or unreachable. No clock: callers pass the time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_MAX_SECONDS = 1.0
"""Upper bound of the delay after the first failure. It doubles with each further one."""

LAST_MAX_SECONDS = 30.0
"""Where the doubling stops."""

GIVEN_UP_SECONDS = 60.0
"""Longest delay between attempts once `connect_tries` is used up and nobody calls the server."""

MAX_FAILED_ATTEMPTS, FAILED_ATTEMPTS_SECONDS = 6, 60.0
"""Limit for a server that only crashes, whatever the jitter: each attempt starts a process."""

MAX_RESTARTS, RESTART_SECONDS = 5, 5.0
"""Limit for a server that works until a caller makes it crash: a few restarts at once, then one per second."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Delay before the next attempt."""

    seconds: float
    """Until the next attempt without a call."""
    on_demand: float
    """Until a call may trigger an attempt."""


class RestartPolicy:
    """Reconnection attempts of one server, with exponential backoff and jitter."""

    def __init__(self, tries: int) -> None:
        self.failures = 0
        """Consecutive failed attempts."""
        self._tries = tries
        self._failed_attempts = SlidingWindow(MAX_FAILED_ATTEMPTS, FAILED_ATTEMPTS_SECONDS)
        self._attempts = SlidingWindow(MAX_RESTARTS, RESTART_SECONDS)

    def record_attempt(self, now: float) -> None:
        """Record the start of an attempt."""
        self._failed_attempts.append(now)
        self._attempts.append(now)

    def reset(self) -> None:
        """Reset the failures: the session answered something, so this is no crash loop."""
        self.failures = 0
        self._failed_attempts.clear()

    def back_off_after_use(self, now: float) -> Delay:
        """Return the delay after losing a session that had answered something."""
        self.reset()
        wait = self._attempts.wait(now)
        return Delay(wait, wait)

    def back_off_after_loss(self, now: float, jitter: float) -> Delay:
        """Return the delay after losing a session that never answered. The first loss is retried at once."""
        delay = self.back_off_after_failure(now, jitter)
        is_first = self.failures == 1 and not self._failed_attempts.wait(now)
        return Delay(0.0, 0.0) if is_first else delay

    def back_off_after_failure(self, now: float, jitter: float) -> Delay:
        """Return the delay after a failed attempt. `jitter` is between 0 and 1."""
        self.failures += 1
        max_seconds = min(LAST_MAX_SECONDS, FIRST_MAX_SECONDS * 2.0 ** min(self.failures - 1, 30))
        on_demand = max(jitter * max_seconds, self._failed_attempts.wait(now), self._attempts.wait(now))
        if self.failures < self._tries:
            return Delay(on_demand, on_demand)
        return Delay(max(on_demand, GIVEN_UP_SECONDS * (1 + jitter) / 2), on_demand)


class SlidingWindow(deque[float]):
    """Times of the last events, with a limit for their number within a time window."""

    def __init__(self, limit: int, seconds: float) -> None:
        super().__init__(maxlen=limit)
        self._seconds = seconds

    def wait(self, now: float) -> float:
        """Return the seconds until another event is allowed."""
        return max(0.0, self[0] + self._seconds - now) if len(self) == self.maxlen else 0.0
