"""Connection to one downstream server: timeouts, circuit breaker, status, and typed errors.

The settings decide whether its session is persistent or ephemeral; see `persistent` and `ephemeral`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.ephemeral import EphemeralSessions
from refdesk.downstream.connection.leases import EXTRA_SESSION_SECONDS
from refdesk.downstream.connection.persistent import PersistentSession
from refdesk.downstream.connection.session_task import DuplicateFailure, OpenTransport, SessionListener, SessionTask
from refdesk.downstream.connection.status import STOPPED, Status
from refdesk.downstream.connection.subscriptions import SUBSCRIPTION_METHODS, SubscriptionState
from refdesk.downstream.envelopes import Mirrored
from refdesk.downstream.jsonrpc import Callbacks
from refdesk.downstream.session import DEFAULT_OPTIONS, McpSession, ServerProfile, SessionOptions
from refdesk.downstream.transports import open_transport
from refdesk.downstream.transports.base import Message, NotLetIn, NotTaken, Transport, TransportListener
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTooSlow
from refdesk.resilience.deadlines import Deadlines, Overdue
from refdesk.resilience.dependency import SERVICE, Dependency, Pause

__all__ = ["Connection", "NotificationListener", "Status"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONCURRENCY = 1000
"""Concurrent calls per server. More wait here, where a waiting call costs a few kilobytes, and not in the server."""

STDERR_LINES = 200
"""Last stderr lines kept."""

MAX_INFO_CHARACTERS = 100
"""Characters kept of the name and version that a server declares."""

MAX_DEADLINES = 32
"""Number of distinct timeouts cached. Calls mostly use a few."""


class NotificationListener(Protocol):
    """Listener for notifications that belong to no call."""

    def on_notification(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """Handle a notification: a changed list or resource, or a log message."""
        ...


class Connection:
    """Connection to one server, with a persistent session or one session per operation."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        *,
        protocol_version: str | None = None,
        heard: NotificationListener,
        changed: Callable[[Connection], None],
        now: Callable[[], float] = time.monotonic,
        pause: Pause = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        on_stderr_line: Callable[[str], None] | None = None,
        open_transport: OpenTransport | None = None,
        options: SessionOptions = DEFAULT_OPTIONS,
        extra_session_seconds: float = EXTRA_SESSION_SECONDS,
    ) -> None:
        self.name = name
        self.settings = settings
        self.status = STOPPED
        self.server_profile: ServerProfile | None = None
        """What the server declared in its last session."""
        self.dependency = Dependency(f"downstream {name}", SERVICE, concurrency=CONCURRENCY, now=now)
        self.call_seconds = settings.call_timeout_seconds
        self.capabilities_seconds = settings.capabilities_timeout_seconds
        self.connect_seconds = settings.connect_timeout_seconds
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES)
        """Last stderr lines, with secrets masked. `on_stderr_line` receives every line."""
        self._version = protocol_version
        self._options = options
        self._heard = heard
        self._changed = changed
        self._heard_stderr = on_stderr_line
        self._open_transport = open_transport or self._open_by_settings
        self._since = datetime.now(UTC)
        self._open_count = 0
        self._garbage = 0
        self._open_sessions: set[SessionTask] = set()
        self._mirrored: dict[str, Mirrored] = {}
        self._deadlines: dict[float, Deadlines] = {}
        self._subscriptions = SubscriptionState()
        self._sessions: PersistentSession | EphemeralSessions = (
            EphemeralSessions(self)
            if settings.session == "short"
            else PersistentSession(
                self,
                self._subscriptions,
                now=now,
                pause=pause,
                jitter=jitter,
                extra_session_seconds=extra_session_seconds,
            )
        )

    async def run(self) -> None:
        """Run the connection until cancelled, then release everything."""
        try:
            await self._sessions.run()
        finally:
            for deadlines in self._deadlines.values():
                deadlines.close()

    async def restart(self) -> None:
        """Close the session and open a new one. The status tells the outcome."""
        await self._sessions.restart()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        callbacks: Callbacks | None = None,
        token: str | None = None,
        seconds: float | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Message:
        """Send a request and return its result, within the call timeout.

        Raises ServerAway, ServerGone, ServerTooSlow, ServerTalksNonsense or BreakerOpen if there is no result, and
        ServerRefused if the server returned an error. `capabilities` are those of the client that the call is made for.
        """
        credential = token if self.settings.forward_token else None
        if method in SUBSCRIPTION_METHODS:
            return await self._update_subscription(method, params or {}, credential)

        def ask(session: McpSession) -> Awaitable[Message]:
            return session.request(method, params, callbacks=callbacks, token=credential, capabilities=capabilities)

        key = None if callbacks is None else callbacks.key
        return await self._perform(ask, self.call_seconds if seconds is None else seconds, key)

    async def _update_subscription(self, method: str, params: Mapping[str, Any], token: str | None) -> Message:
        """Change a subscription or the log level, which outlive the session.

        Servers without a handshake are told through `subscriptions/listen`.
        """

        async def ask(session: McpSession) -> Message:
            answer = {} if session.server_profile.is_modern else await session.request(method, params, token=token)
            self._subscriptions.record(method, params)
            session.level = self._subscriptions.level
            return answer

        return await self._perform(ask, self.call_seconds)

    async def list_all(self, method: str, member: str) -> list[Message]:
        """Return all entries of a list, within the list timeout.

        The breaker ignores the outcome: a server whose lists fail can still be called.
        """
        seconds = self.capabilities_seconds
        return await self._perform(lambda session: session.list_all(method, member), seconds, is_call=False)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification in all open sessions."""
        for task in list(self._open_sessions):
            if task.session is not None:
                await task.session.notify(method, params)

    def describe(self) -> dict[str, Any]:
        """Return the state of the connection for health checks and the console."""
        description: dict[str, Any] = {
            "state": self.status.state,
            "since": self._since.isoformat(timespec="milliseconds"),
            "transport": self.settings.kind,
            "session": self.settings.session,
            "restarts": max(0, self._sessions.restarts),
            "sessions": self._open_count,
            "garbage": self._garbage + sum(task.peer.garbage for task in self._open_sessions),
            "in_flight": sum(task.in_flight for task in self._open_sessions),
            "breaker": self.dependency.state,
        }
        if self.status.message:
            description["message"] = self.status.message
        pids = [task.pid for task in self._open_sessions if task.pid is not None]
        if pids:
            description["pid"] = pids[0]
        if self.server_profile is not None:
            description["version"] = self.server_profile.version
            info = self.server_profile.info
            description["server"] = {key: _truncate(info.get(key)) for key in ("name", "version")}
        return description

    async def _perform(
        self, work: Callable[[McpSession], Awaitable[T]], seconds: float, key: object = None, *, is_call: bool = True
    ) -> T:
        sessions = self._sessions
        sessions.raise_if_unavailable()
        deadlines = self._deadlines.get(seconds) or self._create_deadlines(seconds)

        def execute() -> Awaitable[T]:
            return deadlines.run(sessions.execute, work, key)

        try:
            return await (self.dependency.run(execute, queue_seconds=seconds) if is_call else execute())
        except DuplicateFailure as duplicate:
            raise _to_public_error(duplicate.error) from None
        except (NotTaken, NotLetIn) as error:
            raise _to_public_error(error) from error
        except Overdue:
            sessions.check_liveness()
            raise ServerTooSlow(f"The server {self.name!r} did not answer within {seconds:g} s") from None

    def _create_deadlines(self, seconds: float) -> Deadlines:
        if len(self._deadlines) >= MAX_DEADLINES:
            self._deadlines.clear()  # running calls keep theirs
        deadlines = self._deadlines[seconds] = Deadlines(seconds)
        return deadlines

    # Session host

    def create_session_task(self, listener: SessionListener) -> SessionTask:
        """Return a session task that isn't open yet."""
        return SessionTask(self.name, self.settings, listener, self._open_transport, self._options)

    def _open_by_settings(
        self, name: str, settings: McpServerConfig, listener: TransportListener
    ) -> AbstractAsyncContextManager[Transport]:
        if settings.kind == "stdio":
            from refdesk.downstream.transports.stdio import open_stdio

            return open_stdio(name, settings, listener, on_stderr_line=self._record_stderr)
        return open_transport(name, settings, listener)

    def _record_stderr(self, line: str) -> None:
        self.stderr_lines.append(line)
        if self._heard_stderr is not None:
            self._heard_stderr(line)

    async def open(self, task: SessionTask) -> None:
        """Open a session within the current connect timeout."""
        await task.open(self.connect_seconds, self._version, self._mirrored)

    def on_open(self, task: SessionTask) -> None:
        """Record a new session."""
        self._open_count += 1
        self._open_sessions.add(task)
        if task.session is not None:
            self.server_profile = task.session.server_profile
            task.session.level = self._subscriptions.level

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification that belongs to no call."""
        if method == "notifications/subscriptions/acknowledged":
            return
        if method.endswith("/list_changed"):
            logger.debug("downstream.list_changed", extra={"fields": {"server": self.name, "method": method}})
        self._heard.on_notification(self, method, params)

    def set_status(self, status: Status) -> None:
        """Change the status, and report the change."""
        if status == self.status:
            return
        self.status = status
        self._since = datetime.now(UTC)
        level = logging.WARNING if status.state == "Error" else logging.INFO
        fields = {"server": self.name, "state": status.state, "message": status.message[:500]}
        logger.log(level, "downstream.status", extra={"fields": fields})
        self._changed(self)

    def mark_recovered(self) -> None:
        """Tell the breaker that the server is reachable again."""
        self.dependency.mark_recovered()

    def on_closed(self, task: SessionTask) -> None:
        """Remove a closed session."""
        self._open_sessions.discard(task)
        self._garbage += task.peer.garbage


def _truncate(given: object) -> str | None:
    """Return a declared value if it's text, cut to the limit."""
    return given[:MAX_INFO_CHARACTERS] if isinstance(given, str) else None


def _to_public_error(error: RefdeskError) -> RefdeskError:
    """Replace internal errors by their public base. What they add has been used here."""
    if isinstance(error, NotTaken):
        return ServerGone(error.detail)
    return ServerAway(error.detail) if isinstance(error, NotLetIn) else error
