"""Rate limits by a clock that the test turns, and in a real Redis that is shared, killed, filled and lied to."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refdesk.resilience.limits import (
    MAX_DEBT_SECONDS,
    MAX_EVICTIONS,
    MAX_PART_LENGTH,
    PREFIX,
    Charge,
    Key,
    Limit,
    MemoryRateLimiter,
    Metered,
    RateLimiter,
    RedisRateLimiter,
    Refusal,
    redis_key,
    shorten_key,
)
from refdesk.resilience.redis_connection import RedisLink, open_redis
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

T = TypeVar("T")

KEY: Key = ("tenant", "doc", "calls")
SLOW = 3000.0
"""Seconds of a limit in Redis, whose clock no test can turn: nothing to speak of comes back while the test runs."""


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def call(units: int = 5, *, key: Key = KEY, seconds: float = 60.0, cost: int = 1) -> Charge:
    return Charge(key, Limit(units, seconds), cost)


async def count_taken(limits: RateLimiter, charge: Charge, times: int) -> int:
    """How many of so many charges are let in."""
    return [await limits.take([charge]) for _ in range(times)].count(None)


async def take_refused(limits: RateLimiter, *charges: Charge) -> Refusal:
    refusal = await limits.take(charges)
    assert refusal is not None
    return refusal


# In memory


async def test_so_many_at_once_and_then_as_they_come_back() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    assert await count_taken(limits, call(5), 20) == 5
    clock.time += 12
    assert await count_taken(limits, call(5), 20) == 1
    clock.time += 3600
    assert await count_taken(limits, call(5), 20) == 5


@pytest.mark.parametrize("units", [1, 3, 7, 59, 60, 61, 997, 100_000])
async def test_whoever_comes_back_when_told_is_let_in_and_not_earlier(units: int) -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    assert await limits.take([call(units, cost=units)]) is None
    refusal = await take_refused(limits, call(units))
    assert refusal.retry_after == pytest.approx(60 / units, abs=0.001)
    clock.time += refusal.retry_after - 0.0011
    if refusal.retry_after > 0.0011:
        await take_refused(limits, call(units))
    clock.time += 0.0011
    assert await limits.take([call(units)]) is None


async def test_being_refused_costs_nothing() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    await count_taken(limits, call(1), 1)
    for _ in range(59):
        clock.time += 1
        await take_refused(limits, call(1))
    clock.time += 1
    assert await limits.take([call(1)]) is None


async def test_all_charges_are_taken_or_none() -> None:
    limits = MemoryRateLimiter(now=Clock())
    shared, own = call(3, key=("all",)), call(1)
    assert await limits.take([shared, own]) is None
    refusal = await take_refused(limits, shared, own)
    assert refusal.charge == own
    assert await count_taken(limits, shared, 5) == 2


async def test_the_charge_that_waits_longest_says_for_how_long() -> None:
    limits = MemoryRateLimiter(now=Clock())
    quick, slow = call(60, key=("quick",), cost=60), call(1, key=("slow",))
    assert await limits.take([quick, slow]) is None
    refusal = await take_refused(limits, quick, slow)
    assert (refusal.charge, refusal.retry_after) == (slow, 60)


async def test_work_is_let_in_while_anything_is_left_and_pays_its_debt() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    tokens = call(600, cost=0)
    async with Metered(limits, tokens, clock) as metered:
        metered.spent = 599
    assert await limits.take([tokens]) is None
    async with Metered(limits, tokens, clock) as metered:
        metered.spent = 300
    assert (await take_refused(limits, tokens)).retry_after == pytest.approx(30)
    clock.time += 30
    assert await limits.take([tokens]) is None


async def test_what_is_under_way_counts_as_expected_until_it_settles() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    expected = call(1000, cost=600)
    first = [await limits.take([expected]) for _ in range(3)]
    assert first[:2] == [None, None]
    assert first[2] is not None
    await limits.settle(expected, 10, 0)
    assert await count_taken(limits, expected, 3) == 1


async def test_failed_work_has_spent_nothing_and_cancelled_work_what_was_expected() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    expected = call(1000, cost=1000)
    assert await limits.take([expected]) is None
    with pytest.raises(ValueError):
        async with Metered(limits, expected, clock):
            raise ValueError
    assert await limits.take([expected]) is None
    with pytest.raises(asyncio.CancelledError):
        async with Metered(limits, expected, clock):
            raise asyncio.CancelledError
    await take_refused(limits, expected)


async def test_holding_what_one_does_not_spend_earns_nothing() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    expected = call(600, cost=600)
    assert await limits.take([expected]) is None
    clock.time += 60  # it came back by itself, and somebody has spent it since
    assert await limits.take([expected]) is None
    await limits.settle(expected, 0, 60)
    await take_refused(limits, expected)


@pytest.mark.parametrize("cost", [-1, -(10**30), 0])
async def test_nobody_earns_by_a_call(cost: int) -> None:
    limits = MemoryRateLimiter(now=Clock())
    assert await count_taken(limits, call(5), 5) == 5
    await limits.settle(call(5, cost=0), cost, 0)
    await take_refused(limits, call(5))
    limits.record([call(5, cost=cost)])
    await take_refused(limits, call(5))


@pytest.mark.parametrize("cost", [10**9, 10**30, 10**400])
async def test_no_cost_keeps_anybody_out_for_ever(cost: int) -> None:
    limits = MemoryRateLimiter(now=Clock())
    assert await limits.take([call(5, cost=cost)]) is None
    assert (await take_refused(limits, call(5))).retry_after <= MAX_DEBT_SECONDS


async def test_names_without_end_fill_nothing_and_push_nobody_out_of_debt() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(max_buckets=1000, max_of_one=100, now=clock)
    await count_taken(limits, call(2), 2)
    for number in range(20_000):
        clock.time += 0.0001
        await limits.take([call(2, key=("tenant", str(number)))])
        assert limits.buckets <= 100
    assert (await take_refused(limits, call(2))).charge is not None
    assert await limits.take([call(2, key=("another", "doc"))]) is None


async def test_many_owners_fill_no_more_than_the_table() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(max_buckets=1000, max_of_one=100, now=clock)
    for number in range(5000):
        await limits.take([call(2, key=(f"tenant {number}", "doc"))])
    assert limits.buckets == 1000
    refusal = await take_refused(limits, call(2, key=("late", "doc")))
    assert refusal.charge is None
    clock.time += 30
    assert await limits.take([call(2, key=("late", "doc"))]) is None


async def test_an_owner_without_room_has_some_when_its_buckets_are_full_again() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(max_of_one=3, now=clock)
    for seconds in (40, 20, 30):
        await limits.take([call(60, key=("tenant", str(seconds)), cost=seconds)])
    assert (await take_refused(limits, call(60))).charge is None
    clock.time += 20
    assert await limits.take([call(60)]) is None
    assert (await take_refused(limits, call(60, key=("tenant", "another")))).charge is None


async def test_a_flood_that_is_over_leaves_nothing_behind() -> None:
    clock = Clock()
    limits = MemoryRateLimiter(now=clock)
    for number in range(5 * MAX_EVICTIONS):
        await limits.take([call(key=(f"tenant {number}",))])
    clock.time += 61
    for _ in range(6):
        await limits.take([call(cost=0)])
    assert limits.buckets == 0


text = st.text(st.characters(), max_size=2 * MAX_PART_LENGTH)
keys = st.lists(text, min_size=1, max_size=4).map(tuple)


@given(keys, keys)
def test_different_keys_are_different_buckets_and_bounded(one: Key, other: Key) -> None:
    for form in (shorten_key, redis_key):
        assert (form(one) == form(other)) == (one == other)
    assert all(len(part) <= 128 for part in shorten_key(one))
    assert len(redis_key(one)) == len(PREFIX) + 32


@given(keys, st.data())
def test_where_a_key_is_cut_into_parts_matters(key: Key, data: st.DataObject) -> None:
    whole = ":".join(key)
    at = data.draw(st.integers(0, len(whole)))
    cut = (whole[:at], whole[at:])
    assert (redis_key(cut) == redis_key(key)) == (cut == key)
    assert (shorten_key(cut) == shorten_key(key)) == (cut == key)


def test_a_digest_is_not_a_name_that_somebody_can_have() -> None:
    (digest,) = shorten_key(("x" * 1000,))
    assert shorten_key((digest,)) != (digest,)


def test_names_that_look_alike_are_told_apart() -> None:
    alike: list[Key] = [("café",), ("cafe\u0301",), ("ｃafé",), ("CAFÉ",), ("café\u200b",), ("caf\u00e9 ",)]
    assert len({shorten_key(key) for key in alike}) == len({redis_key(key) for key in alike}) == len(alike)


def at_once(work: Coroutine[None, None, T]) -> T:
    """The result of work that never waits, without a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise AssertionError("it waited")


