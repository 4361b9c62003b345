"""Ephemeral sessions: one per operation. Expensive, and only for servers that must not be kept open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from refdesk.downstream.session import Session, close_all
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
        self._slots = asyncio.Semaphore(MAX_EPHEMERAL_SESSIONS)
        self._is_stopped = False
        self._has_failed = False

    async def run(self) -> None:
        """Wait until cancelled, then close all sessions."""
        try:
            await asyncio.Event().wait()
        finally:
            self._is_stopped = True
            await close_all(list(self._connection.sessions))
            self._connection.set_status("Stopped")

    async def execute(self, work: Callable[[Session], Awaitable[T]], key: object = None) -> T:
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
            self._has_failed = True
            self._connection.set_status("Error", error.detail)
            raise
        try:
            return await session.use(work, time.monotonic())
        finally:
            session.end()

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
        if self._has_failed:
            self._connection.dependency.mark_recovered()
        self._has_failed = False
        self._connection.set_status("Running")

    def on_lost(self, session: Session, error: RefdeskError) -> None:
        """Do nothing: the caller fails through its pending request."""

    def on_closed(self, session: Session) -> None:
        self._slots.release()
        self._connection.on_closed(session)
        if not self._connection.sessions and not self._has_failed:
            self._connection.set_status("Stopped")
