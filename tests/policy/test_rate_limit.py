"""The policy around handlers that do as the test needs, by a clock that the test turns."""

from __future__ import annotations

import asyncio

import pytest

from refdesk.calls import ANONYMOUS, Answer, Call, Caller, Handler, TenantId, UserId, chain, text_content
from refdesk.config.models import RateLimitConfig
from refdesk.errors import EngineError, RateLimited
from refdesk.policy.rate_limit import EXPECTED_TOKENS, MAX_COUNTED_LENGTH, RateLimit, count_answer_tokens, has_limits
from refdesk.resilience.limits import MemoryRateLimiter
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def caller(user: str, tenant: str = "default") -> Caller:
    return Caller(UserId(user), TenantId(tenant), authenticated=True)


def call(who: Caller = ANONYMOUS, method: str = "tools/call") -> Call:
    return Call(method, {"name": "echo"}, who)


def saying(text: str) -> Handler:
    async def answer(call: Call) -> Answer:
        return Answer({"content": [text_content(text)]})

    return answer


def make_limited_handler(clock: Clock, handler: Handler | None = None, **settings: int) -> Handler:
    policy = RateLimit(RateLimitConfig.model_validate(settings), MemoryRateLimiter(now=clock), now=clock)
    return chain([policy], handler or saying("hello"))


async def let_in(handle: Handler, one: Call, times: int) -> int:
    """How many of so many calls are let in, one after the other."""
    return sum([await is_let_in(handle, one) for _ in range(times)])


async def is_let_in(handle: Handler, one: Call) -> bool:
    try:
        await handle(one)
    except RateLimited:
        return False
    return True


def test_without_a_limit_the_policy_is_not_needed() -> None:
    assert not has_limits(RateLimitConfig())
    assert has_limits(RateLimitConfig(calls=1))
    assert has_limits(RateLimitConfig(tokens=1))
    assert has_limits(RateLimitConfig(total_calls=1))


async def test_each_caller_has_a_rate_of_its_own() -> None:
    clock = Clock()
    handle = make_limited_handler(clock, calls=3)
    assert await let_in(handle, call(caller("anna")), 10) == 3
    assert await let_in(handle, call(caller("bert")), 10) == 3
    assert await let_in(handle, call(caller("anna", "other tenant")), 10) == 3
    clock.time += 20
    assert await let_in(handle, call(caller("anna")), 10) == 1


async def test_tenant_and_user_are_not_mixed_up() -> None:
    handle = make_limited_handler(Clock(), calls=1)
    assert await let_in(handle, call(caller("c", "a:b")), 2) == 1
    assert await let_in(handle, call(caller("b:c", "a")), 2) == 1


async def test_a_refusal_says_what_the_limit_is_and_when_to_come_back() -> None:
    clock = Clock()
    handle = make_limited_handler(clock, calls=3)
    await let_in(handle, call(), 3)
    clock.time += 5
    with pytest.raises(RateLimited) as refused:
        await handle(call())
    assert refused.value.detail == "Rate limit reached: 3 calls per minute. Try again in 15 s."
    assert refused.value.data == {
        "type": "RateLimited", "detail": refused.value.detail, "retryable": True, "retry_after": 15.0,
    }  # fmt: skip
    assert refused.value.code == -32004


async def test_all_callers_share_what_there_is_in_all() -> None:
    handle = make_limited_handler(Clock(), total_calls=5)
    assert sum([await let_in(handle, call(caller(str(number))), 2) for number in range(5)]) == 5
    with pytest.raises(RateLimited, match="of the server reached: 5 calls per minute"):
        await handle(call(caller("late")))


async def test_one_callers_flood_does_not_use_up_what_all_share() -> None:
    handle = make_limited_handler(Clock(), calls=2, total_calls=5)
    assert await let_in(handle, call(caller("flood")), 1000) == 2
    assert await let_in(handle, call(caller("anna")), 10) == 2
    assert await let_in(handle, call(caller("bert")), 10) == 1
    with pytest.raises(RateLimited, match="of the server"):
        await handle(call(caller("bert")))


async def test_tokens_are_taken_off_once_they_are_returned() -> None:
    clock = Clock()
    handle = make_limited_handler(clock, saying("word " * 600), tokens=1000)
    assert await let_in(handle, call(), 10) == 2
    with pytest.raises(RateLimited, match="1000 tokens per minute") as refused:
        await handle(call())
    assert refused.value.retry_after == pytest.approx((200 + 1) * 60 / 1000, abs=0.001)


async def test_calls_under_way_are_not_all_let_in_for_the_last_token() -> None:
    go = asyncio.Event()

    async def wait(call: Call) -> Answer:
        await go.wait()
        return Answer({"content": []})

    handle = make_limited_handler(Clock(), wait, tokens=3 * EXPECTED_TOKENS)
    tasks = [asyncio.create_task(is_let_in(handle, call())) for _ in range(20)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert not any([await task for task in tasks[3:]])  # while the first three are under way
    go.set()
    assert all(await asyncio.gather(*tasks[:3]))
    assert await let_in(handle, call(), 20) == 20


async def test_what_fails_has_returned_no_tokens() -> None:
    async def fail(call: Call) -> Answer:
        raise EngineError("down")

    handle = make_limited_handler(Clock(), fail, tokens=EXPECTED_TOKENS)
    for _ in range(10):
        with pytest.raises(EngineError):
            await handle(call())


async def test_what_is_cancelled_pays_what_was_expected() -> None:
    started = asyncio.Event()

    async def hang(call: Call) -> Answer:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    handle = make_limited_handler(Clock(), hang, tokens=EXPECTED_TOKENS)
    running = asyncio.ensure_future(handle(call()))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(RateLimited):
        await handle(call())


async def test_lists_cost_calls_but_no_tokens() -> None:
    handle = make_limited_handler(Clock(), saying("word " * 5000), tokens=10, calls=5)
    assert await let_in(handle, call(method="tools/list"), 10) == 5


@pytest.mark.parametrize(
    ("result", "tokens"),
    [
        ({}, 0),
        ({"content": []}, 0),
        ({"content": [text_content("three short words")]}, 3),
        ({"content": [text_content("one"), text_content("two")], "structuredContent": {"text": "one two"}}, 2),
        ({"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "two words"}}]}, 2),
        ({"content": [{"type": "image", "data": "x" * 1000, "mimeType": "image/png"}]}, 100),
        ({"contents": [{"uri": "a:b", "text": "two words"}, {"uri": "a:c", "blob": "x" * 100}]}, 12),
        ({"messages": [{"role": "user", "content": {"type": "text", "text": "two words"}}]}, 2),
        ({"content": [text_content("x" * 100_000)]}, 25_000),
        ({"content": [text_content("word " * MAX_COUNTED_LENGTH)]}, MAX_COUNTED_LENGTH),
        ({"content": "not a list", "messages": [None, 5, {"text": None, "data": None}]}, 0),
    ],
)
def test_what_a_model_reads_is_counted_once(result: dict[str, object], tokens: int) -> None:
    assert count_answer_tokens(Answer(result)) == tokens