@dataclass
class Held:
    """A charge that is not settled yet, and its place in the account."""

    charge: Charge
    since: float
    entry: int


class Bucketing(RuleBasedStateMachine):
    """Buckets beside a model that is written otherwise: what is missing and since when, in place of a time to be full.

    Beside both stands an account of who was let in when and what it came to, which knows nothing of either.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.limits = MemoryRateLimiter(now=self.clock)
        self.limit = Limit(1)
        self.missing = {"a": 0.0, "b": 0.0}
        self.account: dict[str, list[tuple[float, int]]] = {"a": [], "b": []}
        self.held: list[tuple[str, Held]] = []

    @initialize(units=st.integers(1, 20), seconds=st.sampled_from([1.0, 7.0, 60.0]))
    def begin(self, units: int, seconds: float) -> None:
        self.limit = Limit(units, seconds)

    @rule(seconds=st.floats(0, 90))
    def wait(self, seconds: float) -> None:
        self.clock.time += seconds
        for name in self.missing:
            self.missing[name] = max(0.0, self.missing[name] - seconds / self.limit.seconds_per_unit)

    @rule(name=st.sampled_from("ab"), cost=st.integers(0, 30), settles=st.booleans())
    def take_charge(self, name: str, cost: int, settles: bool) -> None:
        charge = Charge(("owner", name), self.limit, cost)
        wait = (self.missing[name] + 1 - self.limit.units) * self.limit.seconds_per_unit
        refusal = at_once(self.limits.take([charge]))
        if refusal is not None:
            assert wait - 1e-6 <= refusal.retry_after <= max(wait, 0) + 0.0011
            return
        assert wait <= 1e-5
        self.missing[name] += cost
        self.account[name].append((self.clock.time, 0 if settles else cost))
        if settles:
            self.held.append((name, Held(charge, self.clock.time, len(self.account[name]) - 1)))

    @rule(name=st.sampled_from("ab"))
    def retry_after_refusal(self, name: str) -> None:
        charge = Charge(("owner", name), self.limit)
        if refusal := at_once(self.limits.take([charge])):
            self.wait(refusal.retry_after)
            assert at_once(self.limits.take([charge])) is None
        self.missing[name] += 1
        self.account[name].append((self.clock.time, 1))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0), spent=st.integers(0, 40))
    def settle(self, which: int, spent: int) -> None:
        name, held = self.held.pop(which % len(self.held))
        charge, seconds = held.charge, self.clock.time - held.since
        at_once(self.limits.settle(charge, spent, seconds))
        came_back = seconds / self.limit.seconds_per_unit
        more = spent - charge.cost
        self.missing[name] = max(0.0, self.missing[name] + (more if more > 0 else min(0, more + came_back)))
        self.account[name][held.entry] = (held.since, min(spent, charge.cost))

    @invariant()
    def no_span_holds_more_than_is_promised(self) -> None:
        for entries in self.account.values():
            for first, (since, _) in enumerate(entries):
                before_last = sum(cost for _, cost in entries[first:-1])
                came_back = (entries[-1][0] - since) / self.limit.seconds_per_unit
                assert before_last <= self.limit.units + came_back + 1e-3

    @invariant()
    def there_is_one_bucket_for_each_key(self) -> None:
        assert self.limits.buckets <= len(self.missing)


TestBucketing = Bucketing.TestCase
TestBucketing.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# In Redis


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    """One server for the tests that leave it as it was; each has keys of its own."""
    with redis_server() as server:
        yield server


@asynccontextmanager
async def shared_limits(server: RedisServer) -> AsyncIterator[tuple[RedisRateLimiter, RedisLink]]:
    async with open_redis(server.settings()) as link:
        yield RedisRateLimiter(link, MemoryRateLimiter()), link


def slow(name: str, units: int = 5, cost: int = 1) -> Charge:
    return Charge(("tenant", name, "calls"), Limit(units, SLOW), cost)


TAKES_ALL_IT_CAN = """
import asyncio, sys
from refdesk.config.models import RedisConfig
from refdesk.resilience.limits import Charge, Limit, MemoryRateLimiter
from refdesk.resilience.redis_connection import open_redis
from refdesk.resilience.limits import RedisRateLimiter

