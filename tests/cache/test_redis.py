"""The cache on a real Redis: shared by processes, never trusted, and never missed when it goes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import orjson
import pytest

from refdesk.cache.cache import Cache, CacheResult, WireAnswer, build_pattern
from refdesk.cache.redis import sign
from refdesk.calls import TenantId
from refdesk.config.models import CacheConfig
from refdesk.errors import EngineError
from refdesk.resilience.redis_connection import RedisAway, RedisLink, open_redis
from tests.cache.helpers import (
    LOCK_SECONDS,
    AnswerFactory,
    Pauses,
    ResultCounter,
    answer,
    key,
    make_redis_cache,
    return_answer,
)
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.waiting import PATIENCE_SECONDS, eventually

if TYPE_CHECKING:
    from redis.asyncio import Redis

pytestmark = [pytest.mark.anyio, needs_redis]

ACME = TenantId("acme")
GENERATION = "refdesk:1:generation:acme"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def running() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(running: RedisServer) -> RedisServer:
    """A server with nothing in it, that several tests use one after the other."""
    running.command("FLUSHALL")
    return running


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that a test may do anything to."""
    with redis_server() as server:
        yield server


@pytest.fixture
async def link(server: RedisServer) -> AsyncIterator[RedisLink]:
    async with open_redis(server.settings()) as link:
        yield link


