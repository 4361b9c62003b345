"""Ephemeral sessions: one per operation. Expensive, and only for servers that must not be kept open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from refdesk.downstream.connection.status import RUNNING, STARTING, STOPPED, Status
from refdesk.downstream.session import McpSession, SessionTask, close_all
from refdesk.errors import RefdeskError, ServerAway

if TYPE_CHECKING:
    from refdesk.downstream.connection.connection import Connection

T = TypeVar("T")

MAX_EPHEMERAL_SESSIONS = 8
"""Concurrent sessions per server, including those being closed. Each may be a process."""


class EphemeralSessions:
    """One session per operation, closed in the background once the result is there."""

    restarts = 0
    """Always 0: sessions are never reopened."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session_tasks: set[SessionTask] = set()
        self._slots = asyncio.Semaphore(MAX_EPHEMERAL_SESSIONS)
        self._is_stopped = False
        self._has_failed = False

    async def run(self) -> None:
        """Wait until cancelled, then close all sessions."""
        try:
            await asyncio.Event().wait()
        finally:
            self._is_stopped = True
            await close_all(list(self._session_tasks))
            self._connection.set_status(STOPPED)

    async def execute(self, work: Callable[[McpSession], Awaitable[T]], key: object = None) -> T:
        """Run `work` in a new session."""
        await self._slots.acquire()
        if self._is_stopped:
            self._slots.release()
            self.raise_if_unavailable()
        task = self._connection.create_session_task(self, self._connection.on_notification)
        self._session_tasks.add(task)
        try:
            await self._open(task)
            return await task.use(work, time.monotonic())
        finally:
            task.end()

    def raise_if_unavailable(self) -> None:
        """Raise if the connection is stopped."""
        if self._is_stopped:
            raise ServerAway(f"The server {self._connection.name!r} is stopped")

    def check_liveness(self) -> None:
        """Do nothing: the failed session is already closed."""

    async def restart(self) -> None:
        """Do nothing: there is no session to restart."""

    async def _open(self, task: SessionTask) -> None:
        self._connection.set_status(STARTING)
        try:
            await self._connection.open(task)
        except RefdeskError as error:
            self._has_failed = True
            self._connection.set_status(Status("Error", error.detail))
            raise

    # Session owner

    def on_open(self, task: SessionTask) -> None:
        """Record a new session."""
        self._connection.on_open(task)
        if self._has_failed:
            self._connection.dependency.mark_recovered()
        self._has_failed = False
        self._connection.set_status(RUNNING)

    def on_lost(self, task: SessionTask, error: RefdeskError) -> None:
        """Do nothing: the caller fails through its pending request."""

    def on_closed(self, task: SessionTask) -> None:
        """Make room for another session."""
        self._session_tasks.discard(task)
        self._slots.release()
        self._connection.on_closed(task)
        if not self._session_tasks and not self._has_failed:
            self._connection.set_status(STOPPED)