port, units, times = map(int, sys.argv[1:])
charge = Charge(("tenant", "two processes"), Limit(units, 3000))

async def count():
    async with open_redis(RedisConfig(url=f"redis://127.0.0.1:{port}", timeout_seconds=60)) as link:
        limits = RedisRateLimiter(link, MemoryRateLimiter())
        return [await limits.take([charge]) for _ in range(times)].count(None)

print(asyncio.run(count()))
"""


@needs_redis
async def test_processes_count_together(shared_server: RedisServer) -> None:
    command = [sys.executable, "-c", TAKES_ALL_IT_CAN, str(shared_server.port), "30", "25"]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        counts = [int((await process.communicate())[0]) for process in processes]
    assert sum(counts) == 30
    assert max(counts) <= 25


@needs_redis
async def test_callers_at_once_get_no_more_than_there_is(shared_server: RedisServer) -> None:
    async with shared_limits(shared_server) as (limits, _):
        results = await asyncio.gather(*(limits.take([slow("at once", 20)]) for _ in range(200)))
        assert results.count(None) == 20


Step = tuple[str, int, int | None]
steps = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.none() | st.integers(0, 9)), min_size=1, max_size=25
)


@needs_redis
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(steps, min_size=1, max_size=4))
def test_redis_decides_as_memory_does(shared_server: RedisServer, rounds: list[list[Step]]) -> None:
    async def compare() -> None:
        shared_server.command("FLUSHALL")
        async with shared_limits(shared_server) as (limits, _):
            memory = MemoryRateLimiter()
            for step in chain.from_iterable(rounds):
                assert await decide(limits, step) == await decide(memory, step)

    asyncio.run(compare())


async def decide(limits: RateLimiter, step: Step) -> tuple[str, int] | None:
    """What a step comes to: nothing, or who has to wait and for how many units."""
    name, cost, spent = step
    charges = [slow(name, 8, cost), slow("all", 30, 1)]
    refusal = await limits.take(charges)
    if refusal is None:
        if spent is not None:
            await limits.settle(charges[0], spent, 0)
        return None
    assert refusal.charge is not None
    return refusal.charge.key[1], round(refusal.retry_after / refusal.charge.limit.seconds_per_unit)


@needs_redis
async def test_a_bucket_refills_by_the_clock_of_redis(shared_server: RedisServer) -> None:
    charge = slow("refills", 1)
    name = redis_key(charge.key)
    async with shared_limits(shared_server) as (limits, link):

        async def put_back(seconds: float) -> None:
            """Have the bucket be emptied so much earlier, as if the time had passed since."""
            missing, at = (await link.run(lambda redis: redis.get(name)) or b"").split()
            value = f"{float(missing)} {int(at) - round(seconds * 1e6)}"
            await link.run(lambda redis: redis.set(name, value, keepttl=True))

        assert await limits.take([charge]) is None
        assert SLOW / 2 < (await take_refused(limits, charge)).retry_after <= SLOW
        await put_back(SLOW / 2)
        assert (await take_refused(limits, charge)).retry_after <= SLOW / 2
        await put_back(SLOW / 2)
        assert await limits.take([charge]) is None


@needs_redis
async def test_nothing_is_left_in_redis_once_it_is_paid_back(shared_server: RedisServer) -> None:
    charge = slow("paid back", 10, 1)
    async with shared_limits(shared_server) as (limits, _):
        await limits.take([charge])
        left = int(shared_server.command("PTTL", redis_key(charge.key)).removeprefix(b":"))
        assert 0 < left <= 1000 * SLOW / 10
        await limits.settle(charge, 0, 0)
        assert shared_server.command("EXISTS", redis_key(charge.key)) == b":0"


@needs_redis
async def test_a_clock_that_is_set_back_locks_nobody_out(shared_server: RedisServer) -> None:
    charge = slow("set back", 10)
    in_an_hour = int((time.time() + 3600) * 1e6)
    shared_server.command("SET", redis_key(charge.key), f"10 {in_an_hour}", "EX", "9000")
    async with shared_limits(shared_server) as (limits, link):
        first = await take_refused(limits, charge)
        assert first.retry_after == pytest.approx(SLOW / 10, abs=1)
        # From here on time counts again, though it will be an hour until it is as late as it was.
        value = await link.run(lambda redis: redis.get(redis_key(charge.key)))
        missing, at = (value or b"").split()
        assert float(missing) == 10
        assert int(at) < in_an_hour - 3000e6


@needs_redis
@pytest.mark.parametrize(
    "junk", ["junk", "", "nan nan", "inf 0", "1e300 1", "-5 1", "5", "5 5 5", "2 nan", "9" * 5000 + " 1"]
)
async def test_what_is_no_bucket_is_a_full_one(shared_server: RedisServer, junk: str) -> None:
    charge = slow("junk", 3)
    shared_server.command("SET", redis_key(charge.key), junk)
    async with shared_limits(shared_server) as (limits, _):
        assert await count_taken(limits, charge, 10) == 3


@needs_redis
async def test_a_name_that_is_something_else_in_redis_is_counted_here(shared_server: RedisServer) -> None:
    charge = slow("a list", 3)
    shared_server.command("LPUSH", redis_key(charge.key), "x")
    async with shared_limits(shared_server) as (limits, link):
        assert await count_taken(limits, charge, 10) == 3
        assert not link.is_away


@needs_redis
async def test_redis_that_forgot_the_script_is_told_it_again(shared_server: RedisServer) -> None:
    async with shared_limits(shared_server) as (limits, _):
        assert await count_taken(limits, slow("flushed"), 2) == 2
        shared_server.command("SCRIPT", "FLUSH")
        assert await count_taken(limits, slow("flushed"), 9) == 3


@needs_redis
async def test_the_bound_on_buckets_holds_for_what_is_put_into_redis(shared_server: RedisServer) -> None:
    async with open_redis(shared_server.settings()) as link:
        limits = RedisRateLimiter(link, MemoryRateLimiter(max_of_one=10))
        await asyncio.to_thread(shared_server.command, "FLUSHALL")
        for number in range(50):
            await limits.take([slow(str(number))])
        assert await asyncio.to_thread(shared_server.command, "DBSIZE") == b":10"


@needs_redis
async def test_redis_that_dies_is_neither_a_failure_nor_a_way_past_the_limit() -> None:
    charge = slow("dies", 20)
    with redis_server() as server:
        async with shared_limits(server) as (limits, link):
            assert await count_taken(limits, charge, 8) == 8
            await asyncio.to_thread(server.kill)
            assert await count_taken(limits, charge, 50) == 12
            assert link.is_away
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await link.back()
            assert await count_taken(limits, charge, 50) == 20  # by a Redis that knows of nothing


@needs_redis
async def test_a_redis_that_stands_still_or_is_full_or_read_only_is_done_without() -> None:
    with redis_server() as server:
        async with shared_limits(server) as (limits, link):
            server.fill()
            assert await count_taken(limits, slow("full", 3), 10) == 3
            server.make_room()
            server.set_read_only(True)
            assert await count_taken(limits, slow("read only", 3), 10) == 3
            server.set_read_only(False)
            with server.paused(link):
                metered = slow("paused", 3, 2)
                assert await count_taken(limits, metered, 10) == 2
                await limits.settle(metered, 0, 0)
                assert await count_taken(limits, metered, 10) == 1
                assert link.losses == 1
