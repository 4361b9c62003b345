"""When a call is made once more: pauses, what a service asks for, and the budget that bounds them all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from refdesk.resilience.dependency import (
    FIRST_PAUSE_SECONDS,
    RETRY_RESERVE,
    RETRY_SHARE,
    RetryBudget,
    compute_pause,
    parse_retry_after,
)

PATIENCE = 10.0


def test_the_longest_pause_doubles_with_each_retry_up_to_the_callers_patience() -> None:
    longest = [compute_pause(retry, None, PATIENCE, 1.0) for retry in range(1, 9)]
    assert longest == [min(PATIENCE, FIRST_PAUSE_SECONDS * 2**retry) for retry in range(8)]


@given(st.integers(1, 500), st.floats(0, 1), st.floats(0, 100))
def test_a_pause_is_anywhere_between_nothing_and_the_longest(retry: int, chance: float, patience: float) -> None:
    pause = compute_pause(retry, None, patience, chance)
    assert pause is not None
    assert pause == pytest.approx(chance * (compute_pause(retry, None, patience, 1.0) or 0))
    assert 0 <= pause <= patience


def test_what_the_service_asks_for_is_waited_and_some_more_so_that_not_all_come_together() -> None:
    assert compute_pause(1, 7.0, PATIENCE, 0.0) == 7.0
    assert compute_pause(1, 7.0, PATIENCE, 1.0) == 7.0 + FIRST_PAUSE_SECONDS


def test_a_service_that_asks_for_more_than_the_callers_patience_is_not_asked_again() -> None:
    assert compute_pause(1, PATIENCE, PATIENCE, 0.5) is not None
    assert compute_pause(1, PATIENCE + 0.001, PATIENCE, 0.5) is None


@pytest.mark.parametrize(("header", "seconds"), [
    ("7", 7.0),
    (" 0.5 ", 0.5),
    ("0", 0.0),
    ("999999999", 3600.0),
    ("99999999999", None),
    ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ("-1", None),
    ("nan", None),
    ("1e9", None),
    ("٣", None),
    ("", None),
    (None, None),
])  # fmt: skip
def test_the_seconds_of_a_retry_after_header_are_believed_up_to_an_hour(
    header: str | None, seconds: float | None
) -> None:
    assert parse_retry_after(header) == seconds


def test_a_dependency_that_is_down_gets_a_tenth_more_calls_and_the_reserve() -> None:
    budget, retries = RetryBudget(), 0
    for _ in range(1000):
        budget.count_call()
        retries += sum(budget.take_retry() for _ in range(3))
    assert retries == pytest.approx(RETRY_RESERVE + 1000 * RETRY_SHARE, abs=1)


class Budgets(RuleBasedStateMachine):
    """Calls and retries in any order."""

    @initialize()
    def begin(self) -> None:
        self.budget = RetryBudget()
        self.calls = self.retries = 0

    @rule(count=st.integers(1, 300))
    def call(self, count: int) -> None:
        self.calls += count
        for _ in range(count):
            self.budget.count_call()

    @rule(wanted=st.integers(1, 30))
    def retry(self, wanted: int) -> None:
        taken = sum(self.budget.take_retry() for _ in range(wanted))
        self.retries += taken
        assert taken <= RETRY_RESERVE
        assert taken == wanted or not self.budget.take_retry()

    @invariant()
    def retries_are_never_more_than_their_share(self) -> None:
        assert self.retries <= RETRY_RESERVE + self.calls * RETRY_SHARE + 1e-6

    def teardown(self) -> None:
        """However much was spent: enough calls bring the whole reserve back, and no more than that."""
        for _ in range(round(RETRY_RESERVE / RETRY_SHARE) + 1):
            self.budget.count_call()
        assert sum(self.budget.take_retry() for _ in range(100)) == RETRY_RESERVE


def test_any_history_stays_within_the_budget() -> None:
    run_state_machine_as_test(Budgets, settings=settings(max_examples=50, stateful_step_count=30, deadline=None))
