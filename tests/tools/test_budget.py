"""Rates by a clock that the test turns, and words that are not handed out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.errors import RateLimited
from refdesk.tools import budget
from refdesk.tools.budget import Blocklist, ReadingRate, TextBlocked


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


DOCUMENT = ("tenant", "doc")


def test_so_many_calls_a_minute_and_then_a_time_to_come_back() -> None:
    clock = Clock()
    rate = ReadingRate(2, 1000, now=clock)
    rate.admit(*DOCUMENT)
    clock.time += 20
    rate.admit(*DOCUMENT)
    with pytest.raises(RateLimited) as refused:
        rate.admit(*DOCUMENT)
    assert refused.value.retry_after == pytest.approx(40)
    clock.time += 40
    rate.admit(*DOCUMENT)


def test_so_many_tokens_a_minute() -> None:
    clock = Clock()
    rate = ReadingRate(100, 1000, now=clock)
    rate.admit(*DOCUMENT).tokens = 600
    clock.time += 30
    rate.admit(*DOCUMENT).tokens = 500
    with pytest.raises(RateLimited) as refused:
        rate.admit(*DOCUMENT)
    assert refused.value.retry_after == pytest.approx(30)
    clock.time += 30
    rate.admit(*DOCUMENT)


def test_what_is_under_way_counts_as_much_as_it_may_take() -> None:
    rate = ReadingRate(100, 1000, now=Clock())
    first = rate.admit(*DOCUMENT, reserve=600)
    rate.admit(*DOCUMENT, reserve=600)
    with pytest.raises(RateLimited):
        rate.admit(*DOCUMENT, reserve=600)
    first.tokens = 10
    rate.admit(*DOCUMENT, reserve=600)


def test_each_document_of_each_tenant_has_its_own_rate() -> None:
    rate = ReadingRate(1, 1000, now=Clock())
    rate.admit("a:b", "c")
    rate.admit("a", "b:c")
    with pytest.raises(RateLimited):
        rate.admit("a", "b:c")


def test_memory_is_bounded_and_nobody_is_pushed_out_of_debt_or_kept_out_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(budget, "MAX_DOCUMENTS", 50)
    clock = Clock()
    rate = ReadingRate(1, 1000, now=clock)
    for number in range(50):
        rate.admit("tenant", str(number))
    with pytest.raises(RateLimited, match="Too many documents"):
        rate.admit("tenant", "one more")
    with pytest.raises(RateLimited, match="This document"):
        rate.admit("tenant", "0")
    rate.admit("another", "doc")
    clock.time += 61
    rate.admit("tenant", "one more")


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 400)), max_size=60))
def test_no_minute_holds_more_than_is_allowed(reads: list[tuple[float, int]]) -> None:
    clock = Clock()
    rate = ReadingRate(5, 1000, now=clock)
    admitted: list[tuple[float, int]] = []
    for pause, tokens in reads:
        clock.time += pause
        waits = wait_for(rate, tokens)
        assert 0 <= waits <= 60
        if waits:
            continue
        admitted.append((clock.time, tokens))
        within = [spent for at, spent in admitted if at > clock.time - 60]
        assert len(within) <= 5
        assert sum(within[:-1]) < 1000


def wait_for(rate: ReadingRate, tokens: int) -> float:
    """How long a call has to wait; none when it was let in."""
    try:
        rate.admit(*DOCUMENT).tokens = tokens
    except RateLimited as refused:
        return refused.retry_after or 0
    return 0


def test_a_blocked_word_is_refused_in_any_dress() -> None:
    blocklist = Blocklist(["Project Zed"], "refuse")
    for text in ("about project zed.", "PROJECT ZED", "ｐｒｏｊｅｃｔ ｚｅｄ", "pro\u200bject zed"):
        with pytest.raises(TextBlocked):
            blocklist.screened(text)
    assert blocklist.screened("project zedekiah") == "project zedekiah"


def test_a_blocked_word_is_redacted_where_that_is_set() -> None:
    blocklist = Blocklist(["zed", "alpha"], "redact")
    assert blocklist.screened("Zed met ALPHA and zedekiah") == "[redacted] met [redacted] and zedekiah"
    with pytest.raises(TextBlocked):
        blocklist.screened("ｚｅｄ")


def test_without_keywords_nothing_is_changed() -> None:
    assert Blocklist([], "refuse").screened("anything") == "anything"
