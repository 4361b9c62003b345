"""The cache in memory against a model of what it promises, whatever is asked in whatever order.

The model remembers for every key all that was ever made, with when and at which state, and knows nothing of bytes: the
cache may forget, but what it gives was made for this very caller, at this state, and is not older than it may be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest
from anyio.lowlevel import checkpoint
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from refdesk.cache.cache import Cache, Key, WireAnswer, build_pattern
from refdesk.calls import TenantId, UserId
from refdesk.config.models import CacheConfig
from refdesk.errors import EngineError
from tests.cache.helpers import Clock, answer

SECONDS = 10.0
STALE_SECONDS = 20.0
MAX_BYTES = 12_000
MAX_ENTRIES = 5

TENANTS = st.sampled_from(["a", "b", "a:b", "a', 'b"]).map(TenantId)
USERS = st.sampled_from(["a", "b"]).map(UserId)
QUESTIONS = st.integers(0, 3)


@dataclass
class Made:
    """An answer that was made: for whom, at which state, and when."""

    key: Key
    state: int
    at: float


class CacheMachine(RuleBasedStateMachine):
    """Callers, changes, time, and an engine that is down at times."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        configured = CacheConfig(max_bytes=MAX_BYTES, max_entries=MAX_ENTRIES, stale_seconds=STALE_SECONDS)
        self.cache = Cache(configured, now=self.clock)
        self.made: list[Made] = []
        self.states: dict[TenantId, int] = {}
        self.revisions: dict[TenantId, int] = {}
        self.cleared = 0
        self.is_down = False

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        self.run(self.cache.aclose())
        self.loop.close()

    def state(self, tenant: TenantId) -> int:
        return self.states.get(tenant, 0)

    @rule(
        tenant=TENANTS, user=USERS, question=QUESTIONS, size=st.integers(0, 6000), certain=st.booleans(), many=QUESTIONS
    )
    def ask(self, tenant: TenantId, user: UserId, question: int, size: int, certain: bool, many: int) -> None:
        key = Key(tenant, user, "search", (question,), self.revisions.get(tenant, 0))
        state, before = self.state(tenant), len(self.made)

        async def make() -> WireAnswer:
            await checkpoint()
            if self.is_down:
                raise EngineError("down")
            self.made.append(Made(key, state, self.clock.now))
            return answer(len(self.made) - 1, "x" * size)

        async def ask() -> list[Any]:
            asking = [self.cache.answer(key, SECONDS, make, is_certain=certain) for _ in range(many + 1)]
            return await asyncio.gather(*asking, return_exceptions=True)

        outcomes = self.run(ask())
        while self.cache._refreshes:
            self.run(asyncio.wait(self.cache._refreshes.values()))
        assert len(self.made) - before <= 1
        for outcome in outcomes:
            self.check(outcome, key, certain, before)

    def check(self, outcome: Any, key: Key, certain: bool, before: int) -> None:
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, EngineError)
            assert self.is_down
            return
        number = outcome.answer["structuredContent"]["number"]
        made = self.made[number]
        assert made.key == key
        assert made.state == self.state(key.tenant)
        assert number >= self.cleared
        age = self.clock.now - made.at
        assert age < SECONDS + STALE_SECONDS
        assert age < SECONDS or certain or outcome.is_stale
        assert not outcome.is_stale or self.is_down
        assert outcome.is_cached or number >= before

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.9, 10.0, 29.9, 30.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(jump=st.sampled_from([-3600.0, 3600.0, 1e9]))
    def the_wall_clock_jumps(self, jump: float) -> None:
        now = time.time() + jump
        self.patch.setattr(time, "time", lambda: now)
        self.patch.setattr(time, "time_ns", lambda: int(now * 1e9))

    @rule()
    def the_engine_fails_or_recovers(self) -> None:
        self.is_down = not self.is_down

    @rule(tenant=TENANTS)
    def something_changes(self, tenant: TenantId) -> None:
        self.cache.changed(tenant)
        self.states[tenant] = self.state(tenant) + 1

    @rule(tenant=TENANTS)
    def the_engine_sees_a_change(self, tenant: TenantId) -> None:
        self.revisions[tenant] = self.revisions.get(tenant, 0) + 1
        self.states[tenant] = self.state(tenant) + 1

    @rule(tenant=TENANTS)
    @precondition(lambda self: self.made)
    def a_tenant_is_cleared(self, tenant: TenantId) -> None:
        self.run(self.cache.clear_pattern(build_pattern(tenant)))
        self.states[tenant] = self.state(tenant) + 1

    @rule()
    def all_is_cleared(self) -> None:
        self.run(self.cache.clear_pattern("*"))
        assert (len(self.cache), self.cache.bytes) == (0, 0)
        self.cleared = len(self.made)

    @invariant()
    def it_holds_no_more_than_it_may(self) -> None:
        assert 0 <= self.cache.bytes <= MAX_BYTES
        assert len(self.cache) <= MAX_ENTRIES
        assert (len(self.cache) == 0) == (self.cache.bytes == 0)

    patch: pytest.MonkeyPatch


def test_the_cache_keeps_its_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    from hypothesis.stateful import run_state_machine_as_test

    CacheMachine.patch = monkeypatch
    run_state_machine_as_test(CacheMachine, settings=settings(max_examples=100, stateful_step_count=30, deadline=None))
