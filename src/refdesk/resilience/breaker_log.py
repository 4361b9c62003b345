"""What the log says of the things behind this server: which are left alone, which are back."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from refdesk.resilience.breaker import State
from refdesk.telemetry import LEVELS, Log


class BreakerLog:
    """A watcher of dependencies that writes down when one is left alone, and when it is back."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._states: dict[str, State] = {}

    def breaker_changed(self, name: str, state: State) -> None:
        """Write it down, if it is news."""
        before, self._states[name] = self._states.get(name, "closed"), state
        if before != state:
            level = "warning" if state == "open" else "info"
            self._log.events.log(LEVELS[level], "breaker.changed", dependency=name, before=before, state=state)

    def breaker_rejected(self, name: str) -> None:
        """Counted, and too many to be written down."""

    def retried(self, name: str) -> None:
        """Counted as well."""

    def asking(self, name: str, operation: str) -> AbstractContextManager[None]:
        """Counted too."""
        return nullcontext()


def tell_of_redis(log: Log, state: str, reason: str) -> None:
    """Write down that Redis is away, and what that means, or that it is back."""
    if state == "away":
        effect = "answers are made and limits are counted in this process alone"
        log.events.warning("redis.away", reason=reason, effect=effect)
    else:
        log.events.info("redis.back")
