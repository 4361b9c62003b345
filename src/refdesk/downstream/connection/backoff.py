"""When a server that was lost, or could not be reached, is tried again. No clock and no waiting: whoever uses it says
what time it is."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FIRST_CEILING_SECONDS = 1.0
"""The most that is waited after the first failure; twice that after the second, and so on."""

LAST_CEILING_SECONDS = 30.0
"""Where the doubling ends."""

LONG_REST_SECONDS = 60.0
"""The most that is waited, once trying has been given up, before a server that nobody asks for is tried again."""

MOST_FUTILE_TRIES, FUTILE_SECONDS = 6, 60.0
"""What a server that only crashes may cost, however the dice of the pauses fall: a start of a process each."""

MOST_RESTARTS, RESTART_SECONDS = 5, 5.0
"""What a server may cost that works until somebody makes it crash: at once a few times, then one each second."""


@dataclass(frozen=True, slots=True)
class Rest:
    """How long a server is let alone."""

    seconds: float
    """Until it is tried again by itself."""
    least: float
    """Until it is tried because somebody asks for it."""


class Restarts:
    """The tries of one server."""

    def __init__(self, tries: int) -> None:
        self.failures = 0
        """How many tries in a row came to nothing."""
        self._tries = tries
        self._futile = _Window(MOST_FUTILE_TRIES, FUTILE_SECONDS)
        self._all = _Window(MOST_RESTARTS, RESTART_SECONDS)

    def began(self, now: float) -> None:
        """A try begins."""
        self._futile.note(now)
        self._all.note(now)

    def was_of_use(self) -> None:
        """The session answered something: whatever happens next is no crash loop."""
        self.failures = 0
        self._futile.clear()

    def after_use(self, now: float) -> Rest:
        """A session that had been of use is lost."""
        self.was_of_use()
        wait = self._all.wait(now)
        return Rest(wait, wait)

    def after_loss(self, now: float, chance: float) -> Rest:
        """A session is lost that never answered anything; the first time that says little."""
        self.failures += 1
        return Rest(0.0, 0.0) if self.failures == 1 and not self._futile.wait(now) else self._back_off(now, chance)

    def after_failure(self, now: float, chance: float) -> Rest:
        """There was no session to be had. `chance` is between 0 and 1."""
        self.failures += 1
        return self._back_off(now, chance)

    def _back_off(self, now: float, chance: float) -> Rest:
        ceiling = min(LAST_CEILING_SECONDS, FIRST_CEILING_SECONDS * 2.0 ** min(self.failures - 1, 30))
        least = max(chance * ceiling, self._futile.wait(now), self._all.wait(now))
        if self.failures < self._tries:
            return Rest(least, least)
        return Rest(max(least, LONG_REST_SECONDS * (1 + chance) / 2), least)


class _Window:
    """So many within so many seconds, and no more."""

    def __init__(self, most: int, seconds: float) -> None:
        self._times: deque[float] = deque(maxlen=most)
        self._most = most
        self._seconds = seconds

    def note(self, now: float) -> None:
        self._times.append(now)

    def clear(self) -> None:
        self._times.clear()

    def wait(self, now: float) -> float:
        """The seconds until there is room for one more."""
        return max(0.0, self._times[0] + self._seconds - now) if len(self._times) == self._most else 0.0
