"""Connection to one downstream server: timeouts, circuit breaker, status and typed errors.

Its sessions are in `PersistentSession`, or in `EphemeralSessions` if the settings ask for it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, TypeVar

from refdesk.config.models import CircuitBreakerConfig
from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.leases import EXTRA_SESSION_SECONDS, EphemeralSessions
from refdesk.downstream.connection.persistent import PersistentSession
from refdesk.downstream.connection.subscriptions import (
    SET_LEVEL,
    SUBSCRIBE,
    SUBSCRIPTION_METHODS,
    UNSUBSCRIBE,
    SubscriptionState,
)
from refdesk.downstream.jsonrpc import Callbacks, Message, NotLetIn, NotTaken
from refdesk.downstream.request_meta import Mirrored
from refdesk.downstream.session import (
    DEFAULT_OPTIONS,
    DuplicateFailure,
    ListName,
    OnNotification,
    OpenTransport,
    ServerProfile,
    Session,
    SessionOptions,
    SessionOwner,
)
from refdesk.downstream.transports import open_transport as open_by_settings
from refdesk.errors import (
    BreakerOpen,
    DependencyError,
    RefdeskError,
    Refused,
    ServerAway,
    ServerGone,
    ServerRefused,
    ServerTooSlow,
)
from refdesk.resilience.deadlines import Deadlines, Overdue
from refdesk.resilience.dependency import Dependency, Pause
from refdesk.support.lru import BoundedDict
from refdesk.support.tasks import TaskSet

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONCURRENCY = 1000
"""Concurrent calls per server. More wait here, where a waiting call costs a few kilobytes, and not in the server."""

MAX_INFO_CHARACTERS = 100
"""Characters kept of the name and version that a server declares."""

MAX_DEADLINES = 32
"""Number of distinct timeouts cached. Calls mostly use a few. Running ones keep theirs."""

State = Literal["Starting", "Running", "Error", "Stopped"]


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a connection: its state, with a message for errors."""

    state: State
    message: str = ""

    @property
    def text(self) -> str:
        """The state as displayed: `Error` includes the message."""
        return f"{self.state}({self.message})" if self.message else self.state


