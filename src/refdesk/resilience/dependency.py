"""Calls of an external dependency through a bulkhead, a circuit breaker and retries."""

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
from refdesk.resilience.retries import LONGEST_PAUSE_SECONDS, RetryBudget, compute_pause

T = TypeVar("T")


class DependencyListener(Protocol):
    """Listener for the calls of a dependency."""

    def on_breaker_change(self, name: str, state: State) -> None:
        """Handle a new breaker state."""
        ...

    def on_breaker_rejection(self, name: str) -> None:
        """Handle a call that the breaker rejected."""
        ...

    def on_retry(self, name: str) -> None:
        """Handle a retry."""
        ...

    def asking(self, name: str, operation: str) -> AbstractContextManager[None]:
        """Return a context manager around a request to the dependency."""
        ...


Pause = Callable[[float], Awaitable[None]]

CONCURRENCY = 100
"""Concurrent calls, and as many queued ones: more than a service handles well, and few enough to keep in memory."""

SERVICE = CircuitBreakerConfig(failure_threshold=5, timeout_seconds=30, success_threshold=1)
"""Breaker settings for an optional, stateless service: retried soon, and one response shows that it has recovered."""

_FAILURES = (DependencyError, OSError, TimeoutError)
_ANSWERS = (ToolFailure, InvalidCall, RateLimited, ServerRefused)


class Dependency:
    """An external dependency with breaker, bulkhead and retry budget."""

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
        self._listeners: list[DependencyListener] = []
        self._reported_state: State = "closed"

    def watch(self, listener: DependencyListener) -> None:
        """Add a listener, which gets the current state at once."""
        self._listeners.append(listener)
        listener.on_breaker_change(self.name, self.state)

    @property
    def state(self) -> State:
        """The state that the next call meets."""
        return self._breaker.state_at(self._now())

    def mark_recovered(self) -> None:
        """Close the breaker because the dependency is known to have recovered."""
        self._breaker.close()
        if self._breaker.state != self._reported_state:
            self._notify_listeners()

    def describe(self) -> dict[str, Any]:
        """Return the state for the readiness endpoint."""
        now = self._now()
        state: dict[str, Any] = {"state": self._breaker.state_at(now), "failures": self._breaker.failures}
        if wait := self._breaker.retry_after(now):
            state["retry_after"] = round(wait, 3)
        return state

    @contextmanager
    def asking(self, operation: str) -> Iterator[None]:
        """Wrap one request for the listeners. Retried work enters it each time."""
        with ExitStack() as contexts:
            for listener in self._listeners:
                contexts.enter_context(listener.asking(self.name, operation))
            yield

    async def run(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        retries: int = 0,
        patience: float = LONGEST_PAUSE_SECONDS,
        queue_seconds: float | None = None,
    ) -> T:
        """Run the work and return its result.

        Only errors marked as retryable are retried. `patience` is the longest pause before a retry, and `queue_seconds`
        the longest wait for a slot.

        Raises `BreakerOpen` at once while the breaker is open, and `Overloaded` if too many calls are queued.
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
                self._settle(permit, _classify(error))
                retry += 1
                pause = self._pause_before(retry, error, patience) if retry <= retries else None
                if pause is None:
                    raise
            else:
                self._settle(permit, "success")
                return answer
            for listener in self._listeners:
                listener.on_retry(self.name)
            await self._pause(pause)

    async def _queue(self, seconds: float | None) -> None:
        """Wait for a slot in the bulkhead, unless the breaker would reject the call anyway."""
        if wait := self._breaker.retry_after(self._now()):
            raise self._build_rejection(wait)
        try:
            async with asyncio.timeout(seconds):
                await self._bulkhead.wait()
        except TimeoutError:
            raise Overloaded(f"No free slot for a call to {self.name} within {seconds:g} s. Try again later.") from None

    def _admit(self) -> Permit:
        """Get a permit from the breaker. If it rejects the call, the slot is released."""
        now = self._now()
        permit = self._breaker.admit(now)
        if permit is None:
            self._bulkhead.leave()
            raise self._build_rejection(self._breaker.retry_after(now))
        if self._breaker.state != self._reported_state:
            self._notify_listeners()
        return permit

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        self._bulkhead.leave()
        self._breaker.settle(permit, outcome, self._now())
        if self._breaker.state != self._reported_state:
            self._notify_listeners()

    def _notify_listeners(self) -> None:
        self._reported_state = self._breaker.state
        for listener in self._listeners:
            listener.on_breaker_change(self.name, self._reported_state)

    def _pause_before(self, retry: int, error: BaseException, patience: float) -> float | None:
        """Return the seconds until the retry, or None if there is none."""
        if not isinstance(error, RefdeskError) or not error.retryable:
            return None
        pause = compute_pause(retry, error.retry_after, patience, self._chance())
        if pause is None or self._breaker.retry_after(self._now()) > pause:
            return None
        return pause if self._budget.take_retry() else None

    def _build_rejection(self, wait: float) -> BreakerOpen:
        """Build the error of a rejected call.

        A new one each time: an error that is raised repeatedly keeps every traceback.
        """
        for listener in self._listeners:
            listener.on_breaker_rejection(self.name)
        return BreakerOpen(
            f"The dependency {self.name!r} failed several times in a row. Try again in {wait:.1f} seconds.",
            retry_after=wait,
        )


def _classify(error: BaseException) -> Outcome:
    """Classify an error. Cancellation and bugs of our own say nothing about the dependency."""
    if isinstance(error, _FAILURES):
        return "failure"
    return "answered" if isinstance(error, _ANSWERS) else "unknown"
