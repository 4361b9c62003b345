"""The one session of a server that all callers share, opened again when it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from refdesk.downstream.connection.backoff import Delay, RestartPolicy
from refdesk.downstream.connection.leases import Leases
from refdesk.downstream.connection.subscriptions import SubscriptionState, restore_subscriptions
from refdesk.downstream.jsonrpc import NotLetIn, NotTaken
from refdesk.downstream.session import DuplicateFailure, Session, close_all
from refdesk.errors import RefdeskError, ServerAway, ServerGone
from refdesk.resilience.dependency import Pause
from refdesk.support.tasks import cancel_all

if TYPE_CHECKING:
    from refdesk.downstream.connection.connection import Connection

logger = logging.getLogger(__name__)

T = TypeVar("T")

NEVER = float("inf")
"""Retry time of a connection that is stopped."""


class PersistentSession:
    """The one session of a server, shared by all callers."""

    def __init__(
        self,
        connection: Connection,
        subscriptions: SubscriptionState,
        now: Callable[[], float],
        pause: Pause,
        jitter: Callable[[], float],
        extra_session_seconds: float,
    ) -> None:
        self.current: Session | None = None
        self.restarts = -1
        """Number of times the session was reopened."""
        self._connection = connection
        self._subscriptions = subscriptions
        self._now = now
        self._pause = pause
        self._jitter = jitter
        self._restarts = RestartPolicy(connection.settings.connect_tries)
        self._leases = Leases(connection, now, extra_session_seconds)
        self._has_ambiguous_requests = False
        """Whether the server has ever sent requests without naming the call. It may do so again in later sessions."""
        self._waiters: set[asyncio.Future[Session]] = set()
        self.connect_error: RefdeskError | None = None
        """Why there is no session and won't be one soon."""
        self._crashed_in_call = False
        """Whether the last session ended by a crash during a call, which may be what made it crash."""
        self._due_at: float | None = 0.0
        """When the next session is opened without a request; None means never."""
        self._retry_at = 0.0
        """Earliest time at which a request opens a session."""
        self._is_requested = False
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Keep a session open until cancelled, then close all."""
        try:
            while True:
                await self._wait_until_due()
                await self._open_and_wait_until_idle()
        finally:
            self.current = None
            stopped = ServerAway(f"The server {self._connection.name!r} is stopped")
            self.connect_error, self._retry_at = stopped, NEVER
            self._connection.set_status("Stopped")
            for waiter in self._pop_waiters():
                waiter.set_exception(ServerAway(stopped.detail))
            await close_all(list(self._connection.sessions))

    async def execute(self, work: Callable[[Session], Awaitable[T]], key: object = None, target: str = "") -> T:
        """Run `work` in the current session, or in the one being opened.

        `key` identifies the client, and `target` what is called.
        """
        session = self.current or await self._get_session()
        self._has_ambiguous_requests = self._has_ambiguous_requests or session.peer.ambiguous_requests > 0
        if self._has_ambiguous_requests and key is not None:
            return await self._leases.use(self._get_session, key, target, work)
        try:
            return await self._leases.run(session, target, work)
        except (NotTaken, NotLetIn) as error:
            if self.current is session:
                if session.in_flight and isinstance(error, NotLetIn):
                    raise  # other calls still need the session
                self.on_lost(session, error)
                session.end()
        except ServerAway as error:
            if error.retry_after is None:  # a server that sets Retry-After is alive
                self.check_liveness()
            raise
        again = self.current or await self._get_session()
        return await again.use(work, self._now())

    def check_liveness(self) -> None:
        """Probe the session after a failure."""
        if self.current is not None:
            self.current.check_liveness(self._connection.settings.connect_timeout_seconds)

    def raise_if_unavailable(self) -> None:
        """Raise the reason if there is no session and won't be one soon."""
        wait = self._retry_at - self._now()
        error = self.connect_error
        if self.current is None and error is not None and wait > 0:
            kind = type(error) if isinstance(error, ServerAway) and not isinstance(error, NotLetIn) else ServerAway
            raise kind(error.detail, retry_after=wait if wait < NEVER else None)

    @property
    def is_connected(self) -> bool:
        """Whether there is a session."""
        return self.current is not None

    async def restart(self) -> None:
        """Close the session, open a new one, and wait for the outcome."""
        if self._retry_at == NEVER:
            self.raise_if_unavailable()
        old, self.current = self.current, None
        self._connection.set_status("Starting")
        sessions = self._connection.sessions
        await close_all([session for session in sessions if session is old or session.owner is self._leases])
        self._restarts.reset()
        self._due_at = self._retry_at = self._now()
        try:
            await self._get_session()
        except (RefdeskError, DuplicateFailure) as error:
            fields = {"server": self._connection.name, "why": str(error)}
            logger.info("downstream.restart_failed", extra={"fields": fields})

    # Session owner

    def on_open(self, session: Session) -> None:
        """Make the session current and hand it to the waiters."""
        self.current = session
        self._is_requested = False
        self.restarts += 1
        self._connection.on_open(session)
        session.used_at = self._now()
        if not self._crashed_in_call:
            self._connection.dependency.mark_recovered()
        self.connect_error, self._crashed_in_call = None, False
        self._connection.set_status("Running")
        state, on_missed = self._subscriptions, self._connection.on_notification
        session.background.spawn(restore_subscriptions(session, state, on_missed, self._pause))
        for waiter in self._pop_waiters():
            waiter.set_result(session)

    def on_lost(self, session: Session, error: RefdeskError) -> None:
        """Schedule the next session right away, so that the next call knows."""
        if self.current is not session:
            return
        self.current = None
        self._crashed_in_call = isinstance(error, ServerGone) and session.in_flight > 0
        if session.answers:
            delay = self._restarts.back_off_after_use(self._now())
        else:
            delay = self._restarts.back_off_after_loss(self._now(), self._jitter())
        if self._restarts.failures > 1:
            self._mark_unavailable(error, delay)
        else:
            self._schedule(delay)
            self._connection.set_status("Starting")
        self._wake.set()

    def on_closed(self, session: Session) -> None:
        self._connection.on_closed(session)

    # Lifecycle

    async def _wait_until_due(self) -> None:
        while True:
            now = self._now()
            if (self._is_requested and now >= self._retry_at) or (self._due_at is not None and now >= self._due_at):
                return
            self._wake.clear()
            await self._wait(None if self._due_at is None else self._due_at - now)

    async def _open_and_wait_until_idle(self) -> None:
        """Open a session, and wait until it's lost, restarted or idle for too long."""
        self._is_requested = False
        self._connection.set_status("Starting")
        self._restarts.record_attempt(self._now())
        session = self._connection.create_session(self, self._connection.on_notification)
        try:
            await self._connection.open(session)
        except RefdeskError as error:
            self._mark_unavailable(error, self._restarts.back_off_after_failure(self._now(), self._jitter()))
        while self.current is session:
            self._wake.clear()
            bound = self._connection.settings.idle_seconds
            left = session.used_at + bound - self._now() if bound else None
            if left is None or left > 0:
                await self._wait(left)
            elif session.in_flight or self._subscriptions.uris:
                session.used_at = self._now()
            else:
                self.current, self._due_at, self._retry_at = None, None, 0.0
                self._connection.set_status("Stopped")
                session.end()

    def _schedule(self, delay: Delay) -> None:
        now = self._now()
        self._due_at, self._retry_at = now + delay.seconds, now + delay.on_demand

    def _mark_unavailable(self, error: RefdeskError, delay: Delay) -> None:
        """Set the error status and fail all waiters."""
        self._schedule(delay)
        self._is_requested = False
        self.connect_error = error
        self._connection.set_status("Error", error.detail)
        for number, waiter in enumerate(self._pop_waiters()):
            reason = type(error)(error.detail)
            waiter.set_exception(DuplicateFailure(reason) if number else reason)

    # Waiting

    async def _get_session(self) -> Session:
        """Return the current session, or request one and wait for it."""
        if self.current is not None:
            return self.current
        waiter: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        self._is_requested = True
        self._wake.set()
        try:
            return await waiter
        finally:
            self._waiters.discard(waiter)

    def _pop_waiters(self) -> list[asyncio.Future[Session]]:
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
            await cancel_all(waits)
