"""Something behind this server, with all that stands around every call of it: bulkhead, breaker, retries."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol, TypeVar

from refdesk.config import CircuitBreakerConfig
from refdesk.errors import (
    BreakerOpen,
    DependencyError,
    InvalidCall,
    Overloaded,
    RateLimited,
    RefdeskError,
    ServerRefused,
    ToolFailure,
)
from refdesk.resilience.breaker import Breaker, Outcome, Permit, State
from refdesk.resilience.bulkhead import Bulkhead
from refdesk.resilience.retries import LONGEST_PAUSE_SECONDS, RetryBudget, pause_before

T = TypeVar("T")


class Watcher(Protocol):
    """Who counts what becomes of the calls."""

    def breaker_changed(self, name: str, state: State) -> None:
        """The breaker of this dependency has another state now."""
        ...

    def breaker_rejected(self, name: str) -> None:
        """A call was not let through."""
        ...

    def retried(self, name: str) -> None:
        """A call is made again."""
        ...

    def asking(self, name: str, operation: str) -> AbstractContextManager[None]:
        """Around a request to this dependency."""
        ...


Pause = Callable[[float], Awaitable[None]]

CONCURRENCY = 100
"""Calls at a time, and as many again that wait: more than a service takes well, and few enough to hold in memory."""

SERVICE = CircuitBreakerConfig(failure_threshold=5, timeout_seconds=30, success_threshold=1)
"""The breaker of a service that the desk can do without for a while and that keeps no state between its answers: soon
tried again, and one answer shows that it is back."""

_FAILURES = (DependencyError, OSError, TimeoutError)
_ANSWERS = (ToolFailure, InvalidCall, RateLimited, ServerRefused)


class Dependency:
    """Something behind us: breaker, bulkhead and retry budget around every call of it."""

    def __init__(
        self,
        name: str,
        settings: CircuitBreakerConfig,
        *,
        trials: int = 1,
        concurrency: int = CONCURRENCY,
        now: Callable[[], float] = time.monotonic,
        pause: Pause = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self._breaker = Breaker(settings, trials=trials)
        self._bulkhead = Bulkhead(name, concurrency, concurrency)
        self._budget = RetryBudget()
        self._now = now
        self._pause = pause
        self._chance = chance
        self._watchers: list[Watcher] = []
        self._told: State = "closed"

    def watch(self, watcher: Watcher) -> None:
        """Have what happens told, beginning with the state as it is."""
        self._watchers.append(watcher)
        watcher.breaker_changed(self.name, self.state)

    @property
    def state(self) -> State:
        """The state as the next caller meets it."""
        return self._breaker.state_at(self._now())

    def recovered(self) -> None:
        """It is known to be back, by other means than a call: nobody need wait for the breaker to find out."""
        self._breaker.close()
        if self._breaker.state != self._told:
            self._tell()

    def describe(self) -> dict[str, Any]:
        """How it is, for those who look after this server."""
        now = self._now()
        described: dict[str, Any] = {"state": self._breaker.state_at(now), "failures": self._breaker.failures}
        if wait := self._breaker.retry_after(now):
            described["retry_after"] = round(wait, 3)
        return described

    @contextmanager
    def asking(self, operation: str) -> Iterator[None]:
        """Around the request itself, once for each time that the work is done, for those who count and time it."""
        with ExitStack() as watched:
            for watcher in self._watchers:
                watched.enter_context(watcher.asking(self.name, operation))
            yield

    async def run(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        retries: int = 0,
        patience: float = LONGEST_PAUSE_SECONDS,
        queue_seconds: float | None = None,
    ) -> T:
        """The result of the work; repeated, when that is allowed, only after errors that say of themselves they may
        pass. `patience` is the longest pause that this caller makes for a retry, and `queue_seconds` the longest that
        it waits for a place.

        Raises `BreakerOpen` at once while the dependency is left alone, and `Overloaded` when too many wait for it.
        """
        retry = 0
        while True:
            if not self._bulkhead.enter():
                await self._queue(queue_seconds)
            permit = self._admit()
            if not retry:
                self._budget.count_call()
            try:
                answer = await work()
            except BaseException as error:
                self._settle(permit, _outcome(error))
                retry += 1
                pause = self._pause_before(retry, error, patience) if retry <= retries else None
                if pause is None:
                    raise
            else:
                self._settle(permit, "success")
                return answer
            for watcher in self._watchers:
                watcher.retried(self.name)
            await self._pause(pause)

    async def _queue(self, seconds: float | None) -> None:
        """Wait for a place in the bulkhead, unless the breaker would refuse the call afterwards anyway."""
        if wait := self._breaker.retry_after(self._now()):
            raise self._left_alone(wait)
        try:
            async with asyncio.timeout(seconds):
                await self._bulkhead.wait()
        except TimeoutError:
            raise Overloaded(f"No place for a call of {self.name} within {seconds:g} s; try again later") from None

    def _admit(self) -> Permit:
        """Leave to make the call; without it the place in the bulkhead is given back."""
        now = self._now()
        permit = self._breaker.admit(now)
        if permit is None:
            self._bulkhead.leave()
            raise self._left_alone(self._breaker.retry_after(now))
        if self._breaker.state != self._told:
            self._tell()
        return permit

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        self._bulkhead.leave()
        self._breaker.settle(permit, outcome, self._now())
        if self._breaker.state != self._told:
            self._tell()

    def _tell(self) -> None:
        self._told = self._breaker.state
        for watcher in self._watchers:
            watcher.breaker_changed(self.name, self._told)

    def _pause_before(self, retry: int, error: BaseException, patience: float) -> float | None:
        """The seconds until the call is made once more; None when it is not."""
        if not isinstance(error, RefdeskError) or not error.retryable:
            return None
        pause = pause_before(retry, error.retry_after, patience, self._chance())
        if pause is None or self._breaker.retry_after(self._now()) > pause:
            return None
        return pause if self._budget.take_retry() else None

    def _left_alone(self, wait: float) -> BreakerOpen:
        """A new error each time: one that is raised again and again keeps the traceback of every time."""
        for watcher in self._watchers:
            watcher.breaker_rejected(self.name)
        return BreakerOpen(
            f"The dependency {self.name!r} failed several times in a row and is left alone for a while; "
            f"try again in {wait:.1f} seconds",
            retry_after=wait,
        )


def _outcome(error: BaseException) -> Outcome:
    """What an error says about the dependency: nothing when the call was called off, or our own code is wrong."""
    if isinstance(error, _FAILURES):
        return "failure"
    return "answered" if isinstance(error, _ANSWERS) else "unknown"
