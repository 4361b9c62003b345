"""Circuit breaker as a pure state machine: no clock, no lock, no waiting. Callers pass in the time.

The breaker is closed until a number of consecutive calls fail. It's then open for the cool-down and rejects every
call. After that it's half-open and admits a few trial calls. Enough successful trials close it. A failed one opens
it again, for twice as long as before up to a maximum.

Written by hand because no library admits exactly its trials, ignores cancelled calls and late results of old ones,
and is unaffected by changes of the system clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from refdesk.config.models import CircuitBreakerConfig

State = Literal["closed", "open", "half_open"]

Outcome = Literal["success", "failure", "answered", "unknown"]
"""Outcome of a call.

`answered` is a call that the dependency rejected as invalid. While the breaker is closed it's ignored, or invalid calls
would hide an outage. As a trial it's a success: the dependency responds again, and a client that only sends invalid
calls must not keep the breaker open. `unknown` is a cancelled call.
"""

MAX_COOL_DOWN_FACTOR = 4
"""The longest cool-down as a multiple of the first. After an hour's outage people wait for the dependency, and a trial
every few minutes costs it nothing."""

MIN_TRIAL_SECONDS = 60.0
"""Minimum time after which a trial without a result is given up. Calls have deadlines and end before. This is for lost
ones, which would leave the breaker half-open forever."""

TRIAL_RETRY_AFTER_SECONDS = 1.0
"""`retry_after` while a trial is in progress, which mostly ends soon."""


@dataclass(eq=False, slots=True)
class Permit:
    """Permission for a call, to be settled with its outcome. Immutable by convention: frozen dataclasses cost more."""

    generation: int
    started_at: float


class Breaker:
    """Breaker of a dependency. `now` must come from a monotonic clock."""

    def __init__(self, settings: CircuitBreakerConfig, *, trials: int = 1) -> None:
        self.state: State = "closed"
        self.failures = 0
        """Consecutive failed calls, as of when the breaker was last closed."""
        self._failure_threshold = settings.failure_threshold
        self._success_threshold = settings.success_threshold
        self._cool_down = settings.timeout_seconds
        self._slow_seconds = settings.slow_call_seconds or float("inf")
        self._max_trials = trials
        self._trial_seconds = max(settings.timeout_seconds, MIN_TRIAL_SECONDS)
        self._trials: set[Permit] = set()
        self._successes = 0
        self._cool_down_factor = 1
        self._open_until = 0.0
        # Of the state. The result of a call from an earlier generation is ignored.
        self._generation = 0

    def admit(self, now: float) -> Permit | None:
        """Return a permit for a call, which must be settled, or None if the breaker rejects it."""
        if self.state == "closed":
            return Permit(self._generation, now)
        if self.state == "open":
            if now < self._open_until:
                return None
            self._enter_state("half_open")
        if self._is_full(now):
            return None
        permit = Permit(self._generation, now)
        self._trials.add(permit)
        return permit

    def settle(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Record the outcome of a call. A slow call counts as a failure however it ended."""
        if permit.generation != self._generation:
            return
        if now - permit.started_at >= self._slow_seconds:
            outcome = "failure"
        if self.state == "closed":
            self._settle_call(outcome, now)
        else:
            self._trials.discard(permit)
            self._settle_trial(outcome, now)

    def close(self) -> None:
        """Close the breaker because the dependency is known to have recovered."""
        self.failures = 0
        if self.state != "closed":
            self._enter_state("closed")

    def state_at(self, now: float) -> State:
        """Return the state that the next call meets: half-open if the cool-down is over."""
        return "half_open" if self.state == "open" and now >= self._open_until else self.state

    def retry_after(self, now: float) -> float:
        """Return the seconds until a call may be admitted, 0 if it may be now."""
        if self.state == "open":
            return max(0.0, self._open_until - now)
        return TRIAL_RETRY_AFTER_SECONDS if self._is_full(now) else 0.0

    def _settle_call(self, outcome: Outcome, now: float) -> None:
        if outcome == "success":
            self.failures = 0
        elif outcome == "failure":
            self.failures += 1
            if self.failures >= self._failure_threshold:
                self._cool_down_factor = 1
                self._open(now)

    def _settle_trial(self, outcome: Outcome, now: float) -> None:
        if outcome == "failure":
            self._cool_down_factor = min(self._cool_down_factor * 2, MAX_COOL_DOWN_FACTOR)
            self._open(now)
        elif outcome != "unknown":
            self._successes += 1
            if self._successes >= self._success_threshold:
                self.failures = 0
                self._enter_state("closed")

    def _is_full(self, now: float) -> bool:
        """Return whether all trials are in use. Lost trials are dropped, but may still succeed."""
        if len(self._trials) >= self._max_trials:
            self._trials = {permit for permit in self._trials if now - permit.started_at < self._trial_seconds}
        return len(self._trials) >= self._max_trials

    def _open(self, now: float) -> None:
        self._open_until = now + self._cool_down * self._cool_down_factor
        self._enter_state("open")

    def _enter_state(self, state: State) -> None:
        self.state = state
        self._generation += 1
        self._successes = 0
        self._trials.clear()
