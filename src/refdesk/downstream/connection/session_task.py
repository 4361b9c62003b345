"""One session with a server, from its opening to its closing; the task that opens it closes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, TypeVar

from refdesk.config.servers import McpServerConfig
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
    """What somebody else has been told already, as `error`: a hundred calls that a server takes along when it dies are
    one failure of it, not a hundred."""

    def __init__(self, error: RefdeskError) -> None:
        super().__init__(error.detail)
        self.error = error


OpenTransport = Callable[[str, McpServerConfig, TransportListener], AbstractAsyncContextManager[Transport]]


class SessionListener(Protocol):
    """Whoever has links; none of it waits."""

    def on_open(self, task: SessionTask) -> None:
        """The server has been greeted."""
        ...

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to no call."""
        ...

    def on_lost(self, task: SessionTask, error: RefdeskError) -> None:
        """The session that had been opened is over, also when it was to end."""
        ...

    def on_closed(self, task: SessionTask) -> None:
        """Nothing is left of it."""
        ...


class SessionHost(Protocol):
    """What those who have sessions know of the server."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> McpServerConfig:
        """What is set for it at this moment."""
        ...

    @property
    def connect_seconds(self) -> float:
        """How long connecting may take at this moment."""
        ...

    def create_session_task(self, listener: SessionListener) -> SessionTask:
        """A link that is yet to be opened."""
        ...

    async def open(self, task: SessionTask) -> None:
        """Open it, within the time that connecting has."""
        ...

    def on_open(self, task: SessionTask) -> None:
        """The server has been greeted."""
        ...

    def on_notification(self, task: SessionTask, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to no call."""
        ...

    def set_status(self, status: Status) -> None:
        """How it stands now."""
        ...

    def mark_recovered(self) -> None:
        """There is a session again, after there could be none: what was held against the server is over."""
        ...

    def on_closed(self, task: SessionTask) -> None:
        """Nothing is left of it."""
        ...


class SessionTask:
    """A session that is being opened, is open, or is being closed. It begins with `open`, and ends with `end`."""

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
        """Whether it has answered anything since it was greeted."""
        self.used_at = 0.0
        self.in_flight = 0
        """How many wait for an answer."""
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
        """Until the server is greeted; raises what says why it could not be. Cancelling it ends the link."""
        self.runner = asyncio.create_task(self._run(seconds, version, mirrored), name=f"downstream {self.name}")
        try:
            await asyncio.shield(self._open_result)
        except asyncio.CancelledError:
            self.end()
            raise

    def end(self) -> None:
        """Have it closed; `is_closed` says when it is."""
        self.is_ending = True
        self._ending.set()
        if self.runner is not None and not self._open_result.done():
            self.runner.cancel()

    async def use(self, work: Callable[[McpSession], Awaitable[T]], now: float) -> T:
        """Do something in the session."""
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
        """Have the server do in this session what it did in the last, beside everything else."""
        if self.session is not None:
            self._spawn(
                restore_subscriptions(
                    self.session, subscriptions, lambda method: self.on_notification(method, {}), pause
                )
            )

    def check_liveness(self, seconds: float) -> None:
        """Somebody was let down: find out whether the server is there at all, and give the link up if it is not."""
        if (
            self.session is not None
            and not self.is_ended
            and (self._liveness_check is None or self._liveness_check.done())
        ):
            self._liveness_check = self._spawn(self._probe(self.session, seconds))

    async def wait_closed(self) -> None:
        """Wait until nothing is left of it."""
        if self.runner is not None:
            await asyncio.wait({self.runner})

    @property
    def is_ended(self) -> bool:
        """Whether it was lost, or is to end."""
        return self._ending.is_set()

    @property
    def pid(self) -> int | None:
        """The process of the server, where it is one of ours."""
        pid = getattr(self.transport, "pid", None)
        return pid if isinstance(pid, int) else None

    # What the peer calls.

    def on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        """What the server says to nobody in particular."""
        self._listener.on_notification(self, method, params)

    def on_disconnect(self, error: RefdeskError) -> None:
        """The connection is over; before there was a session, opening it fails by that."""
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
            # Of the closing, for what opening raises is told. Whoever keeps a server survives what is wrong with it.
            logger.exception("downstream.closing_failed", extra={"fields": {"server": self.name}})
        finally:
            if not self._open_result.done():
                self._fail_open(ServerAway(f"The server {self.name!r} was let go before it had been greeted"))
            await self.peer.close()
            self._listener.on_closed(self)

    async def _open_session(
        self, stack: AsyncExitStack, seconds: float, version: str | None, mirrored: dict[str, Mirrored]
    ) -> McpSession | None:
        """The session, told to whoever opens it; nothing when there is none, and then the reason is told."""
        try:
            async with asyncio.timeout(seconds):
                opening = self._open_transport(self.name, self._settings, self.peer)
                self.transport = await stack.enter_async_context(opening)
                self.peer.attach(self.transport)
                session = await open_session(self.peer, self.transport, version, mirrored, self._options)
                if self.is_ended:
                    raise ServerGone("it closed the connection")
        except Exception as error:  # noqa: BLE001 whatever it is, it is told to whoever opens it
            self._fail_open(self._map_open_error(error, seconds))
            return None
        self.session = session
        self._open_result.set_result(None)
        self._listener.on_open(self)
        return session

    async def _probe(self, session: McpSession, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await session.request("server/discover" if session.greeting.is_modern else "ping")
        except ServerRefused:
            return  # which is an answer
        except (DependencyError, TimeoutError) as error:
            is_there = isinstance(error, DependencyError) and error.retry_after is not None
            # A server may be too busy with what others wait for to answer this as well.
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
        self._open_result.exception()  # whoever opened it may have gone meanwhile

    def _map_open_error(self, error: Exception, seconds: float) -> RefdeskError:
        """Why there is no session, in a sentence for whoever wanted one."""
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
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def close_all(session_tasks: Iterable[SessionTask]) -> None:
    """End links and wait until nothing is left of them; cancelling it only cuts their ending short."""
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
