"""Task that owns one session: it opens the session, keeps it and closes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, TypeVar

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.connection.status import Status
from refdesk.downstream.connection.subscriptions import SubscriptionState, restore_subscriptions
from refdesk.downstream.envelopes import Mirrored
from refdesk.downstream.jsonrpc import Peer
from refdesk.downstream.session import DEFAULT_OPTIONS, McpSession, SessionOptions, open_session
from refdesk.downstream.transports.base import Transport, TransportListener
from refdesk.errors import DependencyError, RefdeskError, ServerAway, ServerGone, ServerRefused
from refdesk.resilience.dependency import Pause

logger = logging.getLogger(__name__)

T = TypeVar("T")


class DuplicateFailure(Exception):
    """A lost connection that another caller already reported, with the original as `error`.

    A hundred calls that fail with one crash count as one failure for the breaker.
    """

    def __init__(self, error: RefdeskError) -> None:
        super().__init__(error.detail)
        self.error = error


OpenTransport = Callable[[str, McpServerConfig, TransportListener], AbstractAsyncContextManager[Transport]]


class SessionListener(Protocol):
    """Listener of a session task. Its methods don't block."""

    def on_open(self, task: SessionTask) -> None:
        """Handle an opened session."""
        ...

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """Handle a notification that belongs to no call."""
        ...

    def on_lost(self, task: SessionTask, error: RefdeskError) -> None:
        """Handle the end of an opened session, whether intended or not."""
        ...

    def on_closed(self, task: SessionTask) -> None:
        """Handle the end of the task: all resources are released."""
        ...


