"""A session that is kept: opened at once, opened again when it is lost, closed while nobody uses it.

One task, `run`, decides when there is one. Each session is opened and closed by a task of its own, so that one that
takes long to die does not keep the next one waiting.
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
"""When a server can be called again that is no longer kept."""


class PersistentSession:
    """The one session of a server that all callers use."""

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
        """How often it was opened again."""
        self._host = host
        self._now = now
        self._pause = pause
        self._jitter = jitter
        self._restarts = RestartPolicy(host.settings.connect_tries)
        self._session_tasks: set[SessionTask] = set()
        self._leases = Leases(host, now, extra_session_seconds)
        self._has_ambiguous_requests = False
        """Whether the server asks clients something and does not say which; what it once did it may do again."""
        self._waiters: set[asyncio.Future[SessionTask]] = set()
        self._error: RefdeskError | None = None
        self._due_at: float | None = 0.0
        """When a session is opened next by itself; never while it is None."""
        self._retry_at = 0.0
        """From when on a call has it opened."""
        self._is_requested = False
        self._wake = asyncio.Event()
        self._subscriptions = subscriptions

    async def run(self) -> None:
        """Keep a session until this is cancelled; then nothing is left of it."""
        try:
            while True:
                await self._wait_until_due()
                await self._wait_until_idle(await self._open())
        finally:
            await self._close()

    async def execute(self, work: Callable[[McpSession], Awaitable[T]], key: object = None) -> T:
        """Do something in the session that is there, or in the one that is being opened; `key` is of the client."""
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
            if error.retry_after is None:  # whoever says when to come back is there
                self.check_liveness()
            raise
        again = self.current or await self._wait_for_session()
        return await again.use(work, self._now())

    async def _get_session(self) -> SessionTask:
        return self.current or await self._wait_for_session()

    def check_liveness(self) -> None:
        """Somebody was let down."""
        if self.current is not None:
            self.current.check_liveness(self._host.connect_seconds)

    def raise_if_unavailable(self) -> None:
        """Raise why there is no session, when waiting for one would be in vain for now."""
        wait = self._retry_at - self._now()
        if self.current is None and self._error is not None and wait > 0:
            raise ServerAway(self._error.detail, retry_after=wait if wait < NEVER else None)

    async def restart(self) -> None:
        """Close the session and open another one, whatever it stood like; wait for how that turns out."""
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

    # What the link calls.

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """Passed on, whichever session it came in."""
        self._host.on_notification(task, method, params)

    def on_open(self, task: SessionTask) -> None:
        """There is a session: whoever waits for it has it."""
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
        """The session is over: what follows is decided here and now, so that whoever calls next knows it."""
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
        """Nothing is left of it."""
        self._session_tasks.discard(task)
        self._host.on_closed(task)

    # The life of it.

    def _discard(self, task: SessionTask, error: RefdeskError) -> bool:
        """Have another session than this one; not for the sake of one caller while others wait for its answers."""
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
        """Until it is lost or restarted, or nobody has used it for long."""
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
        """How long it may yet be unused; None means for ever."""
        bound = self._host.settings.idle_seconds
        return task.used_at + bound - self._now() if bound else None

    def _schedule(self, delay: Delay) -> None:
        now = self._now()
        self._due_at, self._retry_at = now + delay.seconds, now + delay.on_demand

    def _mark_unavailable(self, error: RefdeskError, delay: Delay) -> None:
        """There is no session, nor will there be one soon: nobody waits for it."""
        self._schedule(delay)
        self._is_requested = False
        self._error = error
        self._host.set_status(Status("Error", error.detail))
        for number, waiter in enumerate(self._pop_waiters()):
            reason = type(error)(error.detail)
            waiter.set_exception(DuplicateFailure(reason) if number else reason)

    async def _close(self) -> None:
        """End all sessions and wait for that; told to hurry, it does."""
        self.current = None
        self._error, self._retry_at = ServerAway(f"The server {self._host.name!r} is no longer used"), NEVER
        self._host.set_status(STOPPED)
        for waiter in self._pop_waiters():
            waiter.set_exception(ServerAway(self._error.detail))
        try:
            await self._leases.close()
        finally:
            await close_all(list(self._session_tasks))

    # Waiting.

    async def _wait_for_session(self) -> SessionTask:
        """The session that is being opened, or that is opened because of this."""
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
        """Until there is something to decide, or for so long."""
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
