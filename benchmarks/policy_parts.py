"""Each part of the policy alone, without a server around it: CPU time of a pass, less that of an empty one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass

from refdesk.cache.cache import Cache, Key
from refdesk.calls import ANONYMOUS, Answer, Call, text_content, tool_answer
from refdesk.config.models import CacheConfig, CircuitBreakerConfig, RateLimitConfig, RedisConfig
from refdesk.config.types import Url
from refdesk.policy.rate_limit import RateLimit
from refdesk.resilience.dependency import Dependency
from refdesk.resilience.limits import MemoryRateLimiter, RateLimiter, RedisRateLimiter
from refdesk.resilience.redis_connection import open_redis

PASSES = 2_000
ROUNDS = 7
"""The least of so many is the work itself; what is above it is the machine."""

PLENTY = 10**9
"""A limit that is counted and never met."""

REDIS_SECONDS = 5.0
"""Not the time-out under test here: a slow machine is not to look like a Redis that is away."""

CALL = Call("tools/call", {"name": "r2r_search"})
ANSWER = tool_answer([text_content("A passage of documentation. " * 250)], structured={"cached": False})

Pass = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class PartCost:
    """What one pass of a part takes of this process, in microseconds; the wall also counts what Redis takes."""

    name: str
    cpu_us: float
    wall_us: float


async def measure_parts(redis_url: str | None) -> list[PartCost]:
    """All parts; those in Redis only where there is one."""
    async with AsyncExitStack() as stack:
        passes: dict[str, Pass] = {"an empty pass": _nothing, "breaker, bulkhead, retry budget": _breaker()}
        passes["limiter in memory: calls"] = _limiter(MemoryRateLimiter(), calls=PLENTY)
        passes["limiter in memory: calls, total, tokens"] = _limiter(
            MemoryRateLimiter(), calls=PLENTY, total_calls=PLENTY, tokens=PLENTY
        )
        passes["cache hit in memory"] = await stack.enter_async_context(_cache_hit(None))
        if redis_url:
            settings = RedisConfig(url=Url(redis_url), timeout_seconds=REDIS_SECONDS)
            link = await stack.enter_async_context(open_redis(settings))
            passes["limiter in Redis: calls"] = _limiter(RedisRateLimiter(link, MemoryRateLimiter()), calls=PLENTY)
            passes["cache hit in Redis"] = await stack.enter_async_context(_cache_hit(redis_url))
        return _less_the_first([await _cost(name, one) for name, one in passes.items()])


async def _cost(name: str, one: Pass) -> PartCost:
    costs = []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(PASSES):
            await one()
        costs.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu_us, wall_us = (min(column) / PASSES * 1e6 for column in zip(*costs, strict=True))
    return PartCost(name, cpu_us, wall_us)


def _less_the_first(costs: list[PartCost]) -> list[PartCost]:
    empty = costs[0]
    return [
        PartCost(cost.name, round(cost.cpu_us - empty.cpu_us, 2), round(cost.wall_us - empty.wall_us, 2))
        for cost in costs[1:]
    ]


async def _nothing() -> None:
    return


def _breaker() -> Pass:
    dependency = Dependency("benchmark", CircuitBreakerConfig())
    return lambda: dependency.run(_nothing)


def _limiter(limits: RateLimiter, **settings: int) -> Pass:
    policy = RateLimit(RateLimitConfig.model_validate(settings), limits)
    answer = Answer(ANSWER)

    async def proceed(call: Call) -> Answer:
        return answer

    return lambda: policy(CALL, proceed)


@asynccontextmanager
async def _cache_hit(redis_url: str | None) -> AsyncIterator[Pass]:
    """What a tool does that finds its answer in the cache."""
    async with AsyncExitStack() as stack:
        link = None
        if redis_url:
            settings = RedisConfig(url=Url(redis_url), timeout_seconds=REDIS_SECONDS)
            link = await stack.enter_async_context(open_redis(settings))
        cache = await stack.enter_async_context(aclosing(Cache(CacheConfig(), link)))

        async def make() -> dict[str, object]:
            return ANSWER

        async def hit() -> object:
            key = Key(ANONYMOUS.tenant, ANONYMOUS.user, "r2r_search", ("a question", 10), revision=1)
            return await cache.answer(key, 3600, make)

        await hit()
        yield hit
