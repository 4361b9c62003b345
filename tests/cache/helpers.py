"""Clock, keys and counted answers for the cache tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import anyio

from refdesk.cache.cache import Cache, Key, WireAnswer
from refdesk.calls import TenantId, UserId
from refdesk.config.models import CacheConfig
from refdesk.resilience.redis_connection import RedisLink

LOCK_SECONDS = 3600.0
"""TTL of a lock that outlasts any test."""


class Clock:
    """A clock that tests advance by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class AnswerFactory:
    """Makes and counts answers; with `waits`, each waits for `may_finish`."""

    def __init__(self, *errors: BaseException, waits: bool = False) -> None:
        self.made = 0
        self.stopped = 0
        self.errors = list(errors)
        self.began = anyio.Event()
        self.may_finish = anyio.Event()
        if not waits:
            self.may_finish.set()

    async def __call__(self) -> WireAnswer:
        self.made += 1
        number = self.made
        self.began.set()
        try:
            await self.may_finish.wait()
        except BaseException:
            self.stopped += 1
            raise
        if self.errors:
            raise self.errors.pop(0)
        return answer(number)


class ResultCounter(Counter[str]):
    """Counts the results that the cache reports."""

    def __call__(self, result: str) -> None:
        self[result] += 1


def answer(number: int, text: str = "") -> WireAnswer:
    structured = {"number": number, "text": text, "cached": False}
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def return_answer(made: WireAnswer) -> Callable[[], Awaitable[WireAnswer]]:
    async def make() -> WireAnswer:
        return made

    return make


def key(
    *parameters: Hashable, tenant: str = "acme", user: str = "ann", tool: str = "search", revision: Hashable = 1
) -> Key:
    return Key(TenantId(tenant), UserId(user), tool, parameters, revision)


def cache(clock: Clock | None = None, counted: ResultCounter | None = None, **settings: Any) -> Cache:
    return Cache(CacheConfig(**settings), now=clock or Clock(), counted=ResultCounter() if counted is None else counted)


def make_redis_cache(
    link: RedisLink,
    counted: ResultCounter | None = None,
    *,
    stale_seconds: float | None = None,
    lock_seconds: float = LOCK_SECONDS,
    **more: Any,
) -> Cache:
    """Make a cache in Redis; `more` are arguments of `Cache`."""
    settings = CacheConfig() if stale_seconds is None else CacheConfig(stale_seconds=stale_seconds)
    counted = ResultCounter() if counted is None else counted
    return Cache(settings, link, counted=counted, lock_seconds=lock_seconds, **more)


class Pauses:
    """Pauses that last until the test ends them."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self._over = anyio.Event()

    async def __call__(self, seconds: float) -> None:
        self.began.set()
        await self._over.wait()

    def end(self) -> None:
        """End the current pauses; later ones last until the next call."""
        self._over.set()
        self._over = anyio.Event()
