"""Answers that are kept in memory: bounded, fresh, made once, and never anybody else's."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.cache.cache import MAX_REFRESHES, Cache, CacheResult, WireAnswer, add_cache_flags, build_pattern
from refdesk.calls import InputRequired, TenantId, mark_partial_result
from refdesk.config.models import CacheConfig
from refdesk.errors import (
    BreakerOpen,
    ClientCannot,
    DocumentNotFound,
    EngineError,
    InternalError,
    Overloaded,
    RefdeskError,
)
from tests.cache.helpers import AnswerFactory, Clock, ResultCounter, answer, cache, key, return_answer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

ACME = TenantId("acme")


async def ask_concurrently(
    kept: Cache, make: AnswerFactory, callers: int = 5, **how: Any
) -> list[asyncio.Task[CacheResult]]:
    """Callers who all wait for the same answer."""
    tasks = [asyncio.ensure_future(kept.answer(key(), 10, make, **how)) for _ in range(callers)]
    with anyio.fail_after(PATIENCE_SECONDS):
        await make.began.wait()
    return tasks


async def finish_refreshes(kept: Cache) -> None:
    """Let what goes on behind the answers end."""
    with anyio.fail_after(PATIENCE_SECONDS):
        await asyncio.gather(*kept._refreshes.values())


async def test_an_answer_is_made_once_and_then_kept_until_its_time_is_up() -> None:
    clock = Clock()
    kept = cache(clock)
    first = answer(1)
    assert await kept.answer(key(), 10, return_answer(first)) == (first, False, False)
    clock.now += 9.9
    again = await kept.answer(key(), 10, return_answer(answer(2)))
    assert again.is_cached
    assert again.answer is first
    clock.now += 0.1
    assert (await kept.answer(key(), 10, return_answer(answer(3)))).answer == answer(3)


async def test_another_question_user_tenant_tool_or_revision_has_another_answer() -> None:
    kept = cache()
    keys = [
        key("a", "b"),
        key("ab", ""),
        key("a", "b", 1),
        key("a", "b", None),
        key("a", "b", True),
        key("a", "b", "1"),
        key(("a", "b")),
        key("a", "b", user="bob"),
        key("a", "b", tenant="beta"),
        key("a", "b", tool="list"),
        key("a", "b", revision=2),
    ]
    for number, each in enumerate(keys):
        assert (await kept.answer(each, 10, return_answer(answer(number)))).answer == answer(number)
    for number, each in enumerate(keys):
        assert (await kept.answer(each, 10, return_answer(answer(-1)))).answer == answer(number)


async def test_no_seconds_keep_nothing() -> None:
    kept = cache()
    for number in range(3):
        assert await kept.answer(key(), 0, return_answer(answer(number))) == (answer(number), False, False)
    assert len(kept) == 0


@pytest.mark.parametrize("settings", [{"max_entries": 0}, {"max_bytes": 0}])
async def test_a_cache_without_room_keeps_nothing(settings: dict[str, Any]) -> None:
    kept = cache(**settings)
    await kept.answer(key(), 10, return_answer(answer(1)))
    assert (len(kept), kept.bytes) == (0, 0)


async def test_the_longest_unused_answer_goes_first() -> None:
    kept = cache(max_entries=2)
    for name in ("a", "b"):
        await kept.answer(key(name), 10, return_answer(answer(1)))
    await kept.answer(key("a"), 10, return_answer(answer(2)))
    await kept.answer(key("c"), 10, return_answer(answer(1)))
    assert (await kept.answer(key("a"), 10, return_answer(answer(3)))).is_cached
    assert not (await kept.answer(key("b"), 10, return_answer(answer(3)))).is_cached


async def test_an_answer_too_large_to_keep_pushes_no_other_out() -> None:
    kept = cache(max_bytes=10_000)
    await kept.answer(key("small"), 10, return_answer(answer(1)))
    large = answer(2, "x" * 10_000)
    assert await kept.answer(key("large"), 10, return_answer(large)) == (large, False, False)
    assert (await kept.answer(key("small"), 10, return_answer(answer(3)))).is_cached


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 4000), st.integers(0, 3)), max_size=60))
async def test_it_never_holds_more_than_it_may(uses: list[tuple[int, int, int]]) -> None:
    clock = Clock()
    kept = cache(clock, max_bytes=20_000, max_entries=6, stale_seconds=2)
    for number, size, pause in uses:
        clock.now += pause
        await kept.answer(key(number), 5, return_answer(answer(number, "x" * size)))
        assert kept.bytes <= 20_000
        assert len(kept) <= 6
    clock.now += 10
    for number in range(21):
        await kept.answer(key(number), 5, return_answer(answer(number, "x" * 30_000)))
    assert (len(kept), kept.bytes) == (0, 0)


async def test_those_who_ask_at_once_share_one_making() -> None:
    counted = ResultCounter()
    kept, factory = cache(counted=counted), AnswerFactory(waits=True)
    tasks = await ask_concurrently(kept, factory, 1000)
    factory.may_finish.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        answers = await asyncio.gather(*tasks)
    assert factory.made == 1
    assert [given.is_cached for given in answers] == [False] + [True] * 999
    assert (await kept.answer(key(), 10, factory)).is_cached
    assert counted == {"miss": 1, "shared": 999, "hit": 1}


async def test_when_the_maker_goes_away_the_others_get_what_he_began() -> None:
    kept, factory = cache(), AnswerFactory(waits=True)
    first, *others = await ask_concurrently(kept, factory)
    first.cancel()
    await asyncio.wait([first])
    factory.may_finish.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        answers = await asyncio.gather(*others)
    assert factory.made == 1
    assert {given.answer["structuredContent"]["number"] for given in answers} == {1}


async def test_when_all_go_away_nothing_is_made_any_longer() -> None:
    kept, factory = cache(), AnswerFactory(waits=True)
    tasks = await ask_concurrently(kept, factory)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await anyio.wait_all_tasks_blocked()
    assert factory.stopped
    factory.may_finish.set()
    assert not (await kept.answer(key(), 10, factory)).is_cached


async def test_an_error_is_shared_with_those_who_wait_and_not_kept() -> None:
    kept, factory = cache(), AnswerFactory(EngineError("down"), waits=True)
    tasks = await ask_concurrently(kept, factory)
    factory.may_finish.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["down"] * 5
    assert (await kept.answer(key(), 10, factory)).answer == answer(2)


@pytest.mark.parametrize("error", [InputRequired({"answer": {}}), ClientCannot("no sampling")])
async def test_what_is_up_to_one_client_is_not_put_upon_another(error: Exception) -> None:
    kept, factory = cache(), AnswerFactory(error, waits=True)
    first, *others = await ask_concurrently(kept, factory)
    factory.may_finish.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        with pytest.raises(type(error)):
            await first
        answers = await asyncio.gather(*others)
    assert factory.made == 2
    assert len(answers) == 4


@pytest.mark.parametrize("error", [EngineError("down"), BreakerOpen("open", retry_after=3), Overloaded("full")])
async def test_an_answer_past_its_time_is_given_when_no_new_one_can_be_had(error: RefdeskError) -> None:
    clock, counted = Clock(), ResultCounter()
    kept = cache(clock, counted, stale_seconds=100)
    await kept.answer(key(), 10, return_answer(answer(1)))
    clock.now += 109.9
    assert await kept.answer(key(), 10, AnswerFactory(error)) == (answer(1), True, True)
    assert counted == {"miss": 1, "stale": 1}
    clock.now += 0.1
    with pytest.raises(type(error)):
        await kept.answer(key(), 10, AnswerFactory(error))


async def test_all_who_wait_for_what_cannot_be_had_get_the_old_answer() -> None:
    clock, counted = Clock(), ResultCounter()
    kept = cache(clock, counted)
    await kept.answer(key(), 10, return_answer(answer(1)))
    clock.now += 11
    factory = AnswerFactory(EngineError("down"), waits=True)
    tasks = await ask_concurrently(kept, factory)
    factory.may_finish.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        assert await asyncio.gather(*tasks) == [(answer(1), True, True)] * 5
    assert counted["stale"] == 5


@pytest.mark.parametrize("error", [DocumentNotFound("gone"), InternalError("bug"), InputRequired({}), ValueError()])
async def test_an_old_answer_hides_no_error_but_of_what_is_behind_us(error: Exception) -> None:
    clock = Clock()
    kept = cache(clock)
    await kept.answer(key(), 10, return_answer(answer(1)))
    clock.now += 11
    with pytest.raises(type(error)):
        await kept.answer(key(), 10, AnswerFactory(error))


async def test_no_old_answer_is_given_to_another_or_after_a_change() -> None:
    clock = Clock()
    kept = cache(clock)
    await kept.answer(key(), 10, return_answer(answer(1)))
    clock.now += 11
    for other in (key(user="bob"), key(tenant="beta"), key(revision=2)):
        with pytest.raises(EngineError):
            await kept.answer(other, 10, AnswerFactory(EngineError("down")))
    kept.changed(ACME)
    with pytest.raises(EngineError):
        await kept.answer(key(), 10, AnswerFactory(EngineError("down")))


async def test_where_the_revision_proves_it_right_the_old_answer_is_given_while_a_new_one_is_made() -> None:
    clock, counted = Clock(), ResultCounter()
    kept = cache(clock, counted, stale_seconds=100)
    await kept.answer(key(), 10, return_answer(answer(100)), is_certain=True)
    clock.now += 50
    factory = AnswerFactory(waits=True)
    for _ in range(3):
        assert await kept.answer(key(), 10, factory, is_certain=True) == (answer(100), True, False)
    factory.may_finish.set()
    await finish_refreshes(kept)
    assert await kept.answer(key(), 10, factory, is_certain=True) == (answer(1), True, False)
    assert factory.made == 1
    assert counted == {"miss": 1, "stale": 3, "hit": 1}


async def test_what_cannot_be_made_behind_an_answer_is_tried_again_by_the_next_one() -> None:
    clock = Clock()
    kept = cache(clock, stale_seconds=100)
    await kept.answer(key(), 10, return_answer(answer(1)))
    clock.now += 50
    factory = AnswerFactory(EngineError("down"), DocumentNotFound("gone"))
    for _ in range(3):
        assert (await kept.answer(key(), 10, factory, is_certain=True)).answer == answer(1)
        await finish_refreshes(kept)
    assert (await kept.answer(key(), 10, factory, is_certain=True)).answer == answer(3)


async def test_no_more_than_some_are_made_behind_answers_at_a_time() -> None:
    clock = Clock()
    kept = cache(clock)
    for number in range(MAX_REFRESHES * 2):
        await kept.answer(key(number), 10, return_answer(answer(number)))
    clock.now += 11
    factory = AnswerFactory(waits=True)
    for number in range(MAX_REFRESHES * 2):
        assert (await kept.answer(key(number), 10, factory, is_certain=True)).answer == answer(number)
    await anyio.wait_all_tasks_blocked()
    assert factory.made == MAX_REFRESHES
    await kept.aclose()
    assert factory.stopped == MAX_REFRESHES


async def test_after_a_change_of_a_tenant_its_answers_are_gone_and_the_others_stay() -> None:
    kept = cache()
    for tenant in ("acme", "beta"):
        await kept.answer(key(tenant=tenant), 10, return_answer(answer(1)))
    kept.changed(ACME)
    assert not (await kept.answer(key(), 10, return_answer(answer(2)))).is_cached
    assert (await kept.answer(key(), 10, return_answer(answer(3)))).answer == answer(2)
    assert (await kept.answer(key(tenant="beta"), 10, return_answer(answer(3)))).answer == answer(1)


async def test_what_was_being_made_when_something_changed_is_neither_kept_nor_given_to_who_asks_later() -> None:
    kept, old, new = cache(), AnswerFactory(waits=True), AnswerFactory()
    (before,) = await ask_concurrently(kept, old, 1)
    kept.changed(ACME)
    new.made = 10
    assert (await kept.answer(key(), 10, new)).answer == answer(11)
    old.may_finish.set()
    assert (await before).answer == answer(1)
    assert (await kept.answer(key(), 10, new)).answer == answer(11)


async def test_answers_are_cleared_by_tenant_by_tool_or_all() -> None:
    kept = cache()
    tenants, tools = ("acme", "a*", "b:c", ""), ("search", "list")

    async def fill() -> None:
        for tenant in tenants:
            for tool in tools:
                await kept.answer(key(tenant=tenant, tool=tool), 10, return_answer(answer(1)))

    await fill()
    assert await kept.clear_pattern(build_pattern(TenantId("a*"))) == 2
    assert (await kept.answer(key(), 10, return_answer(answer(2)))).is_cached
    await fill()
    assert await kept.clear_pattern(build_pattern(tool="list")) == 4
    assert await kept.clear_pattern(build_pattern(TenantId("b:c"), "search")) == 1
    assert await kept.clear_pattern(build_pattern(TenantId(""))) == 1
    assert await kept.clear_pattern("*") == 2
    assert (len(kept), kept.bytes) == (0, 0)


async def test_what_is_being_made_while_answers_are_cleared_is_not_kept() -> None:
    kept, factory = cache(), AnswerFactory(waits=True)
    (task,) = await ask_concurrently(kept, factory, 1)
    await kept.clear_pattern("*")
    factory.may_finish.set()
    await task
    assert len(kept) == 0


def test_an_answer_says_that_it_was_kept_and_the_first_one_does_not() -> None:
    made = answer(1, "long")
    assert add_cache_flags(CacheResult(made, is_cached=False)) == made
    assert add_cache_flags(CacheResult(made, is_cached=True))["structuredContent"] == {
        "number": 1,
        "text": "long",
        "cached": True,
    }
    assert made["structuredContent"]["cached"] is False


def test_an_answer_past_its_time_says_so_to_programs_and_to_models() -> None:
    made = answer(1, "long")
    told = add_cache_flags(CacheResult(made, is_cached=True, is_stale=True))
    assert told["structuredContent"] == {"number": 1, "text": "long", "cached": True, "stale": True}
    assert told["content"][0] == made["content"][0]
    assert "cannot answer at the moment" in told["content"][1]["text"]
    assert len(made["content"]) == 1
    plain: dict[str, Any] = {"content": []}
    assert len(add_cache_flags(CacheResult(plain, is_cached=True, is_stale=True))["content"]) == 1


def test_what_has_no_word_for_it_does_not_say_that_it_was_kept() -> None:
    made = {"content": [], "structuredContent": {"total": 1}}
    assert add_cache_flags(CacheResult(made, is_cached=True)) == made


async def test_what_was_made_for_want_of_something_better_is_given_and_not_kept() -> None:
    kept, counted = Cache(CacheConfig()), 0

    async def make() -> WireAnswer:
        nonlocal counted
        counted += 1
        if counted == 1:
            mark_partial_result()
        return answer(counted)

    for number in (1, 2, 2):
        assert (await kept.answer(key(), 10, make)).answer == answer(number)


async def test_what_is_held_is_told_as_it_changes() -> None:
    told: list[tuple[int, int]] = []
    clock = Clock()
    settings = CacheConfig(max_entries=1, stale_seconds=0)
    kept = Cache(settings, holds=lambda entries, size: told.append((entries, size)), now=clock)
    for number in (1, 2):
        await kept.answer(key(number), 10, return_answer(answer(number)))
        assert told[-1] == (1, kept.bytes)
    clock.now += 10
    await kept.answer(key(2), 10, return_answer(answer(2)))
    assert (0, 0) in told, "what was past its time had gone before there was a new one"
    await kept.clear_pattern("*")
    assert told[-1] == (0, 0)
