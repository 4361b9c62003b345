"""When a server is tried again: soon after an accident, seldom when it only crashes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from refdesk.downstream.connection.backoff import GIVEN_UP_SECONDS, RestartPolicy

chances = st.lists(st.floats(0, 1), min_size=40, max_size=40)


def tries_of(restarts: RestartPolicy, chances: list[float], *, asked: bool) -> list[float]:
    """When a server is tried that never comes to anything; `asked` is somebody who calls whenever that may help."""
    now, times = 0.0, []
    for jitter in chances:
        times.append(now)
        restarts.record_attempt(now)
        rest = restarts.back_off_after_failure(now, jitter)
        now += rest.on_demand if asked else rest.seconds
    return times


@given(chances, st.integers(1, 10), st.booleans())
def test_a_server_that_only_fails_is_tried_six_times_a_minute_at_most(
    chances: list[float], tries: int, asked: bool
) -> None:
    times = tries_of(RestartPolicy(tries), chances, asked=asked)
    assert all(later - earlier >= 60 - 1e-6 for earlier, later in zip(times, times[6:], strict=False))


@given(chances, st.integers(1, 10))
def test_no_rest_is_longer_than_a_minute(chances: list[float], tries: int) -> None:
    times = tries_of(RestartPolicy(tries), chances, asked=False)
    assert all(later - earlier <= GIVEN_UP_SECONDS + 1e-6 for earlier, later in pairwise(times))


def test_after_so_many_tries_it_rests_long_unless_it_is_asked_for() -> None:
    restarts = RestartPolicy(2)
    restarts.record_attempt(0)
    first = restarts.back_off_after_failure(0, 0.5)
    assert first.seconds == first.on_demand == 0.5
    restarts.record_attempt(1)
    second = restarts.back_off_after_failure(1, 0.5)
    assert (second.seconds, second.on_demand) == (45.0, 1.0)


def test_pauses_double_and_are_scattered() -> None:
    restarts = RestartPolicy(100)
    assert [restarts.back_off_after_failure(0, 1.0).seconds for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    assert restarts.back_off_after_failure(0, 0.1).seconds == 3.0


def test_the_first_loss_is_made_good_at_once_and_the_second_is_not() -> None:
    restarts = RestartPolicy(5)
    restarts.record_attempt(0)
    assert restarts.back_off_after_loss(0, 1.0).seconds == 0
    restarts.record_attempt(0)
    assert restarts.back_off_after_loss(0, 1.0).seconds == 2


def test_a_server_that_works_until_it_is_made_to_crash_is_back_within_a_second_on_the_average() -> None:
    restarts = RestartPolicy(5)
    now, times = 0.0, []
    for _ in range(100):
        times.append(now)
        restarts.record_attempt(now)
        now += restarts.back_off_after_use(now).seconds
    assert times[:5] == [0, 0, 0, 0, 0]
    assert 95 <= times[-1] <= 100
