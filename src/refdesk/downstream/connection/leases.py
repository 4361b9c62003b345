"""Sessions besides the persistent one: leased to one client each, or ephemeral.

Leases are for servers that send requests without naming the call they belong to. Each client gets a session of its own
while it waits for an answer, so that no client is asked about another one's call. Calls of what has asked nothing
before share a session, which is always there for them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from refdesk.downstream.session import Session, close_all
from refdesk.errors import RefdeskError, ServerAway
from refdesk.support.lru import BoundedDict

if TYPE_CHECKING:
    from refdesk.downstream.connection.connection import Connection

T = TypeVar("T")

MAX_SESSIONS = 4
"""Sessions per server, including the persistent one, of which clients of their own have all but one. Others wait."""

MAX_QUIET_TARGETS = 1000
"""Tools and prompts per server that are known to ask nothing."""

SHARED = object()
"""The key of all clients whose calls ask nothing."""

EXTRA_SESSION_SECONDS = 60.0
"""How long an unused extra session stays open. Opening one may start a process."""


MAX_EPHEMERAL_SESSIONS = 8
"""Concurrent ephemeral sessions per server, including those being closed. Each may be a process."""


@dataclass(slots=True)
class _Lease:
    """A client's claim to a session while calls run in it. It keeps its session for the next call if that's free."""

    key: object
    calls: int = 0


class Leases:
    """Leases of a server's sessions, and the owner of all sessions but the persistent one."""

    def __init__(self, connection: Connection, now: Callable[[], float], extra_session_seconds: float) -> None:
        self._connection = connection
        self._now = now
        self._extra_session_seconds = extra_session_seconds
        self._leases: dict[Session, _Lease] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._quiet: BoundedDict[str, None] = BoundedDict(MAX_QUIET_TARGETS)
        """Targets of calls during which the server asked nothing the last time."""

    async def use(
        self, first: Callable[[], Awaitable[Session]], key: object, target: str, work: Callable[[Session], Awaitable[T]]
    ) -> T:
        """Run `work` in a session that no other client uses, unless its target asks nothing.

        `first` returns the persistent session.
        """
        session = await self._acquire(first, key, target)
        try:
            return await self.run(session, target, work)
        finally:
            self._release(session)

    async def run(self, session: Session, target: str, work: Callable[[Session], Awaitable[T]]) -> T:
        """Run `work` in a session, and record whether the server asks anything meanwhile."""
        before = session.peer.ambiguous_requests
        try:
            answer = await session.use(work, self._now())
        finally:
            if session.peer.ambiguous_requests != before:
                self._quiet.pop(target, None)
            self._wake_all()
        if session.peer.ambiguous_requests == before and target not in self._quiet:
            self._quiet[target] = None
        return answer

    async def _acquire(self, first: Callable[[], Awaitable[Session]], client: object, target: str) -> Session:
        while True:
            main = await first()
            self._leases = {session: lease for session, lease in self._leases.items() if not session.is_ended}
            extra = [session for session in self._connection.sessions if session.owner is self]
            candidates = [main, *(session for session in extra if session.is_open and not session.is_ended)]
            # Calls from before the first lease have none, and may ask as well.
            keys = {session: session.peer.caller_keys for session in candidates}
            leases = {session: self._leases.get(session) or _Lease(None) for session in candidates}
            busy = [session for session in candidates if leases[session].calls or keys[session]]
            own = [session for session in busy if {leases[session].key, *keys[session]} <= {client, None, SHARED}]
            own = [session for session in own if keys[session] == {client} or leases[session].key == client]
            key = client if own or target not in self._quiet else SHARED
            shared = [session for session in busy if key is SHARED and leases[session].key is SHARED]
            opening = {session for session, lease in self._leases.items() if lease.calls and not session.is_open}
            exclusive = len({session for session in busy if leases[session].key is not SHARED} | opening)
            may_take = key is SHARED or exclusive < MAX_SESSIONS - 1
            free = [session for session in candidates if session not in busy and may_take]
            free.sort(key=lambda session: leases[session].key != key)
            found = next(iter([*own, *shared, *free]), None)
            is_opening = any(lease.key == key and not session.is_open for session, lease in self._leases.items())
            if found is None and len(extra) < MAX_SESSIONS - 1 and may_take and not is_opening:
                found = await self._open(key)
            if found is not None:
                lease = self._leases.setdefault(found, _Lease(key))
                lease.key, lease.calls = key, lease.calls + 1
                return found
            await self._wait_for_turn()

    async def _open(self, key: object) -> Session:
        session = self._connection.create_session(self, self._forward_log)
        self._leases[session] = _Lease(key, 1)  # reserved before it's open
        try:
            await self._connection.open(session)
        except BaseException:
            self._remove(session)
            raise
        finally:
            self._wake_all()
        self._leases.setdefault(session, _Lease(key)).calls = 0
        return session

    def _release(self, session: Session) -> None:
        lease = self._leases.get(session)
        if lease is not None:
            lease.calls -= 1
            if not lease.calls and session.owner is self:
                loop = asyncio.get_running_loop()
                loop.call_later(self._extra_session_seconds, self._end_if_unused, session, self._now())
        if lease is None or not lease.calls:
            self._wake_all()

    def _end_if_unused(self, session: Session, since: float) -> None:
        """Close a session that hasn't been used since the given time."""
        lease = self._leases.get(session)
        if lease is not None and not lease.calls and session.used_at <= since:
            self._remove(session)
            session.end()

    def _remove(self, session: Session) -> None:
        self._leases.pop(session, None)
        self._wake_all()

    async def _wait_for_turn(self) -> None:
        """Wait until a session may have become free."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        await turn

    def _wake_all(self) -> None:
        """Wake all waiters, in order, because not each of them can use every session."""
        waiters, self._waiters = self._waiters, []
        for turn in waiters:
            if not turn.done():
                turn.set_result(None)

    def _forward_log(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward log messages only: changes are already reported in the persistent session."""
        if method == "notifications/message":
            self._connection.on_notification(method, params)

    # Session owner

    def on_open(self, session: Session) -> None:
        self._connection.on_open(session)

    def on_lost(self, session: Session, error: RefdeskError) -> None:
        """Remove the lease. The callers fail through their pending requests."""
        self._remove(session)

    def on_closed(self, session: Session) -> None:
        self._connection.on_closed(session)
        self._wake_all()


