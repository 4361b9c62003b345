"""Logs circuit breaker transitions and Redis outages."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from refdesk.resilience.breaker import State
from refdesk.telemetry import LEVELS, Log


class BreakerLog:
    """Dependency listener that logs state changes of breakers."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._states: dict[str, State] = {}

    def on_breaker_change(self, name: str, state: State) -> None:
        """Log the state if it has changed."""
        before, self._states[name] = self._states.get(name, "closed"), state
        if before != state:
            level = "warning" if state == "open" else "info"
            self._log.events.log(LEVELS[level], "breaker.changed", dependency=name, before=before, state=state)

    def on_breaker_rejection(self, name: str) -> None:
        """Ignore: counted by the metrics, too many to log."""

    def on_retry(self, name: str) -> None:
        """Ignore: counted by the metrics."""

    def asking(self, name: str, operation: str) -> AbstractContextManager[None]:
        """Ignore: counted by the metrics."""
        return nullcontext()


def log_redis_state(log: Log, state: str, reason: str) -> None:
    """Log that Redis is down, with the consequences, or that it has recovered."""
    if state == "away":
        effect = "answers are made and limits are counted in this process alone"
        log.events.warning("redis.away", reason=reason, effect=effect)
    else:
        log.events.info("redis.back")
