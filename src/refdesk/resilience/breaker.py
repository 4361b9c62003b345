"""A circuit breaker as a pure state machine: no clock, no lock, no waiting; whoever uses it says what time it is.

Closed, until so many calls in a row have failed; open, and nothing passes, for the cool-down; then half-open, and a few
calls at a time try whether it is back. Enough trials that succeed close it. One that fails opens it again, for twice as
long as before, up to a bound.

Written by hand since no library was found that lets exactly its trials through, holds neither a cancelled call nor the
late result of an old one against anybody, and is not led astray when the clock of the machine is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from refdesk.config import CircuitBreakerConfig

State = Literal["closed", "open", "half_open"]

Outcome = Literal["success", "failure", "answered", "unknown"]
"""How a call ended. `answered` is a call that was wrong and was told so. It says nothing while the breaker is closed,
or those who ask for nonsense would hide an outage from it; as a trial it is a success, for somebody is there again, and
a caller who only asks for nonsense must not keep the breaker from closing. `unknown` is a call that was called off."""

MOST_COOL_DOWNS = 4
"""How many times the first cool-down the longest one is: a dependency that was away for an hour is missed by people who
wait, and a trial every few minutes costs it nothing."""

LEAST_TRIAL_SECONDS = 60.0
"""The least for which a trial keeps its place without coming back. Calls have deadlines and give it back before; this
is for those that are lost, which must not leave the breaker half-open for ever."""

TRIAL_PATIENCE_SECONDS = 1.0
"""What callers are asked to wait while a trial is under way: it ends when it ends, and that is mostly soon."""


@dataclass(eq=False, slots=True)
class Permit:
    """That a call may be made; given back with how it ended. Not to be changed, though not frozen, for its cost."""

    generation: int
    began: float


class Breaker:
    """The breaker of one dependency; `now` is always of the same clock, one that cannot be set."""

    def __init__(self, settings: CircuitBreakerConfig, *, trials: int = 1) -> None:
        self.state: State = "closed"
        self.failures = 0
        """How many calls have failed in a row, as of the time when it was last closed."""
        self._failure_threshold = settings.failure_threshold
        self._success_threshold = settings.success_threshold
        self._cool_down = settings.timeout_seconds
        self._slow = settings.slow_call_seconds or float("inf")
        self._most_trials = trials
        self._trial_seconds = max(settings.timeout_seconds, LEAST_TRIAL_SECONDS)
        self._trials: set[Permit] = set()
        self._successes = 0
        self._cool_downs = 1
        self._open_until = 0.0
        # Of the state: a result of a call that was begun in an earlier one says nothing about this one.
        self._generation = 0

    def admit(self, now: float) -> Permit | None:
        """Leave to make a call, which is to be settled; None while the dependency is left alone."""
        if self.state == "closed":
            return Permit(self._generation, now)
        if self.state == "open":
            if now < self._open_until:
                return None
            self._become("half_open")
        return self._trial(now)

    def settle(self, permit: Permit, outcome: Outcome, now: float) -> None:
        """Take the permit back. A call that took too long was slow however it ended, and that is a failure."""
        if permit.generation != self._generation:
            return
        if now - permit.began >= self._slow:
            outcome = "failure"
        if self.state == "closed":
            self._settle_call(outcome, now)
        else:
            self._trials.discard(permit)
            self._settle_trial(outcome, now)

    def close(self) -> None:
        """Somebody who knows says that it is back."""
        self.failures = 0
        if self.state != "closed":
            self._become("closed")

    def state_at(self, now: float) -> State:
        """The state as the next caller meets it: when the cool-down is over, that is half-open."""
        return "half_open" if self.state == "open" and now >= self._open_until else self.state

    def retry_after(self, now: float) -> float:
        """The seconds after which a call has a chance to pass; nothing when it has now."""
        if self.state == "open":
            return max(0.0, self._open_until - now)
        return TRIAL_PATIENCE_SECONDS if self._is_full(now) else 0.0

    def _settle_call(self, outcome: Outcome, now: float) -> None:
        if outcome == "success":
            self.failures = 0
        elif outcome == "failure":
            self.failures += 1
            if self.failures >= self._failure_threshold:
                self._cool_downs = 1
                self._open(now)

    def _settle_trial(self, outcome: Outcome, now: float) -> None:
        if outcome == "failure":
            self._cool_downs = min(self._cool_downs * 2, MOST_COOL_DOWNS)
            self._open(now)
        elif outcome != "unknown":
            self._successes += 1
            if self._successes >= self._success_threshold:
                self.failures = 0
                self._become("closed")

    def _trial(self, now: float) -> Permit | None:
        if self._is_full(now):
            return None
        permit = Permit(self._generation, now)
        self._trials.add(permit)
        return permit

    def _is_full(self, now: float) -> bool:
        """Whether all trials are under way; those that are lost have no place any more, but still may succeed."""
        if len(self._trials) >= self._most_trials:
            self._trials = {permit for permit in self._trials if now - permit.began < self._trial_seconds}
        return len(self._trials) >= self._most_trials

    def _open(self, now: float) -> None:
        self._open_until = now + self._cool_down * self._cool_downs
        self._become("open")

    def _become(self, state: State) -> None:
        self.state = state
        self._generation += 1
        self._successes = 0
        self._trials.clear()