class SessionHost(Protocol):
    """The connection, as its session managers see it."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> McpServerConfig:
        """Current settings of the server."""
        ...

    @property
    def connect_seconds(self) -> float:
        """Current connect timeout."""
        ...

    def create_session_task(self, listener: SessionListener) -> SessionTask:
        """Return a session task that isn't open yet."""
        ...

    async def open(self, task: SessionTask) -> None:
        """Open a session within the connect timeout."""
        ...

    def on_open(self, task: SessionTask) -> None:
        """Record a new session."""
        ...

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification that belongs to no call."""
        ...

    def set_status(self, status: Status) -> None:
        """Change the status of the connection."""
        ...

    def mark_recovered(self) -> None:
        """Reset the breaker: there is a session again after a failure."""
        ...

    def on_closed(self, task: SessionTask) -> None:
        """Remove a closed session."""
        ...


class SessionTask:
    """A session that is opening, open or closing. `open` starts it and `end` closes it."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        listener: SessionListener,
        open_transport: OpenTransport,
        options: SessionOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.name = name
        self.peer = Peer(name, self, options.fallback)
        self.transport: Transport | None = None
        self.session: McpSession | None = None
        self.has_answered = False
        """Whether the server has answered anything since the handshake."""
        self.used_at = 0.0
        self.in_flight = 0
        """Number of calls that wait for an answer."""
        self.is_ending = False
        self._settings = settings
        self._listener = listener
        self._open_transport = open_transport
        self._options = options
        self._ending = asyncio.Event()
        self._open_result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.runner: asyncio.Task[None] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._is_loss_reported = False
        self._liveness_check: asyncio.Task[None] | None = None

    async def open(self, seconds: float, version: str | None, mirrored: dict[str, Mirrored]) -> None:
        """Open the session. Raises the reason if that fails. Cancelling it ends the task."""
        self.runner = asyncio.create_task(self._run(seconds, version, mirrored), name=f"downstream {self.name}")
        try:
            await asyncio.shield(self._open_result)
        except asyncio.CancelledError:
            self.end()
            raise

    def end(self) -> None:
        """Start closing the session; `wait_closed` waits for it."""
        self.is_ending = True
        self._ending.set()
        if self.runner is not None and not self._open_result.done():
            self.runner.cancel()

    async def use(self, work: Callable[[McpSession], Awaitable[T]], now: float) -> T:
        """Run `work` in the session."""
        if self.session is None:
            raise ServerGone(f"The server {self.name!r} is not connected")
        self.used_at = now
        self.in_flight += 1
        try:
            answer = await work(self.session)
        except ServerRefused:
            self.has_answered = True
            raise
        except ServerGone as error:
            if self._is_loss_reported:
                raise DuplicateFailure(error) from None
            self._is_loss_reported = self.is_ended
            raise
        finally:
            self.in_flight -= 1
        self.has_answered = True
        return answer

    def restore_subscriptions(self, subscriptions: SubscriptionState, pause: Pause) -> None:
        """Restore subscriptions and log level in the background."""
        if self.session is not None:
            self._spawn(
                restore_subscriptions(
                    self.session, subscriptions, lambda method: self.on_notification(method, {}), pause
                )
            )

    def check_liveness(self, seconds: float) -> None:
        """Probe the server in the background, and drop the session if it doesn't answer."""
        if (
            self.session is not None
            and not self.is_ended
            and (self._liveness_check is None or self._liveness_check.done())
        ):
            self._liveness_check = self._spawn(self._probe(self.session, seconds))

    async def wait_closed(self) -> None:
        """Wait until all resources are released."""
        if self.runner is not None:
            await asyncio.wait({self.runner})

    @property
    def is_ended(self) -> bool:
        """Whether the session was lost or is ending."""
        return self._ending.is_set()

    @property
    def pid(self) -> int | None:
        """Process id of the server, if it's a child process."""
        pid = getattr(self.transport, "pid", None)
        return pid if isinstance(pid, int) else None

    # Peer listener

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a notification that belongs to no call."""
        self._listener.on_notification(self, method, params)

    def on_disconnect(self, error: RefdeskError) -> None:
        """Handle the end of the connection. Before the session is open, opening it fails."""
        self._ending.set()
        if self.session is not None:
            self._listener.on_lost(self, error)

    async def _run(self, seconds: float, version: str | None, mirrored: dict[str, Mirrored]) -> None:
        try:
            async with AsyncExitStack() as stack:
                session = await self._open_session(stack, seconds, version, mirrored)
                if session is not None:
                    await self._ending.wait()
                    await cancel_all(self._background)
        except asyncio.CancelledError:
            if not self.is_ending:
                raise
        except Exception:
            # From closing: errors of opening are reported to `open`. A broken server must not break its owner.
            logger.exception("downstream.closing_failed", extra={"fields": {"server": self.name}})
        finally:
            if not self._open_result.done():
                self._fail_open(ServerAway(f"The server {self.name!r} was let go before it had been greeted"))
            await self.peer.close()
            self._listener.on_closed(self)

    async def _open_session(
        self, stack: AsyncExitStack, seconds: float, version: str | None, mirrored: dict[str, Mirrored]
    ) -> McpSession | None:
        """Open transport and session, and report the outcome to `open`. Return None if that failed."""
        try:
            async with asyncio.timeout(seconds):
                opening = self._open_transport(self.name, self._settings, self.peer)
                self.transport = await stack.enter_async_context(opening)
                self.peer.attach(self.transport)
                session = await open_session(self.peer, self.transport, version, mirrored, self._options)
                if self.is_ended:
                    raise ServerGone("it closed the connection")
        except Exception as error:  # noqa: BLE001 reported to `open`
            self._fail_open(self._map_open_error(error, seconds))
            return None
        self.session = session
        self._open_result.set_result(None)
        self._listener.on_open(self)
        return session

    async def _probe(self, session: McpSession, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await session.request("server/discover" if session.server_profile.is_modern else "ping")
        except ServerRefused:
            return  # an error is an answer, too
        except (DependencyError, TimeoutError) as error:
            is_there = isinstance(error, DependencyError) and error.retry_after is not None
            # With calls in flight the server may just be too busy to answer.
            if not is_there and not self.in_flight:
                why = error.detail if isinstance(error, DependencyError) else f"it did not answer within {seconds:g} s"
                self.peer.on_close(ServerAway(f"The server {self.name!r} is there no more: {why[:500]}"))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        chore = asyncio.create_task(work, name=f"downstream {self.name}")
        self._background.add(chore)
        chore.add_done_callback(self._background.discard)
        return chore

    def _fail_open(self, error: RefdeskError) -> None:
        self._open_result.set_exception(error)
        self._open_result.exception()  # retrieved here: the opener may be cancelled

    def _map_open_error(self, error: Exception, seconds: float) -> RefdeskError:
        """Return the error for a session that couldn't be opened."""
        match error:
            case TimeoutError():
                did = "answer the greeting" if self.transport is not None else "start"
                return ServerAway(f"The server {self.name!r} did not {did} within {seconds:g} s")
            case ServerRefused():
                return ServerAway(f"The server {self.name!r} refused the greeting: {error.detail[:500]}")
            case ServerGone():
                return ServerAway(f"The server {self.name!r} ended while it was greeted: {error.detail[:500]}")
            case RefdeskError():
                return error
        logger.error("downstream.opening_failed", exc_info=error, extra={"fields": {"server": self.name}})
        return ServerAway(f"The server {self.name!r} could not be connected to: {type(error).__name__}")


async def cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for them."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def close_all(session_tasks: Iterable[SessionTask]) -> None:
    """End sessions and wait until they are closed. Cancelling it cuts the closing short."""
    tasks = {each.runner for each in session_tasks if each.runner is not None}
    for each in session_tasks:
        each.end()
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
