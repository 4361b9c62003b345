"""What the tests of the cache have in common: a time, questions, and answers that are counted as they are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from typing import Any

import anyio

from refdesk.cache import Cache, Key, WireAnswer
from refdesk.calls import TenantId, UserId
from refdesk.config import CacheConfig
from refdesk.resilience.redis import RedisLink

LOCK_SECONDS = 3600.0
"""Of a lock that nobody outwaits, however slow the machine is: whoever gets past it was let past."""


class Clock:
    """A time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Kitchen:
    """Makes answers and counts them; with `waits`, each waits until it may be served."""

    def __init__(self, *errors: BaseException, waits: bool = False) -> None:
        self.made = 0
        self.stopped = 0
        self.errors = list(errors)
        self.began = anyio.Event()
        self.may_serve = anyio.Event()
        if not waits:
            self.may_serve.set()

    async def __call__(self) -> WireAnswer:
        self.made += 1
        number = self.made
        self.began.set()
        try:
            await self.may_serve.wait()
        except BaseException:
            self.stopped += 1
            raise
        if self.errors:
            raise self.errors.pop(0)
        return answer(number)


class Counted(Counter[str]):
    """What the cache has counted."""

    def __call__(self, result: str) -> None:
        self[result] += 1


def answer(number: int, text: str = "") -> WireAnswer:
    structured = {"number": number, "text": text, "cached": False}
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured}


def making(made: WireAnswer) -> Callable[[], Awaitable[WireAnswer]]:
    async def make() -> WireAnswer:
        return made

    return make


def key(*asked: Hashable, tenant: str = "acme", user: str = "ann", tool: str = "search", revision: Hashable = 1) -> Key:
    return Key(TenantId(tenant), UserId(user), tool, asked, revision)


def cache(clock: Clock | None = None, counted: Counted | None = None, **settings: Any) -> Cache:
    return Cache(CacheConfig(**settings), now=clock or Clock(), counted=Counted() if counted is None else counted)


def shared_cache(
    link: RedisLink,
    counted: Counted | None = None,
    *,
    stale_seconds: float | None = None,
    lock_seconds: float = LOCK_SECONDS,
    **more: Any,
) -> Cache:
    """A cache in Redis; `more` are arguments of `Cache`."""
    settings = CacheConfig() if stale_seconds is None else CacheConfig(stale_seconds=stale_seconds)
    counted = Counted() if counted is None else counted
    return Cache(settings, link, counted=counted, lock_seconds=lock_seconds, **more)


class Pauses:
    """Pauses that begin when the code under test wants one, and end when the test says so."""

    def __init__(self) -> None:
        self.began = anyio.Event()
        self._over = anyio.Event()

    async def __call__(self, seconds: float) -> None:
        self.began.set()
        await self._over.wait()

    def end(self) -> None:
        """End the pauses that have begun; those that begin later last until the next call."""
        self._over.set()
        self._over = anyio.Event()
