"""Rates by a clock that the test turns, and words that are not handed out."""

from __future__ import annotations

import pytest

from refdesk.errors import RateLimited
from refdesk.resilience.limits import Charge, Limit, MemoryRateLimiter
from refdesk.tools.budget import Blocklist, DocumentRateLimiter, TextBlocked

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


DOCUMENT = ("tenant", "doc")


def reading_rate(calls: int, tokens: int, clock: Clock, **bounds: int) -> DocumentRateLimiter:
    return DocumentRateLimiter(calls, tokens, MemoryRateLimiter(now=clock, **bounds))


async def read(rate: DocumentRateLimiter, tokens: int = 0, *, tenant: str = "tenant", document: str = "doc") -> None:
    async with await rate.admit(tenant, document, tokens) as reading:
        reading.spent = tokens


async def test_so_many_calls_a_minute_and_then_a_time_to_come_back() -> None:
    clock = Clock()
    rate = reading_rate(2, 1000, clock)
    await read(rate)
    clock.time += 20
    await read(rate)
    with pytest.raises(RateLimited, match="2 calls and 1000 tokens per minute") as refused:
        await read(rate)
    assert refused.value.retry_after == 10
    clock.time += 10
    await read(rate)


async def test_a_user_who_is_called_as_a_document_is_has_a_rate_of_his_own() -> None:
    """All processes count in one place, and there users and documents are side by side."""
    shared = MemoryRateLimiter(now=Clock())
    await shared.take([Charge((*DOCUMENT, "calls"), Limit(1)), Charge((*DOCUMENT, "tokens"), Limit(1))])
    await read(DocumentRateLimiter(1, 1000, shared))


async def test_so_many_tokens_a_minute() -> None:
    clock = Clock()
    rate = reading_rate(100, 1000, clock)
    await read(rate, 600)
    await read(rate, 500)
    with pytest.raises(RateLimited) as refused:
        await read(rate)
    assert refused.value.retry_after == pytest.approx(6.06)
    clock.time += 6.06
    await read(rate)


async def test_what_is_under_way_counts_as_much_as_it_may_take() -> None:
    rate = reading_rate(100, 1000, Clock())
    async with await rate.admit(*DOCUMENT, 600) as first:
        await rate.admit(*DOCUMENT, 600)
        with pytest.raises(RateLimited):
            await rate.admit(*DOCUMENT, 600)
        first.spent = 10
    await rate.admit(*DOCUMENT, 600)


async def test_a_call_that_may_take_more_than_a_minutes_tokens_waits_no_longer_than_a_minute() -> None:
    rate = reading_rate(100, 1000, Clock())
    await rate.admit(*DOCUMENT, 50_000)
    with pytest.raises(RateLimited) as refused:
        await rate.admit(*DOCUMENT, 50_000)
    assert 0 < (refused.value.retry_after or 0) <= 60


async def test_each_document_of_each_tenant_has_its_own_rate() -> None:
    rate = reading_rate(1, 1000, Clock())
    await read(rate, tenant="a:b", document="c")
    await read(rate, tenant="a", document="b:c")
    with pytest.raises(RateLimited):
        await read(rate, tenant="a", document="b:c")


async def test_a_tenant_that_reads_too_many_documents_waits_and_nobody_else_does() -> None:
    clock = Clock()
    rate = reading_rate(1, 1000, clock, max_of_one=50)
    for number in range(50):
        await read(rate, document=str(number))
    with pytest.raises(RateLimited, match="Too many documents"):
        await read(rate, document="one more")
    with pytest.raises(RateLimited, match="of this document"):
        await read(rate, document="0")
    await read(rate, tenant="another")
    clock.time += 61
    await read(rate, document="one more")


def test_a_blocked_word_is_refused_in_any_dress() -> None:
    blocklist = Blocklist(["Project Zed"], "refuse")
    for text in ("about project zed.", "PROJECT ZED", "ｐｒｏｊｅｃｔ ｚｅｄ", "pro\u200bject zed"):
        with pytest.raises(TextBlocked):
            blocklist.screen(text)
    assert blocklist.screen("project zedekiah") == "project zedekiah"


def test_a_blocked_word_is_redacted_where_that_is_set() -> None:
    blocklist = Blocklist(["zed", "alpha"], "redact")
    assert blocklist.screen("Zed met ALPHA and zedekiah") == "[redacted] met [redacted] and zedekiah"
    with pytest.raises(TextBlocked):
        blocklist.screen("ｚｅｄ")


def test_without_keywords_nothing_is_changed() -> None:
    assert Blocklist([], "refuse").screen("anything") == "anything"