class EphemeralSessions:
    """One session per operation, closed in the background once the result is there.

    Expensive, and only for servers that must not be kept open.
    """

    restarts = 0
    """Always 0: sessions are never reopened."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._slots = asyncio.Semaphore(MAX_EPHEMERAL_SESSIONS)
        self._is_stopped = False
        self.connect_error: RefdeskError | None = None
        """Why the last attempt to open a session failed."""

    async def run(self) -> None:
        """Wait until cancelled, then close all sessions."""
        try:
            await asyncio.Event().wait()
        finally:
            self._is_stopped = True
            await close_all(list(self._connection.sessions))
            self._connection.set_status("Stopped")

    async def execute(self, work: Callable[[Session], Awaitable[T]], key: object = None, target: str = "") -> T:
        """Run `work` in a new session."""
        await self._slots.acquire()
        if self._is_stopped:
            self._slots.release()
            self.raise_if_unavailable()
        session = self._connection.create_session(self, self._connection.on_notification)
        self._connection.set_status("Starting")
        try:
            await self._connection.open(session)
        except RefdeskError as error:
            self.connect_error = error
            self._connection.set_status("Error", error.detail)
            raise
        try:
            return await session.use(work, time.monotonic())
        finally:
            session.end()

    @property
    def is_connected(self) -> bool:
        """Whether there is a session, or was one for the last operation."""
        return self.connect_error is None

    def raise_if_unavailable(self) -> None:
        """Raise if the connection is stopped."""
        if self._is_stopped:
            raise ServerAway(f"The server {self._connection.name!r} is stopped")

    def check_liveness(self) -> None:
        """Do nothing: the failed session is already closed."""

    async def restart(self) -> None:
        """Do nothing: there is no session to restart."""

    # Session owner

    def on_open(self, session: Session) -> None:
        self._connection.on_open(session)
        if self.connect_error is not None:
            self._connection.dependency.mark_recovered()
        self.connect_error = None
        self._connection.set_status("Running")

    def on_lost(self, session: Session, error: RefdeskError) -> None:
        """Do nothing: the caller fails through its pending request."""

    def on_closed(self, session: Session) -> None:
        self._slots.release()
        self._connection.on_closed(session)
        if not self._connection.sessions and self._connection.status.state != "Error":
            self._connection.set_status("Stopped")
