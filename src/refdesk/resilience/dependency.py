"""Calls of an external dependency through a bulkhead, a circuit breaker and retries."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from anyio import Semaphore, WouldBlock

from refdesk.config.models import CircuitBreakerConfig
from refdesk.errors import (
    INTERNAL_ERROR,
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

logger = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 0.2
"""Longest pause before the first retry, doubled before each further one. Short disruptions, such as a connection closed
while idle, are over by then."""

LONGEST_PAUSE_SECONDS = 10.0
"""Longest pause before a retry. For longer ones the caller gets an error with `retry_after`."""

RETRY_SHARE = 0.1
"""Share of the calls that may be retried, however many fail."""

RETRY_RESERVE = 10.0
"""Initial and maximum number of retries in the budget."""

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""Longer values of `Retry-After` are capped, unless the caller sets another cap."""

_SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)


class RetryBudget:
    """Retry budget: every call adds a fraction of a retry, every retry takes one.

    Without it, a dependency that is down would get three times the requests.
    """

    __slots__ = ("_balance",)

    def __init__(self) -> None:
        self._balance = RETRY_RESERVE

    def count_call(self) -> None:
        """Record the first attempt of a call."""
        self._balance = min(RETRY_RESERVE, self._balance + RETRY_SHARE)

    def take_retry(self) -> bool:
        """Take a retry from the budget. Return False if there is none."""
        if self._balance < 1:
            return False
        self._balance -= 1
        return True


def compute_pause(retry: int, retry_after: float | None, patience: float, chance: float) -> float | None:
    """Return the seconds to wait before a retry (the first is 1), or None if that exceeds `patience`.

    `chance` is a random number between 0 and 1. Callers that failed together must not retry together, even if they all
    got the same `Retry-After`.
    """
    jitter = chance * min(patience, FIRST_PAUSE_SECONDS * float(2 ** (retry - 1)))
    if retry_after is None:
        return jitter
    return retry_after + jitter if retry_after <= patience else None


def parse_retry_after(header: str | None, max_seconds: float = LONGEST_RETRY_AFTER_SECONDS) -> float | None:
    """Parse a `Retry-After` header in seconds. Dates aren't supported."""
    text = (header or "").strip()
    return min(float(text), max_seconds) if _SECONDS.fullmatch(text) else None


FULL_RETRY_AFTER_SECONDS = 1.0
"""`retry_after` when the queue is full. Part of it is done by then."""


T = TypeVar("T")


class DependencyListener(Protocol):
    """Listener for the calls of a dependency. A subclass may ignore all but the changes of the breaker."""

    def on_breaker_change(self, name: str, state: State) -> None: ...

    def on_breaker_rejection(self, name: str) -> None:
        return

    def on_retry(self, name: str) -> None:
        return

    def asking(self, name: str, operation: str) -> AbstractContextManager[None]:
        """Return a context manager around a request to the dependency."""
        return nullcontext()


Pause = Callable[[float], Awaitable[None]]

CONCURRENCY = 100
"""Concurrent calls, and as many queued ones: more than a service handles well, and few enough to keep in memory."""

SERVICE = CircuitBreakerConfig(failure_threshold=5, timeout_seconds=30, success_threshold=1)
"""Breaker settings for an optional, stateless service: retried soon, and one response shows that it has recovered."""

_FAILURES = (DependencyError, OSError, TimeoutError)
_FAILURE_CODES = (INTERNAL_ERROR, -32000)
"""Codes with which a server says that it failed itself, not that the request is wrong."""
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
        # The bulkhead: as many calls may run, and as many more wait for one of these slots in order.
        self._slots = Semaphore(concurrency)
        self._max_waiting = concurrency
        self._budget = RetryBudget()
        self._now = now
        self._pause = pause
        self._chance = chance
        self._listeners: list[DependencyListener] = []
        self._reported_state: State = "closed"

    def watch(self, *listeners: DependencyListener) -> None:
        """Add listeners, which get the current state at once."""
        for listener in listeners:
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
        state: dict[str, Any] = {"state": self.state, "failures": self._breaker.failures}
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
            try:
                self._slots.acquire_nowait()
            except WouldBlock:
                await self._queue(queue_seconds)
            permit = self._admit()
            if not retry:
                self._budget.count_call()
            try:
                answer = await work()
            except BaseException as error:
                retry += 1
                pause = self._pause_before(retry, error, patience) if retry <= retries else None
                # The breaker counts calls: an attempt that is retried is none yet.
                self._settle(permit, _classify(error) if pause is None else "unknown")
                if pause is None:
                    raise
            else:
                self._settle(permit, "success")
                return answer
            for listener in self._listeners:
                listener.on_retry(self.name)
            await self._pause(pause)

    async def _queue(self, seconds: float | None) -> None:
        """Wait for a slot, unless the breaker would reject the call anyway, or too many wait already."""
        if wait := self._breaker.retry_after(self._now()):
            raise self._build_rejection(wait) from None
        if self._slots.statistics().tasks_waiting >= self._max_waiting:
            detail = f"Too many calls wait for {self.name}; try again in a moment"
            raise Overloaded(detail, retry_after=FULL_RETRY_AFTER_SECONDS) from None
        try:
            async with asyncio.timeout(seconds):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(f"No free slot for a call to {self.name} within {seconds:g} s. Try again later.") from None

    def _admit(self) -> Permit:
        """Get a permit from the breaker. If it rejects the call, the slot is released."""
        now = self._now()
        permit = self._breaker.admit(now)
        if permit is None:
            self._slots.release()
            raise self._build_rejection(self._breaker.retry_after(now))
        if self._breaker.state != self._reported_state:
            self._notify_listeners()
        return permit

    def _settle(self, permit: Permit, outcome: Outcome) -> None:
        self._slots.release()
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


class BreakerLog(DependencyListener):
    """Dependency listener that logs state changes of breakers. Metrics count the rest, which is too much to log."""

    def __init__(self) -> None:
        self._states: dict[str, State] = {}

    def on_breaker_change(self, name: str, state: State) -> None:
        before, self._states[name] = self._states.get(name, "closed"), state
        if before != state:
            level = logging.WARNING if state == "open" else logging.INFO
            fields = {"dependency": name, "before": before, "state": state}
            logger.log(level, "breaker.changed", extra={"fields": fields})


def _classify(error: BaseException) -> Outcome:
    """Classify an error. Cancellation and bugs of our own say nothing about the dependency."""
    if isinstance(error, _FAILURES) or (isinstance(error, ServerRefused) and error.code in _FAILURE_CODES):
        return "failure"
    return "answered" if isinstance(error, _ANSWERS) else "unknown"
