"""Answers that are kept: bounded, fresh, made once, and never anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.calls import InputRequired
from refdesk.config import CacheConfig
from refdesk.errors import EngineError
from refdesk.tools.answer_cache import AnswerCache, WireAnswer, marked_cached

pytestmark = pytest.mark.anyio


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Kitchen:
    """Makes answers and counts them; each waits until it may be served."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.made = 0
        self.error = error
        self.may_serve = anyio.Event()

    async def __call__(self) -> WireAnswer:
        self.made += 1
        number = self.made
        await self.may_serve.wait()
        if self.error is not None and number == 1:
            raise self.error
        return answer(number)


def answer(number: int, text: str = "") -> WireAnswer:
    return {"content": [], "structuredContent": {"number": number, "text": text, "cached": False}}


def making(made: WireAnswer) -> Callable[[], Awaitable[WireAnswer]]:
    async def make() -> WireAnswer:
        return made

    return make


def cache(clock: Clock | None = None, **settings: Any) -> AnswerCache:
    return AnswerCache(CacheConfig(**settings), now=clock or Clock())


async def test_an_answer_is_made_once_and_then_kept_until_its_time_is_up() -> None:
    clock = Clock()
    kept = cache(clock)
    first = answer(1)
    assert await kept.answer("key", 10, making(first)) == (first, False)
    clock.now += 9.9
    again, is_kept = await kept.answer("key", 10, making(answer(2)))
    assert is_kept
    assert again is first
    clock.now += 0.1
    assert (await kept.answer("key", 10, making(answer(3))))[0] == answer(3)


async def test_another_key_has_another_answer() -> None:
    kept = cache()
    for number, key in enumerate([("a", "b"), ("ab", ""), ("a", "b", 1), ("a", "b", None)]):
        assert await kept.answer(key, 10, making(answer(number))) == (answer(number), False)


async def test_no_seconds_keep_nothing() -> None:
    kept = cache()
    for number in range(3):
        assert await kept.answer("key", 0, making(answer(number))) == (answer(number), False)
    assert len(kept) == 0


@pytest.mark.parametrize("settings", [{"max_entries": 0}, {"max_bytes": 0}])
async def test_a_cache_without_room_keeps_nothing(settings: dict[str, Any]) -> None:
    kept = cache(**settings)
    await kept.answer("key", 10, making(answer(1)))
    assert (len(kept), kept.bytes) == (0, 0)


async def test_the_longest_unused_answer_goes_first() -> None:
    kept = cache(max_entries=2)
    for key in ("a", "b"):
        await kept.answer(key, 10, making(answer(1)))
    await kept.answer("a", 10, making(answer(2)))
    await kept.answer("c", 10, making(answer(1)))
    assert (await kept.answer("a", 10, making(answer(3))))[1]
    assert not (await kept.answer("b", 10, making(answer(3))))[1]


async def test_an_answer_too_large_to_keep_pushes_no_other_out() -> None:
    kept = cache(max_bytes=10_000)
    await kept.answer("small", 10, making(answer(1)))
    large = answer(2, "x" * 10_000)
    assert await kept.answer("large", 10, making(large)) == (large, False)
    assert (await kept.answer("small", 10, making(answer(3))))[1]


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4000), st.integers(0, 3)), max_size=60))
async def test_it_never_holds_more_than_it_may(uses: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    kept = cache(clock, max_bytes=20_000, max_entries=6)
    for key, size, pause in uses:
        clock.now += pause
        await kept.answer(key, 5, making(answer(key, "x" * size)))
        assert kept.bytes <= 20_000
        assert len(kept) <= 6
    clock.now += 10
    for key in range(21):
        await kept.answer(key, 5, making(answer(key, "x" * 30_000)))
    assert (len(kept), kept.bytes) == (0, 0)


async def asked_together(kept: AnswerCache, make: Kitchen, callers: int = 5) -> list[asyncio.Task[Any]]:
    """Callers who all wait for the same answer."""
    tasks = [asyncio.ensure_future(kept.answer("key", 10, make)) for _ in range(callers)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_those_who_ask_at_once_share_one_making() -> None:
    kept, kitchen = cache(), Kitchen()
    tasks = await asked_together(kept, kitchen)
    kitchen.may_serve.set()
    with anyio.fail_after(5):
        answers = await asyncio.gather(*tasks)
    assert kitchen.made == 1
    assert [is_kept for _, is_kept in answers] == [False, True, True, True, True]


async def test_when_the_maker_goes_away_the_next_one_makes_it() -> None:
    kept, kitchen = cache(), Kitchen()
    first, *others = await asked_together(kept, kitchen)
    first.cancel()
    kitchen.may_serve.set()
    with anyio.fail_after(5):
        answers = await asyncio.gather(*others)
    assert first.cancelled()
    assert kitchen.made == 2
    assert {made["structuredContent"]["number"] for made, _ in answers} == {2}


async def test_one_who_waits_and_goes_away_takes_nothing_from_the_others() -> None:
    kept, kitchen = cache(), Kitchen()
    first, second, third = await asked_together(kept, kitchen, 3)
    second.cancel()
    kitchen.may_serve.set()
    with anyio.fail_after(5):
        assert await first == (answer(1), False)
        assert await third == (answer(1), True)
    assert second.cancelled()


async def test_an_error_is_shared_with_those_who_wait_and_not_kept() -> None:
    kept, kitchen = cache(), Kitchen(EngineError("down"))
    tasks = await asked_together(kept, kitchen)
    kitchen.may_serve.set()
    with anyio.fail_after(5):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["down"] * 5
    assert (await kept.answer("key", 10, kitchen))[0] == answer(2)


async def test_a_question_to_one_client_is_not_put_to_another() -> None:
    kept, kitchen = cache(), Kitchen(InputRequired({"answer": {}}))
    first, *others = await asked_together(kept, kitchen)
    kitchen.may_serve.set()
    with anyio.fail_after(5):
        with pytest.raises(InputRequired):
            await first
        answers = await asyncio.gather(*others)
    assert kitchen.made == 2
    assert len(answers) == 4


def test_a_kept_answer_says_so_and_the_first_one_does_not() -> None:
    made = answer(1, "long")
    marked = marked_cached(made)
    assert marked["structuredContent"] == {"number": 1, "text": "long", "cached": True}
    assert made["structuredContent"]["cached"] is False