class CountingLink:
    """A link that counts the operations that reached Redis, and those that were cut off there."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self.began = 0
        self.cut_off = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def run(self, work: Any) -> Any:
        async def count_work(redis: Redis) -> Any:
            self.began += 1
            try:
                return await work(redis)
            except asyncio.CancelledError:
                self.cut_off += 1
                raise

        return await self._link.run(count_work)


async def only_key(link: RedisLink, kind: str) -> str:
    """The one key of a kind that is in Redis."""
    (found,) = await link.run(lambda redis: redis.keys(f"refdesk:1:{kind}:*"))
    return found.decode() if isinstance(found, bytes) else found


async def read_key(link: RedisLink, name: str) -> bytes:
    """What is in Redis under a key."""
    found = await link.run(lambda redis: redis.get(name))
    assert isinstance(found, bytes)
    return found


async def wait_for_redis(link: RedisLink) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        await link.back()


async def test_an_answer_is_made_once_for_all_processes(link: RedisLink) -> None:
    one, other = make_redis_cache(link), make_redis_cache(link)
    assert await one.answer(key(), 600, return_answer(answer(1))) == (answer(1), False, False)
    assert await other.answer(key(), 600, return_answer(answer(2))) == (answer(1), True, False)


@pytest.mark.parametrize("is_certain", [False, True])
async def test_machines_share_answers_unless_a_revision_that_all_of_them_know_differs(
    link: RedisLink, is_certain: bool
) -> None:
    factory = AnswerFactory()
    for revision in (1, 2):
        await make_redis_cache(link).answer(key("q", revision=revision), 600, factory, is_certain=is_certain)
    assert factory.made == (2 if is_certain else 1)


async def test_what_is_in_redis_names_tenant_and_tool_and_lasts_as_long_as_it_may(link: RedisLink) -> None:
    await make_redis_cache(link, stale_seconds=100).answer(key(tenant="a:*", tool="t"), 600, return_answer(answer(1)))
    name = await only_key(link, "answer")
    assert name.startswith("refdesk:1:answer:a%3A%2A:t:")
    assert 600_000 < await link.run(lambda redis: redis.pttl(name)) <= 700_000
    assert await link.run(lambda redis: redis.keys("refdesk:1:lock:*")) == []


async def test_a_thousand_who_ask_at_once_for_what_is_not_there_share_one_making(link: RedisLink) -> None:
    counted = ResultCounter()
    kept, factory = make_redis_cache(link, counted), AnswerFactory(waits=True)
    tasks = [asyncio.create_task(kept.answer(key(), 600, factory)) for _ in range(1000)]
    with anyio.fail_after(PATIENCE_SECONDS):
        await factory.began.wait()
        factory.may_finish.set()
        await asyncio.gather(*tasks)
    assert factory.made == 1
    assert counted == {"miss": 1, "shared": 999}


async def test_two_processes_that_ask_at_once_make_one_answer(server: RedisServer, link: RedisLink) -> None:
    # Locks are not renewed here, so that it is the other one's looks that Redis counts.
    kept, factory = make_redis_cache(link), AnswerFactory(waits=True)
    ours = [asyncio.create_task(kept.answer(key(), 600, factory)) for _ in range(500)]
    with anyio.fail_after(PATIENCE_SECONDS):
        await factory.began.wait()
        async with other_process(server, callers=500) as other:
            await wait_for_lookup(link)
            factory.may_finish.set()
            theirs = await read_line(other)
        await asyncio.gather(*ours)
    assert factory.made == 1
    assert orjson.loads(theirs) == {"1": 500}


async def test_when_the_process_that_makes_it_dies_another_does_once_its_lock_has_expired(
    server: RedisServer, link: RedisLink
) -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with other_process(server, 1, "--hang") as other:
            assert await read_line(other) == b"making"
            pauses, factory = Pauses(), AnswerFactory()
            ours = asyncio.create_task(make_redis_cache(link, pause=pauses).answer(key(), 600, factory))
            await pauses.began.wait()
            other.kill()
            await other.wait()
        lock = await only_key(link, "lock")
        assert await link.run(lambda redis: redis.pttl(lock)) > 0, "a lock ends by itself"
        assert factory.made == 0
        await link.run(lambda redis: redis.pexpire(lock, 0))
        pauses.end()
        assert (await ours).answer == answer(1)


async def test_a_lock_is_renewed_while_its_process_makes_the_answer(link: RedisLink) -> None:
    pauses, slow = Pauses(), AnswerFactory(waits=True)
    task = asyncio.create_task(make_redis_cache(link, pause=pauses).answer(key(), 600, slow))
    with anyio.fail_after(PATIENCE_SECONDS):
        await slow.began.wait()
        await pauses.began.wait()
        lock = await only_key(link, "lock")
        await link.run(lambda redis: redis.expire(lock, round(LOCK_SECONDS / 2)))

        async def is_renewed() -> bool:
            return await link.run(lambda redis: redis.ttl(lock)) > LOCK_SECONDS / 2

        assert not await is_renewed()
        pauses.end()
        await eventually(is_renewed)
        slow.may_finish.set()
        await task


@asynccontextmanager
async def other_process(server: RedisServer, callers: int, *flags: str) -> AsyncIterator[Any]:
    command = [sys.executable, "-m", "tests.cache.other_process", server.url, str(callers), *flags]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_line(process: Any) -> bytes:
    line: bytes = await process.stdout.readline()
    return line.strip()


async def wait_for_lookup(link: RedisLink) -> None:
    """Wait until another process has looked for the answer: Redis has then run the script more often."""

    async def looks() -> int:
        stats = await link.run(lambda redis: redis.info("commandstats"))
        return int(stats["cmdstat_evalsha"]["calls"])

    first = await looks()

    async def has_looked() -> bool:
        return await looks() > first

    await eventually(has_looked)


async def test_a_maker_who_goes_away_leaves_it_to_other_processes(link: RedisLink) -> None:
    one, other, slow, quick = make_redis_cache(link), make_redis_cache(link), AnswerFactory(waits=True), AnswerFactory()
    first = asyncio.create_task(one.answer(key(), 600, slow))
    await slow.began.wait()
    second = asyncio.create_task(other.answer(key(), 600, quick))
    first.cancel()
    with anyio.fail_after(PATIENCE_SECONDS):
        assert (await second).answer == answer(1)
    assert (slow.stopped, quick.made) == (1, 1)


async def test_an_error_is_not_kept_and_the_next_process_tries_for_itself(link: RedisLink) -> None:
    one, other = make_redis_cache(link), make_redis_cache(link)
    with pytest.raises(EngineError):
        await one.answer(key(), 600, AnswerFactory(EngineError("down")))
    with anyio.fail_after(PATIENCE_SECONDS):
        assert (await other.answer(key(), 600, AnswerFactory())).answer == answer(1)


async def expire(link: RedisLink, left: float) -> None:
    """Have the one answer that is kept last so many seconds more."""
    name = await only_key(link, "answer")
    await link.run(lambda redis: redis.pexpire(name, round(left * 1000)))


async def test_an_answer_past_its_time_is_given_when_no_new_one_can_be_had(link: RedisLink) -> None:
    one, other = make_redis_cache(link, stale_seconds=100), make_redis_cache(link, stale_seconds=100)
    await one.answer(key(), 600, return_answer(answer(1)))
    await expire(link, 99)
    assert await other.answer(key(), 600, AnswerFactory(EngineError("down"))) == (answer(1), True, True)
    assert await other.answer(key(), 600, return_answer(answer(2))) == (answer(2), False, False)
    assert await one.answer(key(), 600, return_answer(answer(3))) == (answer(2), True, False)


async def test_where_the_revision_proves_it_right_one_process_makes_a_new_answer_behind_the_old_one(
    link: RedisLink,
) -> None:
    one, other, factory = make_redis_cache(link), make_redis_cache(link), AnswerFactory(waits=True)
    await one.answer(key(), 600, return_answer(answer(100)), is_certain=True)
    await expire(link, 99)
    for kept in (one, other, one, other):
        assert await kept.answer(key(), 600, factory, is_certain=True) == (answer(100), True, False)
    factory.may_finish.set()
    with anyio.fail_after(PATIENCE_SECONDS):
        await asyncio.gather(*one._refreshes.values(), *other._refreshes.values())
    assert factory.made == 1
    assert await other.answer(key(), 600, factory, is_certain=True) == (answer(1), True, False)


async def test_a_change_in_one_process_makes_the_answers_of_all_worthless(link: RedisLink) -> None:
    one, other = make_redis_cache(link), make_redis_cache(link)
    for tenant in ("acme", "beta"):
        await one.answer(key(tenant=tenant), 600, return_answer(answer(1)))
    other.changed(ACME)
    # At once where it was made, and as soon as Redis knows in the others.
    assert (await other.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)
    assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(2)
    assert (await one.answer(key(tenant="beta"), 600, return_answer(answer(3)))).answer == answer(1)
    other.changed(ACME)
    with pytest.raises(EngineError):
        await other.answer(key(), 600, AnswerFactory(EngineError("down")))


async def test_who_changes_something_and_asks_gets_nothing_old_though_redis_was_not_told_yet(link: RedisLink) -> None:
    kept = make_redis_cache(link)
    await kept.answer(key(), 600, return_answer(answer(1)))
    assert kept._redis_cache is not None
    kept._redis_cache.invalidate(ACME)
    assert (await kept.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)


async def test_a_change_is_told_though_nobody_asks_for_anything(link: RedisLink) -> None:
    one, other = make_redis_cache(link), make_redis_cache(link)
    await one.answer(key(), 600, return_answer(answer(1)))
    other.changed(ACME)
    assert other._publishing is not None
    with anyio.fail_after(PATIENCE_SECONDS):
        await other._publishing
    assert (await one.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)


async def test_what_another_process_was_making_when_something_changed_is_not_kept(link: RedisLink) -> None:
    pauses, slow = Pauses(), AnswerFactory(waits=True)
    one, other = make_redis_cache(link), make_redis_cache(link, pause=pauses)
    before = asyncio.create_task(one.answer(key(), 600, slow))
    await slow.began.wait()
    other.changed(ACME)
    after = asyncio.create_task(other.answer(key(), 600, return_answer(answer(2))))
    with anyio.fail_after(PATIENCE_SECONDS):
        await pauses.began.wait()  # as the answer is being made elsewhere
        slow.may_finish.set()
        assert (await before).answer == answer(1)
        pauses.end()
        assert (await after).answer == answer(2)
    assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(2)


async def test_what_a_change_has_made_worthless_does_not_even_get_into_redis(link: RedisLink) -> None:
    one, other, slow = make_redis_cache(link), make_redis_cache(link), AnswerFactory(waits=True)
    before = asyncio.create_task(one.answer(key(), 600, slow))
    await slow.began.wait()
    other.changed(ACME)
    assert other._publishing is not None
    await other._publishing
    slow.may_finish.set()
    await before
    assert await link.run(lambda redis: redis.keys("refdesk:1:answer:*")) == []


async def test_changes_made_while_redis_is_away_count_when_it_is_back(own_server: RedisServer) -> None:
    async with open_redis(own_server.settings()) as link:
        one, other = make_redis_cache(link), make_redis_cache(link)
        await one.answer(key(), 600, return_answer(answer(1)))
        with own_server.paused(link):
            with pytest.raises(RedisAway):
                await link.run(lambda redis: redis.get("key"))
            other.changed(ACME)
            assert (await other.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)
        assert other._publishing is not None
        with anyio.fail_after(PATIENCE_SECONDS):
            await other._publishing
        await wait_for_redis(link)
        assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(3)


async def test_after_more_changes_than_can_be_remembered_everything_is_made_anew(link: RedisLink) -> None:
    one, other = make_redis_cache(link), make_redis_cache(link, max_pending=3)
    await one.answer(key(), 600, return_answer(answer(1)))
    for number in range(10):
        other.changed(TenantId(f"tenant{number}"))
    assert (await other.answer(key(tenant="beta"), 600, return_answer(answer(2)))).answer == answer(2)
    assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(3)
    await other.aclose()


async def test_answers_are_cleared_by_tenant_by_tool_or_all(link: RedisLink) -> None:
    kept = make_redis_cache(link)
    for tenant in ("acme", "a*", "[a]", ""):
        for tool in ("search", "list"):
            await kept.answer(key(tenant=tenant, tool=tool), 600, return_answer(answer(1)))
    assert await kept.clear_pattern(build_pattern(TenantId("a*"))) == 2
    assert await kept.clear_pattern(build_pattern(TenantId("[a]"), "search")) == 1
    assert await kept.clear_pattern(build_pattern(tool="list")) == 3
    assert (await kept.answer(key(), 600, return_answer(answer(2)))).is_cached
    assert await kept.clear_pattern("*") == 2
    assert not (await kept.answer(key(), 600, return_answer(answer(2)))).is_cached


async def replace_entry(link: RedisLink, value: bytes, **expiry: Any) -> None:
    name = await only_key(link, "answer")
    await link.run(lambda redis: redis.set(name, value, **(expiry or {"px": 1_100_000})))


async def is_made_anew(kept: Cache, counted: ResultCounter) -> bool:
    """Whether what is in Redis is taken for a miss, and counted."""
    counted.clear()
    given = await kept.answer(key(), 600, return_answer(answer(2)))
    again = await kept.answer(key(), 600, return_answer(answer(3)))
    return (given, again) == (CacheResult(answer(2), False), CacheResult(answer(2), True)) and counted["miss"] == 1


async def test_what_is_broken_or_foreign_or_forged_in_redis_is_made_anew(link: RedisLink) -> None:
    counted = ResultCounter()
    kept = make_redis_cache(link, counted, secret=b"secret")
    await kept.answer(key(), 600, return_answer(answer(1)))
    name = (await only_key(link, "answer")).removeprefix("refdesk:1:answer:")
    whole = await read_key(link, f"refdesk:1:answer:{name}")
    now = await read_key(link, GENERATION)
    for value in (
        b"",
        b"junk",
        whole[:-1],
        whole[:32],
        whole[:16] + now + b'{"content": []}',
        sign(name, now, answer(666), b""),
        sign(name, now, answer(666), b"guess"),
        b"x" * 16 + now + b"\xff" * 100,
    ):
        await replace_entry(link, value)
        assert await is_made_anew(kept, counted), value
    # What never ends, or ends later than it may, nobody has kept here.
    for expiry in ({"keepttl": False}, {"px": 10**9}):
        await replace_entry(link, whole, **expiry)
        assert await is_made_anew(kept, counted)
        assert counted["error"] == 1


async def test_an_answer_of_another_tenant_that_somebody_puts_in_place_is_not_given(link: RedisLink) -> None:
    counted = ResultCounter()
    kept = make_redis_cache(link, counted)
    await kept.answer(key(tenant="beta"), 600, return_answer(answer(666)))
    name = await only_key(link, "answer")
    foreign = await read_key(link, name)
    await link.run(lambda redis: redis.delete(name))
    await kept.answer(key(), 600, return_answer(answer(1)))
    await replace_entry(link, foreign)
    assert await is_made_anew(kept, counted)
    await replace_entry(link, foreign[:16] + await read_key(link, GENERATION) + foreign[32:])
    assert await is_made_anew(kept, counted)
    assert counted["error"] == 1


async def test_an_answer_that_does_not_fit_the_question_is_made_anew(link: RedisLink) -> None:
    counted = ResultCounter()
    kept = make_redis_cache(link, counted)
    await make_redis_cache(link).answer(key(), 600, return_answer(answer(1)))

    def fits(found: WireAnswer) -> bool:
        return bool(found["structuredContent"]["number"] == 2)

    assert (await kept.answer(key(), 600, return_answer(answer(2)), fits=fits)).answer == answer(2)
    assert counted == {"miss": 1, "error": 1}
    assert (await kept.answer(key(), 600, return_answer(answer(3)), fits=fits)).is_cached


async def test_an_answer_that_was_read_before_is_not_read_again_and_given_only_while_redis_has_it(
    link: RedisLink,
) -> None:
    one, other = make_redis_cache(link), make_redis_cache(link)
    await one.answer(key(), 600, return_answer(answer(1)))
    first = await other.answer(key(), 600, return_answer(answer(2)))
    assert (await other.answer(key(), 600, return_answer(answer(2)))).answer is first.answer
    name = await only_key(link, "answer")
    await link.run(lambda redis: redis.delete(name))
    assert (await other.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)
    assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(2)


async def test_what_was_read_before_is_not_given_while_redis_is_away(own_server: RedisServer) -> None:
    """Nobody can tell then whether it still holds."""
    async with open_redis(own_server.settings()) as link:
        kept = make_redis_cache(link)
        await kept.answer(key(), 600, return_answer(answer(1)))
        own_server.kill()
        assert (await kept.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)


async def test_a_key_of_another_kind_is_written_over(link: RedisLink) -> None:
    counted = ResultCounter()
    kept = make_redis_cache(link, counted)
    await kept.answer(key(), 600, return_answer(answer(1)))
    name = await only_key(link, "answer")
    await link.run(lambda redis: redis.delete(name))
    await link.run(lambda redis: redis.hset(name, "field", "value"))
    assert await is_made_anew(kept, counted)


async def test_processes_with_other_secrets_or_namespaces_share_nothing(link: RedisLink) -> None:
    one = Cache(CacheConfig(), link, secret=b"one")
    await one.answer(key(), 600, return_answer(answer(1)))
    for other in (
        Cache(CacheConfig(), link),
        Cache(CacheConfig(), link, secret=b"two"),
        Cache(CacheConfig(), link, secret=b"one", namespace="elsewhere"),
    ):
        assert not (await other.answer(key(), 600, return_answer(answer(2)))).is_cached
    assert (await Cache(CacheConfig(), link, secret=b"one").answer(key(), 600, return_answer(answer(2)))).is_cached


async def test_an_answer_too_large_for_redis_is_given_and_not_kept(link: RedisLink) -> None:
    kept, large = make_redis_cache(link), answer(1, "x" * 1_000_000)
    assert (await kept.answer(key(), 600, return_answer(large))).answer == large
    assert await link.run(lambda redis: redis.keys("refdesk:1:answer:*")) == []
    assert await link.run(lambda redis: redis.keys("refdesk:1:lock:*")) == []


async def test_a_redis_that_is_killed_and_restarted_fails_no_call(own_server: RedisServer) -> None:
    async with open_redis(own_server.settings()) as link:
        counted = ResultCounter()
        kept = make_redis_cache(link, counted)

        async def calls(first: int) -> list[bool]:
            """Each question twice; whether the second answer was the first one."""
            kept_ones = []
            for number in range(first, first + 50):
                made = await kept.answer(key(number), 600, return_answer(answer(number)))
                again = await kept.answer(key(number), 600, return_answer(answer(-1)))
                kept_ones.append(made.answer == again.answer == answer(number))
            return kept_ones

        assert all(await calls(0))
        own_server.kill()
        # The call that meets the loss makes its answer, and may not have kept it.
        assert (await calls(100)).count(False) <= 1
        assert link.is_away
        assert counted["error"] == 1
        await asyncio.to_thread(own_server.start)
        await wait_for_redis(link)
        assert all(await calls(200))
        assert counted["error"] == 1


async def test_while_redis_is_paused_only_the_first_operation_waits(own_server: RedisServer) -> None:
    async with open_redis(own_server.settings()) as real:
        link = CountingLink(real)
        kept = make_redis_cache(link)  # type: ignore[arg-type]
        await kept.answer(key(), 600, return_answer(answer(1)))
        before = link.began
        with own_server.paused(real):
            for number in range(500):
                given = await kept.answer(key(number % 50), 600, return_answer(answer(number % 50)))
                assert given.answer == answer(number % 50)
                assert given.is_cached == (number >= 50)
            assert (link.began - before, link.cut_off) == (1, 1)
        await wait_for_redis(real)
        assert (await kept.answer(key(), 600, return_answer(answer(2)))).is_cached


async def test_a_lock_that_redis_gave_without_our_hearing_of_it_keeps_us_from_nothing(link: RedisLink) -> None:
    kept, other = make_redis_cache(link), make_redis_cache(link)
    await kept.answer(key(), 600, return_answer(answer(1)))
    lock = (await only_key(link, "answer")).replace("answer", "lock")
    await kept.clear_pattern("*")
    assert kept._redis_cache is not None
    ours = kept._redis_cache._lock_token
    await link.run(lambda redis: redis.set(lock, ours, px=600_000))
    waiting = asyncio.create_task(other.answer(key(), 600, return_answer(answer(3))))
    with anyio.fail_after(PATIENCE_SECONDS):
        assert (await kept.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)
        assert (await waiting).answer == answer(2)


@pytest.mark.parametrize("fault", ["full", "read-only"])
async def test_a_redis_that_takes_nothing_fails_no_call_and_gives_what_it_has(
    own_server: RedisServer, fault: str
) -> None:
    async with open_redis(own_server.settings()) as link:
        kept = make_redis_cache(link)
        await kept.answer(key("old"), 600, return_answer(answer(1)))
        own_server.fill() if fault == "full" else own_server.set_read_only(True)
        for _ in range(2):
            assert (await kept.answer(key("new"), 600, return_answer(answer(2)))) == (answer(2), False, False)
        assert (await kept.answer(key("old"), 600, return_answer(answer(3)))) == (answer(1), True, False)
        assert link.losses == 0
        own_server.make_room() if fault == "full" else own_server.set_read_only(False)
        await kept.answer(key("new"), 600, return_answer(answer(2)))
        assert (await kept.answer(key("new"), 600, return_answer(answer(3)))).is_cached


async def test_a_change_reaches_all_though_redis_is_full(own_server: RedisServer) -> None:
    async with open_redis(own_server.settings()) as link:
        one, other = make_redis_cache(link), make_redis_cache(link)
        await one.answer(key(), 600, return_answer(answer(1)))
        own_server.fill()
        other.changed(ACME)
        assert (await other.answer(key(), 600, return_answer(answer(2)))).answer == answer(2)
        assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(3)


async def test_what_memory_kept_while_redis_was_away_is_not_given_the_next_time(own_server: RedisServer) -> None:
    async with open_redis(own_server.settings()) as link:
        one, other = make_redis_cache(link), make_redis_cache(link)
        own_server.kill()
        assert not (await one.answer(key(), 600, return_answer(answer(1)))).is_cached
        assert (await one.answer(key(), 600, return_answer(answer(2)))).is_cached
        await asyncio.to_thread(own_server.start)
        await wait_for_redis(link)
        other.changed(ACME)
        assert (await one.answer(key(), 600, return_answer(answer(3)))).answer == answer(3)
        own_server.kill()
        with pytest.raises(RedisAway):
            await link.run(lambda redis: redis.get("key"))
        assert (await one.answer(key(), 600, return_answer(answer(4)))).answer == answer(4)
        await other.aclose()


async def test_what_was_begun_without_redis_and_ends_with_it_is_not_kept_in_memory(own_server: RedisServer) -> None:
    async with open_redis(own_server.settings()) as link:
        kept, slow = make_redis_cache(link), AnswerFactory(waits=True)
        own_server.kill()
        task = asyncio.create_task(kept.answer(key(), 600, slow))
        await slow.began.wait()
        await asyncio.to_thread(own_server.start)
        await wait_for_redis(link)
        slow.may_finish.set()
        assert (await task).answer == answer(1)
        assert len(kept) == 0


async def test_a_redis_that_answers_what_it_was_not_asked_for_is_left_out(link: RedisLink) -> None:
    counted = ResultCounter()

    class Lying:
        def __getattr__(self, name: str) -> Any:
            return getattr(link, name)

        async def run(self, work: Any) -> Any:
            return [b"value", b"text", None, 1]

    kept = make_redis_cache(Lying(), counted)  # type: ignore[arg-type]
    for number in range(3):
        assert (await kept.answer(key(number), 600, return_answer(answer(number)))).answer == answer(number)
    assert counted["miss"] == 3
    assert counted["error"] >= 3
