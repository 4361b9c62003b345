"""Persistent session: opened at once, reopened after a loss, and closed when idle.

One task, `run`, decides when to open a session. Each session is opened and closed by its own task, so that one which is
slow to close doesn't delay the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from refdesk.downstream.connection.backoff import Delay, RestartPolicy
from refdesk.downstream.connection.leases import Leases
from refdesk.downstream.connection.session_task import DuplicateFailure, SessionHost, SessionTask, close_all
from refdesk.downstream.connection.status import RUNNING, STARTING, STOPPED, Status
from refdesk.downstream.connection.subscriptions import SubscriptionState
from refdesk.downstream.session import McpSession
from refdesk.downstream.transports.base import NotLetIn, NotTaken
from refdesk.errors import RefdeskError, ServerAway
from refdesk.resilience.dependency import Pause

logger = logging.getLogger(__name__)

T = TypeVar("T")

NEVER = float("inf")
"""Retry time of a connection that is stopped."""


class PersistentSession:
    """The one session of a server, shared by all callers."""

    def __init__(
        self,
        host: SessionHost,
        subscriptions: SubscriptionState,
        *,
        now: Callable[[], float],
        pause: Pause,
        jitter: Callable[[], float],
        extra_session_seconds: float,
    ) -> None:
        self.current: SessionTask | None = None
        self.restarts = -1
        """Number of times the session was reopened."""
        self._host = host
        self._now = now
        self._pause = pause
        self._jitter = jitter
        self._restarts = RestartPolicy(host.settings.connect_tries)
        self._session_tasks: set[SessionTask] = set()
        self._leases = Leases(host, now, extra_session_seconds)
        self._has_ambiguous_requests = False
        """Whether the server has ever sent requests without naming the call. It may do so again in later sessions."""
        self._waiters: set[asyncio.Future[SessionTask]] = set()
        self._error: RefdeskError | None = None
        self._due_at: float | None = 0.0
        """When the next session is opened without a request; None means never."""
        self._retry_at = 0.0
        """Earliest time at which a request opens a session."""
        self._is_requested = False
        self._wake = asyncio.Event()
        self._subscriptions = subscriptions

    async def run(self) -> None:
        """Keep a session open until cancelled, then close all."""
        try:
            while True:
                await self._wait_until_due()
                await self._wait_until_idle(await self._open())
        finally:
            await self._close()

    async def execute(self, work: Callable[[McpSession], Awaitable[T]], key: object = None) -> T:
        """Run `work` in the current session, or in the one being opened. `key` identifies the client."""
        task = self.current or await self._wait_for_session()
        self._has_ambiguous_requests = self._has_ambiguous_requests or task.peer.has_ambiguous_requests
        if self._has_ambiguous_requests and key is not None:
            return await self._leases.use(self._get_session, key, work)
        try:
            return await task.use(work, self._now())
        except (NotTaken, NotLetIn) as error:
            if not self._discard(task, error):
                raise
        except ServerAway as error:
            if error.retry_after is None:  # a server that sets Retry-After is alive
                self.check_liveness()
            raise
        again = self.current or await self._wait_for_session()
        return await again.use(work, self._now())

    async def _get_session(self) -> SessionTask:
        return self.current or await self._wait_for_session()

    def check_liveness(self) -> None:
        """Probe the session after a failure."""
        if self.current is not None:
            self.current.check_liveness(self._host.connect_seconds)

    def raise_if_unavailable(self) -> None:
        """Raise the reason if there is no session and won't be one soon."""
        wait = self._retry_at - self._now()
        if self.current is None and self._error is not None and wait > 0:
            raise ServerAway(self._error.detail, retry_after=wait if wait < NEVER else None)

    async def restart(self) -> None:
        """Close the session, open a new one, and wait for the outcome."""
        if self._retry_at == NEVER:
            self.raise_if_unavailable()
        old, self.current = self.current, None
        self._host.set_status(STARTING)
        if old is not None:
            old.end()
            await old.wait_closed()
        await self._leases.close()
        self._restarts.reset()
        self._due_at = self._retry_at = self._now()
        try:
            await self._wait_for_session()
        except (RefdeskError, DuplicateFailure) as error:
            logger.info("downstream.restart_failed", extra={"fields": {"server": self._host.name, "why": str(error)}})

    # Session listener

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification."""
        self._host.on_notification(task, method, params)

    def on_open(self, task: SessionTask) -> None:
        """Make the session current and hand it to the waiters."""
        self.current = task
        self._is_requested = False
        self.restarts += 1
        self._host.on_open(task)
        task.used_at = self._now()
        if self._error is not None:
            self._host.mark_recovered()
        self._error = None
        self._host.set_status(RUNNING)
        task.restore_subscriptions(self._subscriptions, self._pause)
        for waiter in self._pop_waiters():
            waiter.set_result(task)

    def on_lost(self, task: SessionTask, error: RefdeskError) -> None:
        """Schedule the next session right away, so that the next call knows."""
        if self.current is not task:
            return
        self.current = None
        if task.has_answered:
            delay = self._restarts.back_off_after_use(self._now())
        else:
            delay = self._restarts.back_off_after_loss(self._now(), self._jitter())
        if self._restarts.failures > 1:
            self._mark_unavailable(error, delay)
        else:
            self._schedule(delay)
            self._host.set_status(STARTING)
        self._wake.set()

    def on_closed(self, task: SessionTask) -> None:
        """Remove a closed session."""
        self._session_tasks.discard(task)
        self._host.on_closed(task)

    # Lifecycle

    def _discard(self, task: SessionTask, error: RefdeskError) -> bool:
        """Drop a session so that the call can be retried in a new one. Return False if other calls still need it."""
        if self.current is task:
            if task.in_flight and isinstance(error, NotLetIn):
                return False
            self.on_lost(task, error)
            task.end()
        return True

    async def _wait_until_due(self) -> None:
        while not self._is_due():
            self._wake.clear()
            await self._wait(None if self._due_at is None else self._due_at - self._now())

    def _is_due(self) -> bool:
        now = self._now()
        if self._is_requested and now >= self._retry_at:
            return True
        return self._due_at is not None and now >= self._due_at

    async def _open(self) -> SessionTask:
        self._is_requested = False
        self._host.set_status(STARTING)
        self._restarts.record_attempt(self._now())
        task = self._host.create_session_task(self)
        self._session_tasks.add(task)
        try:
            await self._host.open(task)
        except RefdeskError as error:
            self._mark_unavailable(error, self._restarts.back_off_after_failure(self._now(), self._jitter()))
        return task

    async def _wait_until_idle(self, task: SessionTask) -> None:
        """Wait until the session is lost, restarted or idle for too long."""
        while self.current is task:
            self._wake.clear()
            left = self._remaining_idle_seconds(task)
            if left is None or left > 0:
                await self._wait(left)
            elif task.in_flight or self._subscriptions.has_subscriptions:
                task.used_at = self._now()
            else:
                self.current, self._due_at, self._retry_at = None, None, 0.0
                self._host.set_status(STOPPED)
                task.end()

    def _remaining_idle_seconds(self, task: SessionTask) -> float | None:
        """Return how long the session may stay unused; None means forever."""
        bound = self._host.settings.idle_seconds
        return task.used_at + bound - self._now() if bound else None

    def _schedule(self, delay: Delay) -> None:
        now = self._now()
        self._due_at, self._retry_at = now + delay.seconds, now + delay.on_demand

    def _mark_unavailable(self, error: RefdeskError, delay: Delay) -> None:
        """Set the error status and fail all waiters."""
        self._schedule(delay)
        self._is_requested = False
        self._error = error
        self._host.set_status(Status("Error", error.detail))
        for number, waiter in enumerate(self._pop_waiters()):
            reason = type(error)(error.detail)
            waiter.set_exception(DuplicateFailure(reason) if number else reason)

    async def _close(self) -> None:
        """Close all sessions and wait for them. Cancelling it speeds that up."""
        self.current = None
        self._error, self._retry_at = ServerAway(f"The server {self._host.name!r} is no longer used"), NEVER
        self._host.set_status(STOPPED)
        for waiter in self._pop_waiters():
            waiter.set_exception(ServerAway(self._error.detail))
        try:
            await self._leases.close()
        finally:
            await close_all(list(self._session_tasks))

    # Waiting

    async def _wait_for_session(self) -> SessionTask:
        """Request a session and wait for it."""
        waiter: asyncio.Future[SessionTask] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._is_requested = True
        self._wake.set()
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def _pop_waiters(self) -> list[asyncio.Future[SessionTask]]:
        waiters = [waiter for waiter in self._waiters if not waiter.done()]
        self._waiters.clear()
        return waiters

    async def _wait(self, seconds: float | None) -> None:
        """Wait for a wake-up, at most for so many seconds."""
        if seconds is None:
            await self._wake.wait()
            return
        waits = {asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(self._pause(max(0.0, seconds)))}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.wait(waits)