class Connection:
    """Connection to one server, with a persistent session or one session per operation."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        *,
        protocol_version: str | None = None,
        on_notification: Callable[[Connection, str, Mapping[str, Any]], None],
        on_status: Callable[[Connection], None],
        now: Callable[[], float] = time.monotonic,
        pause: Pause = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        on_stderr_line: Callable[[str], None] | None = None,
        open_transport: OpenTransport | None = None,
        options: SessionOptions = DEFAULT_OPTIONS,
        extra_session_seconds: float = EXTRA_SESSION_SECONDS,
    ) -> None:
        """`on_notification` receives notifications that belong to no call, and `on_status` every change of status.

        `on_stderr_line` receives the lines that a server process writes to stderr, with secrets masked.
        """
        self.name = name
        self.settings = settings
        self.status = Status("Stopped")
        self.server_profile: ServerProfile | None = None
        """What the server declared in its last session."""
        self.sessions: set[Session] = set()
        """All sessions that aren't closed yet."""
        breaker = CircuitBreakerConfig(
            failure_threshold=settings.breaker_failures, timeout_seconds=settings.breaker_seconds, success_threshold=1
        )
        self.dependency = Dependency(
            f"downstream {name}", breaker, trials=settings.breaker_trials, concurrency=CONCURRENCY, now=now
        )
        self._version = protocol_version
        self._options = options
        self._on_notification = on_notification
        self._on_status = on_status
        self._open_transport = open_transport or partial(open_by_settings, on_stderr_line=on_stderr_line)
        self._since = datetime.now(UTC)
        self._open_count = 0
        self._garbage = 0
        self._mirrored: dict[str, Mirrored] = {}
        self._deadlines: BoundedDict[float, Deadlines] = BoundedDict(MAX_DEADLINES)
        self._subscriptions = SubscriptionState()
        self._subscribers: dict[str, list[Hashable]] = {}
        """Subscribers by URI, once per subscription, also while that is only requested."""
        self._background = TaskSet()
        self._pool: PersistentSession | EphemeralSessions
        if settings.session == "short":
            self._pool = EphemeralSessions(self)
        else:
            self._pool = PersistentSession(self, self._subscriptions, now, pause, jitter, extra_session_seconds)

    async def run(self) -> None:
        """Run the connection until cancelled, then release everything."""
        try:
            await self._pool.run()
        finally:
            await self._background.cancel()
            for deadlines in self._deadlines.values():
                deadlines.close()

    async def restart(self) -> None:
        """Close the session and open a new one. The status tells the outcome."""
        await self._pool.restart()

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

        def ask(session: Session) -> Awaitable[Message]:
            return session.request(method, params, callbacks=callbacks, token=credential, capabilities=capabilities)

        key = None if callbacks is None else callbacks.key
        target = f"{method} {params.get('name', '')}" if params is not None else method
        limit = self.settings.call_timeout_seconds if seconds is None else seconds
        return await self._perform(ask, limit, key, target)

    async def _update_subscription(self, method: str, params: Mapping[str, Any], token: str | None) -> Message:
        """Change a subscription or the log level, which outlive the session.

        Servers without a handshake are told through `subscriptions/listen`.
        """

        async def ask(session: Session) -> Message:
            answer = {} if session.server_profile.is_modern else await session.request(method, params, token=token)
            self._subscriptions.record(method, params)
            session.level = self._subscriptions.level
            return answer

        return await self._perform(ask, self.settings.call_timeout_seconds)

    async def subscribe(self, uri: str, subscriber: Hashable) -> None:
        """Subscribe to a resource, once for all subscribers. Pair it with `unsubscribe`, unless it raises."""
        subscribers = self._subscribers.setdefault(uri, [])
        subscribers.append(subscriber)
        if len(subscribers) == 1:
            try:
                await self.request(SUBSCRIBE, {"uri": uri})
            except BaseException:
                self._remove_subscriber(uri, subscriber)
                raise

    def unsubscribe(self, uri: str, subscriber: Hashable) -> bool:
        """Remove a subscriber, and cancel the subscription after the last one. Return whether it was subscribed."""
        if subscriber not in self._subscribers.get(uri, ()):
            return False
        self._remove_subscriber(uri, subscriber)
        if not self.has_subscribers(uri):
            self._background.spawn(self._request_best_effort(UNSUBSCRIBE, {"uri": uri}))
        return True

    def _remove_subscriber(self, uri: str, subscriber: Hashable) -> None:
        self._subscribers[uri].remove(subscriber)
        if not self._subscribers[uri]:
            del self._subscribers[uri]

    def has_subscribers(self, uri: str) -> bool:
        """Whether anyone is subscribed to a resource of this server."""
        return uri in self._subscribers

    def set_level(self, level: str) -> None:
        """Set the log level of this session and of later ones, if the server supports logging."""
        self._subscriptions.level = level
        profile = self.server_profile
        if profile is not None and profile.has("logging") and any(session.is_open for session in self.sessions):
            self._background.spawn(self._request_best_effort(SET_LEVEL, {"level": level}))

    def announce_roots(self) -> None:
        """Tell the server that the roots have changed."""
        for session in self.sessions:
            if session.is_open and not session.is_ended and not session.server_profile.is_modern:
                session.peer.notify_in_background("notifications/roots/list_changed")

    async def _request_best_effort(self, method: str, params: Mapping[str, Any]) -> None:
        """Send an optional request, unless it would cancel a subscription that is new. Failures are only logged."""
        if method == UNSUBSCRIBE and self.has_subscribers(params["uri"]):
            return
        try:
            await self.request(method, params)
        except (ServerRefused, DependencyError, Refused) as error:
            fields = {"server": self.name, "method": method, "why": error.detail[:200]}
            logger.warning("downstream.not_done", extra={"fields": fields})

    async def list_all(self, name: ListName) -> list[Message]:
        """Return all entries of a list, within the list timeout.

        The breaker ignores the outcome: a server whose lists fail can still be called.
        """
        seconds = self.settings.capabilities_timeout_seconds
        return await self._perform(lambda session: session.list_all(name), seconds, is_call=False)

    def describe(self) -> dict[str, Any]:
        """Return the state of the connection for health checks and the console."""
        sessions = [session for session in self.sessions if session.is_open]
        description: dict[str, Any] = {
            "state": self.status.state,
            "since": self._since.isoformat(timespec="milliseconds"),
            "transport": self.settings.kind,
            "session": self.settings.session,
            "restarts": max(0, self._pool.restarts),
            "sessions": self._open_count,
            "garbage": self._garbage + sum(session.peer.garbage for session in sessions),
            "in_flight": sum(session.in_flight for session in sessions),
            "breaker": self.dependency.state,
        }
        if self.status.message:
            description["message"] = self.status.message
        pids = [pid for session in sessions if (pid := getattr(session.peer.transport, "pid", None)) is not None]
        if pids:
            description["pid"] = pids[0]
        if self.server_profile is not None:
            description["version"] = self.server_profile.version
            description["server"] = self._describe_server()
        return description

    def _describe_server(self) -> dict[str, str | None]:
        """Return the name and version that the server declared, as far as it did."""
        info = self.server_profile.info if self.server_profile else {}
        return {
            key: value[:MAX_INFO_CHARACTERS] if isinstance(value := info.get(key), str) else None
            for key in ("name", "version")
        }

    async def _perform(
        self,
        work: Callable[[Session], Awaitable[T]],
        seconds: float,
        key: object = None,
        target: str = "",
        *,
        is_call: bool = True,
    ) -> T:
        pool = self._pool
        pool.raise_if_unavailable()
        deadlines = self._deadlines.get(seconds)
        if deadlines is None:
            deadlines = self._deadlines[seconds] = Deadlines(seconds)

        def execute() -> Awaitable[T]:
            return deadlines.run(pool.execute, work, key, target)

        error: RefdeskError
        try:
            answer = await (self.dependency.run(execute, queue_seconds=seconds) if is_call else execute())
        except DuplicateFailure as duplicate:
            error = _to_public_error(duplicate.error)
        except Overdue:
            pool.check_liveness()
            error = ServerTooSlow(f"The server {self.name!r} did not answer within {seconds:g} s")
        except BreakerOpen:
            raise
        except ServerRefused:
            self._record_outcome(None, is_call)
            raise
        except DependencyError as failure:
            error = _to_public_error(failure)
        else:
            self._record_outcome(None, is_call)
            return answer
        self._record_outcome(error, is_call)
        raise error

    def _record_outcome(self, error: RefdeskError | None, is_call: bool) -> None:
        """Set the status to the outcome of the last call, unless the session has been lost."""
        if not is_call or not self.is_connected:
            return
        if error is not None:
            self.set_status("Error", error.detail)
        elif self.status.state == "Error":
            self.set_status("Running")

    @property
    def is_connected(self) -> bool:
        """Whether there is a session, whatever the outcome of the last call."""
        return self._pool.is_connected

    @property
    def connect_error(self) -> RefdeskError | None:
        """Why the last attempt to connect failed, unless it succeeded."""
        return self._pool.connect_error

    # For the owners of sessions

    def create_session(self, owner: SessionOwner, on_notification: OnNotification) -> Session:
        """Return a session that isn't open yet."""
        options, mirrored = self._options, self._mirrored
        session = Session(self.name, self.settings, owner, on_notification, self._open_transport, options, mirrored)
        self.sessions.add(session)
        return session

    async def open(self, session: Session) -> None:
        """Open a session within the current connect timeout."""
        await session.open(self.settings.connect_timeout_seconds, self._version)

    def on_open(self, session: Session) -> None:
        """Record an opened session."""
        self._open_count += 1
        is_news = self.settings.session != "short" or session.server_profile != self.server_profile
        self.server_profile = session.server_profile
        fields = {"server": self.name, **self._describe_server(), "revision": self.server_profile.version}
        logger.log(logging.INFO if is_news else logging.DEBUG, "downstream.connected", extra={"fields": fields})
        session.level = self._subscriptions.level

    def on_closed(self, session: Session) -> None:
        """Remove a closed session."""
        self.sessions.discard(session)
        self._garbage += session.peer.garbage

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Report a notification that belongs to no call."""
        if method == "notifications/subscriptions/acknowledged":
            return
        if method.endswith("/list_changed"):
            logger.debug("downstream.list_changed", extra={"fields": {"server": self.name, "method": method}})
        self._on_notification(self, method, params)

    def set_status(self, state: State, message: str = "") -> None:
        """Change the status, and report the change."""
        status = Status(state, message)
        if status == self.status:
            return
        self.status = status
        self._since = datetime.now(UTC)
        level = logging.WARNING if state == "Error" else logging.INFO
        fields = {"server": self.name, "state": state, "message": message[:500]}
        logger.log(level, "downstream.status", extra={"fields": fields})
        self._on_status(self)


def _to_public_error(error: RefdeskError) -> RefdeskError:
    """Replace internal errors by their public base. What they add has been used here."""
    if isinstance(error, NotTaken):
        return ServerGone(error.detail)
    return ServerAway(error.detail) if isinstance(error, NotLetIn) else error
