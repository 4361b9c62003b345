"""The breaker by itself: its rules one by one, and any history of calls and pauses against a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from refdesk.config.models import CircuitBreakerConfig
from refdesk.resilience.breaker import MAX_COOL_DOWN_FACTOR, MIN_TRIAL_SECONDS, Breaker, Outcome, Permit, State

COOL_DOWN = 20.0


def breaker(*, trials: int = 1, **given: Any) -> Breaker:
    return Breaker(CircuitBreakerConfig.model_validate({"timeout_seconds": COOL_DOWN, **given}), trials=trials)


def call(tested: Breaker, outcome: Outcome, now: float = 0.0, *, seconds: float = 0.0) -> bool:
    """Make a call that ends so, and say whether it was let through."""
    permit = tested.admit(now)
    if permit is None:
        return False
    tested.settle(permit, outcome, now + seconds)
    return True


def make_open_breaker(now: float = 0.0, **given: Any) -> Breaker:
    tested = breaker(**given)
    while tested.state == "closed":
        assert call(tested, "failure", now)
    return tested


def trial(tested: Breaker, now: float) -> Permit:
    permit = tested.admit(now)
    assert permit is not None
    return permit


def test_it_opens_after_five_failures_in_a_row() -> None:
    tested = breaker()
    assert [call(tested, "failure") for _ in range(6)] == [True] * 5 + [False]
    assert (tested.state, tested.failures, tested.retry_after(5.0)) == ("open", 5, 15.0)


def test_a_success_between_failures_begins_the_count_anew() -> None:
    tested = breaker()
    outcomes: list[Outcome] = [*["failure"] * 4, "success", *["failure"] * 4]  # type: ignore[list-item]
    assert all(call(tested, outcome) for outcome in outcomes)
    assert (tested.state, tested.failures) == ("closed", 4)


@pytest.mark.parametrize("outcome", ["answered", "unknown"])
def test_while_it_is_closed_a_wrong_call_and_one_called_off_count_neither_way(outcome: Outcome) -> None:
    tested = breaker()
    for _ in range(4):
        assert call(tested, "failure")
        assert call(tested, outcome)
    assert (tested.state, tested.failures) == ("closed", 4)
    assert call(tested, "failure")
    assert tested.state == "open"


def test_nothing_passes_before_the_cool_down_is_over_and_one_trial_after_it() -> None:
    tested = make_open_breaker()
    assert tested.admit(COOL_DOWN - 0.001) is None
    assert tested.state_at(COOL_DOWN - 0.001) == "open"
    assert tested.state_at(COOL_DOWN) == "half_open"
    assert [tested.admit(COOL_DOWN) is not None for _ in range(3)] == [True, False, False]
    assert tested.retry_after(COOL_DOWN) > 0


def test_a_thousand_callers_find_exactly_the_trials_that_there_are() -> None:
    tested = make_open_breaker(trials=3)
    assert sum(tested.admit(COOL_DOWN) is not None for _ in range(1000)) == 3


def test_two_successful_trials_close_it_and_the_count_is_new() -> None:
    tested = make_open_breaker()
    assert call(tested, "success", COOL_DOWN)
    assert tested.state_at(COOL_DOWN) == "half_open"
    assert call(tested, "success", COOL_DOWN)
    assert (tested.state, tested.failures) == ("closed", 0)


def test_a_wrong_call_as_a_trial_shows_that_somebody_is_there() -> None:
    tested = make_open_breaker(success_threshold=1)
    assert call(tested, "answered", COOL_DOWN)
    assert tested.state == "closed"


def test_a_trial_that_was_called_off_gives_its_place_back_and_decides_nothing() -> None:
    tested = make_open_breaker(success_threshold=1)
    assert call(tested, "unknown", COOL_DOWN)
    assert tested.state_at(COOL_DOWN) == "half_open"
    assert call(tested, "success", COOL_DOWN)
    assert tested.state == "closed"


def test_each_trial_that_fails_doubles_the_cool_down_up_to_a_bound() -> None:
    tested, now, waits = make_open_breaker(), 0.0, []
    for _ in range(5):
        waits.append(tested.retry_after(now))
        now += waits[-1]
        assert call(tested, "failure", now)
    assert [wait / COOL_DOWN for wait in waits] == [1, 2, 4, 4, 4]
    assert MAX_COOL_DOWN_FACTOR == 4


def test_the_cool_down_is_short_again_once_it_was_closed() -> None:
    tested = make_open_breaker(success_threshold=1)
    assert call(tested, "failure", COOL_DOWN)
    later = COOL_DOWN * 3
    assert call(tested, "success", later)
    while tested.state == "closed":
        assert call(tested, "failure", later)
    assert tested.retry_after(later) == COOL_DOWN


def test_several_trials_that_fail_together_double_it_once() -> None:
    tested = make_open_breaker(trials=3)
    trials = [trial(tested, COOL_DOWN) for _ in range(3)]
    for permit in trials:
        tested.settle(permit, "failure", COOL_DOWN)
    assert tested.retry_after(COOL_DOWN) == 2 * COOL_DOWN


def test_trials_of_last_time_take_no_place_this_time() -> None:
    tested = make_open_breaker(trials=2)
    lost, failed = trial(tested, COOL_DOWN), trial(tested, COOL_DOWN)
    tested.settle(failed, "failure", COOL_DOWN)
    assert [tested.admit(3 * COOL_DOWN) is not None for _ in range(3)] == [True, True, False]
    tested.settle(lost, "unknown", 3 * COOL_DOWN)
    assert tested.admit(3 * COOL_DOWN) is None


@pytest.mark.parametrize("outcome", ["success", "failure"])
def test_the_late_result_of_an_old_call_decides_nothing(outcome: Outcome) -> None:
    tested = breaker(success_threshold=1)
    old = trial(tested, 0.0)
    while tested.state == "closed":
        assert call(tested, "failure")
    tested.settle(old, outcome, 1.0)
    assert (tested.state, tested.retry_after(0.0)) == ("open", COOL_DOWN)
    current = trial(tested, COOL_DOWN)
    tested.settle(old, outcome, COOL_DOWN)
    assert tested.state == "half_open"
    tested.settle(current, "success", COOL_DOWN)
    tested.settle(old, outcome, COOL_DOWN)
    assert (tested.state, tested.failures) == ("closed", 0)


def test_a_trial_that_is_lost_leaves_its_place_to_another_and_may_still_succeed() -> None:
    tested = make_open_breaker(success_threshold=1, timeout_seconds=1.0)
    lost = trial(tested, 1.0)
    assert tested.admit(1.0 + MIN_TRIAL_SECONDS - 0.001) is None
    assert tested.admit(1.0 + MIN_TRIAL_SECONDS) is not None
    tested.settle(lost, "success", 1.0 + MIN_TRIAL_SECONDS)
    assert tested.state == "closed"


@pytest.mark.parametrize("outcome", ["success", "answered", "unknown"])
def test_a_call_that_takes_too_long_is_a_failure_however_it_ends(outcome: Outcome) -> None:
    tested = breaker(slow_call_seconds=2.0, failure_threshold=2)
    assert call(tested, "success", seconds=1.999)
    assert tested.failures == 0
    assert call(tested, outcome, seconds=2.0)
    assert call(tested, outcome, seconds=2.0)
    assert tested.state == "open"


def test_slow_calls_do_not_count_unless_that_is_set() -> None:
    tested = breaker(failure_threshold=1)
    assert call(tested, "success", seconds=1e6)
    assert tested.state == "closed"


@dataclass
class Model:
    """What a breaker is, put as plainly as can be: the results that count since the state was entered."""

    failure_threshold: int
    success_threshold: int
    slow: float
    state: State = "closed"
    entered: float = 0.0
    cool_downs: int = 1
    results: list[Outcome] = field(default_factory=list)

    def enter(self, state: State, now: float) -> None:
        self.state, self.entered, self.results = state, now, []

    @property
    def ends_cool_down(self) -> float:
        return self.entered + COOL_DOWN * self.cool_downs

    def take(self, outcome: Outcome, now: float) -> None:
        self.results.append(outcome)
        if self.state == "half_open":
            if outcome == "failure":
                self.cool_downs = min(2 * self.cool_downs, MAX_COOL_DOWN_FACTOR)
                self.enter("open", now)
            elif sum(result in ("success", "answered") for result in self.results) == self.success_threshold:
                self.enter("closed", now)
        else:
            counted = [result for result in self.results if result in ("success", "failure")]
            if counted[-self.failure_threshold :] == ["failure"] * self.failure_threshold:
                self.cool_downs = 1
                self.enter("open", now)


class Histories(RuleBasedStateMachine):
    """Calls that begin and end in any order, between pauses of any length."""

    @initialize(trials=st.integers(1, 3), failures=st.integers(1, 4), successes=st.integers(1, 3), slow=st.booleans())
    def begin(self, trials: int, failures: int, successes: int, slow: bool) -> None:
        self.now = 1000.0
        self.trials = trials
        seconds = 5.0 if slow else 0.0
        self.tested = breaker(
            trials=trials, failure_threshold=failures, success_threshold=successes, slow_call_seconds=seconds
        )
        self.model = Model(failures, successes, seconds or float("inf"), entered=self.now)
        self.under_way: list[tuple[Permit, float, int]] = []
        self.states = 0

    def under_trial(self) -> int:
        """Calls of this half-open state that have not come back and are not lost."""
        since = self.now - MIN_TRIAL_SECONDS
        return sum(state == self.states and started_at > since for _, started_at, state in self.under_way)

    @rule()
    def call(self) -> None:
        permit = self.tested.admit(self.now)
        if self.model.state == "open" and self.now >= self.model.ends_cool_down:
            self.model.enter("half_open", self.now)
            self.states += 1
        match self.model.state:
            case "closed":
                assert permit is not None
            case "open":
                assert permit is None
            case "half_open":
                assert (permit is not None) == (self.under_trial() < self.trials)
        if permit is None:
            assert self.tested.retry_after(self.now) > 0
        else:
            self.under_way.append((permit, self.now, self.states))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), outcome=st.sampled_from(["success", "failure", "failure", "answered", "unknown"]))
    def settle_call(self, data: st.DataObject, outcome: Outcome) -> None:
        permit, started_at, state = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.tested.settle(permit, outcome, self.now)
        if state != self.states:
            return
        seen: Outcome = "failure" if self.now - started_at >= self.model.slow else outcome
        before = self.model.state
        self.model.take(seen, self.now)
        self.states += self.model.state != before

    @rule(seconds=st.sampled_from([0.0, 0.5, 5.0, COOL_DOWN - 1, COOL_DOWN, MIN_TRIAL_SECONDS, 10 * COOL_DOWN]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def is_in_the_models_state(self) -> None:
        assert self.tested.state == self.model.state
        if self.model.state == "open":
            assert self.tested.retry_after(self.now) == max(0.0, self.model.ends_cool_down - self.now)

    @invariant()
    def lets_no_more_than_its_trials_out(self) -> None:
        if self.tested.state == "half_open":
            assert self.under_trial() <= self.trials

    def teardown(self) -> None:
        """Whatever happened: when the dependency is well again, the breaker closes."""
        for _ in range(10):
            self.now += MAX_COOL_DOWN_FACTOR * COOL_DOWN + MIN_TRIAL_SECONDS
            call(self.tested, "success", self.now)
        assert self.tested.state == "closed"


def test_any_history_is_as_the_model_says() -> None:
    run_state_machine_as_test(Histories, settings=settings(max_examples=150, stateful_step_count=60, deadline=None))
