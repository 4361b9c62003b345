"""When a server is tried again: soon after an accident, seldom when it only crashes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from refdesk.downstream.connection.backoff import LONG_REST_SECONDS, Restarts

chances = st.lists(st.floats(0, 1), min_size=40, max_size=40)


def tries_of(restarts: Restarts, chances: list[float], *, asked: bool) -> list[float]:
    """When a server is tried that never comes to anything; `asked` is somebody who calls whenever that may help."""
    now, times = 0.0, []
    for chance in chances:
        times.append(now)
        restarts.began(now)
        rest = restarts.after_failure(now, chance)
        now += rest.least if asked else rest.seconds
    return times


@given(chances, st.integers(1, 10), st.booleans())
def test_a_server_that_only_fails_is_tried_six_times_a_minute_at_most(
    chances: list[float], tries: int, asked: bool
) -> None:
    times = tries_of(Restarts(tries), chances, asked=asked)
    assert all(later - earlier >= 60 - 1e-6 for earlier, later in zip(times, times[6:], strict=False))


@given(chances, st.integers(1, 10))
def test_no_rest_is_longer_than_a_minute(chances: list[float], tries: int) -> None:
    times = tries_of(Restarts(tries), chances, asked=False)
    assert all(later - earlier <= LONG_REST_SECONDS + 1e-6 for earlier, later in pairwise(times))


def test_after_so_many_tries_it_rests_long_unless_it_is_asked_for() -> None:
    restarts = Restarts(2)
    restarts.began(0)
    first = restarts.after_failure(0, 0.5)
    assert first.seconds == first.least == 0.5
    restarts.began(1)
    second = restarts.after_failure(1, 0.5)
    assert (second.seconds, second.least) == (45.0, 1.0)


def test_pauses_double_and_are_scattered() -> None:
    restarts = Restarts(100)
    assert [restarts.after_failure(0, 1.0).seconds for _ in range(6)] == [1, 2, 4, 8, 16, 30]
    assert restarts.after_failure(0, 0.1).seconds == 3.0


def test_the_first_loss_is_made_good_at_once_and_the_second_is_not() -> None:
    restarts = Restarts(5)
    restarts.began(0)
    assert restarts.after_loss(0, 1.0).seconds == 0
    restarts.began(0)
    assert restarts.after_loss(0, 1.0).seconds == 2


def test_a_server_that_works_until_it_is_made_to_crash_is_back_within_a_second_on_the_average() -> None:
    restarts = Restarts(5)
    now, times = 0.0, []
    for _ in range(100):
        times.append(now)
        restarts.began(now)
        now += restarts.after_use(now).seconds
    assert times[:5] == [0, 0, 0, 0, 0]
    assert 95 <= times[-1] <= 100
