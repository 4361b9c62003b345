"""Session leases for servers that send requests without naming the call they belong to.

Each client gets a session of its own while it waits for an answer, so that no client is asked about another one's call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from refdesk.downstream.session import McpSession, SessionTask, close_all
from refdesk.errors import RefdeskError

if TYPE_CHECKING:
    from refdesk.downstream.connection.connection import Connection

T = TypeVar("T")

MAX_SESSIONS = 4
"""Sessions per server, including the persistent one. Further clients wait."""

EXTRA_SESSION_SECONDS = 60.0
"""How long an unused extra session stays open. Opening one may start a process."""


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
        self._leases: dict[SessionTask, _Lease] = {}
        self._extra: set[SessionTask] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()

    async def use(
        self, first: Callable[[], Awaitable[SessionTask]], key: object, work: Callable[[McpSession], Awaitable[T]]
    ) -> T:
        """Run `work` in a session that no other client uses. `first` returns the persistent session."""
        task = await self._acquire(first, key)
        try:
            return await task.use(work, self._now())
        finally:
            self._release(task)

    async def close(self) -> None:
        """Close all extra sessions and wait for them."""
        await close_all(list(self._extra))

    async def _acquire(self, first: Callable[[], Awaitable[SessionTask]], key: object) -> SessionTask:
        while True:
            main = await first()
            self._leases = {task: lease for task, lease in self._leases.items() if not task.is_ended}
            task = self._find_available(main, key)
            if task is None and len(self._extra) < MAX_SESSIONS - 1 and not self._is_opening_for(key):
                task = await self._open(key)
            if task is not None:
                lease = self._leases.setdefault(task, _Lease(key))
                lease.key, lease.calls = key, lease.calls + 1
                return task
            await self._wait_for_turn()

    def _is_opening_for(self, key: object) -> bool:
        return any(lease.key == key and task.session is None for task, lease in self._leases.items())

    def _find_available(self, first: SessionTask, key: object) -> SessionTask | None:
        """Return a session of this client, or one that is unused."""
        session_tasks = [first, *(task for task in self._extra if task.session is not None and not task.is_ended)]
        own = [task for task in session_tasks if task in self._leases and self._leases[task].key == key]
        free = [task for task in session_tasks if task not in self._leases or not self._leases[task].calls]
        return next(iter([*own, *free]), None)

    async def _open(self, key: object) -> SessionTask:
        task = self._connection.create_session_task(self, self._forward_log)
        self._extra.add(task)
        self._leases[task] = _Lease(key, 1)  # reserved before it's open
        try:
            await self._connection.open(task)
        except BaseException:
            self._remove(task)
            raise
        finally:
            self._wake_all()
        self._leases.setdefault(task, _Lease(key)).calls = 0
        return task

    def _release(self, task: SessionTask) -> None:
        lease = self._leases.get(task)
        if lease is not None:
            lease.calls -= 1
            if not lease.calls and task in self._extra:
                asyncio.get_running_loop().call_later(
                    self._extra_session_seconds, self._end_if_unused, task, self._now()
                )
        if lease is None or not lease.calls:
            self._wake_next()

    def _end_if_unused(self, task: SessionTask, since: float) -> None:
        """Close a session that hasn't been used since the given time."""
        lease = self._leases.get(task)
        if lease is not None and not lease.calls and task.used_at <= since:
            self._remove(task)
            task.end()

    def _remove(self, task: SessionTask) -> None:
        self._leases.pop(task, None)
        self._wake_next()

    async def _wait_for_turn(self) -> None:
        """Wait until a session may have become free."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake_next()  # cancelled after its turn came: pass it on
            raise

    def _wake_next(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _wake_all(self) -> None:
        for _ in range(len(self._waiters)):
            self._wake_next()

    def _forward_log(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward log messages only: changes are already reported in the persistent session."""
        if method == "notifications/message":
            self._connection.on_notification(method, params)

    # Session owner

    def on_open(self, task: SessionTask) -> None:
        """Record a new session."""
        self._connection.on_open(task)

    def on_lost(self, task: SessionTask, error: RefdeskError) -> None:
        """Remove the lease. The callers fail through their pending requests."""
        self._remove(task)

    def on_closed(self, task: SessionTask) -> None:
        """Make room for another session."""
        self._extra.discard(task)
        self._connection.on_closed(task)
        self._wake_next()
