"""One session with a server, from its opening to its closing; the task that opens it closes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Protocol, TypeVar

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.connection.status import Status
from refdesk.downstream.connection.subscriptions import Standing, uphold
from refdesk.downstream.envelopes import Mirrored
from refdesk.downstream.jsonrpc import Peer
from refdesk.downstream.session import TERMS, Session, Terms, greet
from refdesk.downstream.transports.base import Inbox, Transport
from refdesk.errors import DependencyError, RefdeskError, ServerAway, ServerGone, ServerRefused
from refdesk.resilience.dependency import Pause

logger = logging.getLogger(__name__)

T = TypeVar("T")


class AlsoLost(Exception):
    """What somebody else has been told already, as `error`: a hundred calls that a server takes along when it dies are
    one failure of it, not a hundred."""

    def __init__(self, error: RefdeskError) -> None:
        super().__init__(error.detail)
        self.error = error


OpenTransport = Callable[[str, McpServerConfig, Inbox], AbstractAsyncContextManager[Transport]]


class Owner(Protocol):
    """Whoever has links; none of it waits."""

    def opened(self, link: Link) -> None:
        """The server has been greeted."""
        ...

    def heard(self, link: Link, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to no call."""
        ...

    def lost(self, link: Link, error: RefdeskError) -> None:
        """The session that had been opened is over, also when it was to end."""
        ...

    def closed(self, link: Link) -> None:
        """Nothing is left of it."""
        ...


class Door(Protocol):
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

    def new_link(self, owner: Owner) -> Link:
        """A link that is yet to be opened."""
        ...

    async def open(self, link: Link) -> None:
        """Open it, within the time that connecting has."""
        ...

    def opened(self, link: Link) -> None:
        """The server has been greeted."""
        ...

    def heard(self, link: Link, method: str, params: Mapping[str, Any]) -> None:
        """A notification that belongs to no call."""
        ...

    def stands(self, status: Status) -> None:
        """How it stands now."""
        ...

    def is_back(self) -> None:
        """There is a session again, after there could be none: what was held against the server is over."""
        ...

    def closed(self, link: Link) -> None:
        """Nothing is left of it."""
        ...


class Link:
    """A session that is being opened, is open, or is being closed. It begins with `open`, and ends with `end`."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        owner: Owner,
        open_transport: OpenTransport,
        terms: Terms = TERMS,
    ) -> None:
        self.name = name
        self.peer = Peer(name, self, terms.outside)
        self.transport: Transport | None = None
        self.session: Session | None = None
        self.is_of_use = False
        """Whether it has answered anything since it was greeted."""
        self.used_at = 0.0
        self.users = 0
        """How many wait for an answer."""
        self.is_ending = False
        self._settings = settings
        self._owner = owner
        self._open_transport = open_transport
        self._terms = terms
        self._over = asyncio.Event()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._chores: set[asyncio.Task[None]] = set()
        self._is_loss_told = False
        self._doubt: asyncio.Task[None] | None = None

    async def open(self, seconds: float, wanted: str | None, mirrored: dict[str, Mirrored]) -> None:
        """Until the server is greeted; raises what says why it could not be. Cancelling it ends the link."""
        self.task = asyncio.create_task(self._keep(seconds, wanted, mirrored), name=f"downstream {self.name}")
        try:
            await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self.end()
            raise

    def end(self) -> None:
        """Have it closed; `is_closed` says when it is."""
        self.is_ending = True
        self._over.set()
        if self.task is not None and not self._opened.done():
            self.task.cancel()

    async def use(self, work: Callable[[Session], Awaitable[T]], now: float) -> T:
        """Do something in the session."""
        if self.session is None:
            raise ServerGone(f"The server {self.name!r} is not connected")
        self.used_at = now
        self.users += 1
        try:
            answer = await work(self.session)
        except ServerRefused:
            self.is_of_use = True
            raise
        except ServerGone as error:
            if self._is_loss_told:
                raise AlsoLost(error) from None
            self._is_loss_told = self.is_over
            raise
        finally:
            self.users -= 1
        self.is_of_use = True
        return answer

    def uphold(self, standing: Standing, pause: Pause) -> None:
        """Have the server do in this session what it did in the last, beside everything else."""
        if self.session is not None:
            self._do_beside(uphold(self.session, standing, lambda method: self.noticed(method, {}), pause))

    def doubt(self, seconds: float) -> None:
        """Somebody was let down: find out whether the server is there at all, and give the link up if it is not."""
        if self.session is not None and not self.is_over and (self._doubt is None or self._doubt.done()):
            self._doubt = self._do_beside(self._probe(self.session, seconds))

    async def is_closed(self) -> None:
        """Wait until nothing is left of it."""
        if self.task is not None:
            await asyncio.wait({self.task})

    @property
    def is_over(self) -> bool:
        """Whether it was lost, or is to end."""
        return self._over.is_set()

    @property
    def pid(self) -> int | None:
        """The process of the server, where it is one of ours."""
        pid = getattr(self.transport, "pid", None)
        return pid if isinstance(pid, int) else None

    # What the peer calls.

    def noticed(self, method: str, params: Mapping[str, Any]) -> None:
        """What the server says to nobody in particular."""
        self._owner.heard(self, method, params)

    def disconnected(self, error: RefdeskError) -> None:
        """The connection is over; before there was a session, opening it fails by that."""
        self._over.set()
        if self.session is not None:
            self._owner.lost(self, error)

    async def _keep(self, seconds: float, wanted: str | None, mirrored: dict[str, Mirrored]) -> None:
        try:
            async with AsyncExitStack() as stack:
                session = await self._greeted(stack, seconds, wanted, mirrored)
                if session is not None:
                    await self._over.wait()
                    await cancel_all(self._chores)
        except asyncio.CancelledError:
            if not self.is_ending:
                raise
        except Exception:
            # Of the closing, for what opening raises is told. Whoever keeps a server survives what is wrong with it.
            logger.exception("downstream.closing_failed", extra={"fields": {"server": self.name}})
        finally:
            if not self._opened.done():
                self._fail(ServerAway(f"The server {self.name!r} was let go before it had been greeted"))
            await self.peer.close()
            self._owner.closed(self)

    async def _greeted(
        self, stack: AsyncExitStack, seconds: float, wanted: str | None, mirrored: dict[str, Mirrored]
    ) -> Session | None:
        """The session, told to whoever opens it; nothing when there is none, and then the reason is told."""
        try:
            async with asyncio.timeout(seconds):
                opening = self._open_transport(self.name, self._settings, self.peer)
                self.transport = await stack.enter_async_context(opening)
                self.peer.talk_through(self.transport)
                session = await greet(self.peer, self.transport, wanted, mirrored, self._terms)
                if self.is_over:
                    raise ServerGone("it closed the connection")
        except Exception as error:  # noqa: BLE001 whatever it is, it is told to whoever opens it
            self._fail(self._reason(error, seconds))
            return None
        self.session = session
        self._opened.set_result(None)
        self._owner.opened(self)
        return session

    async def _probe(self, session: Session, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await session.request("server/discover" if session.greeting.is_modern else "ping")
        except ServerRefused:
            return  # which is an answer
        except (DependencyError, TimeoutError) as error:
            is_there = isinstance(error, DependencyError) and error.retry_after is not None
            # A server may be too busy with what others wait for to answer this as well.
            if not is_there and not self.users:
                why = error.detail if isinstance(error, DependencyError) else f"it did not answer within {seconds:g} s"
                self.peer.lost(ServerAway(f"The server {self.name!r} is there no more: {why[:500]}"))

    def _do_beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        chore = asyncio.create_task(work, name=f"downstream {self.name}")
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
        return chore

    def _fail(self, error: RefdeskError) -> None:
        self._opened.set_exception(error)
        self._opened.exception()  # whoever opened it may have gone meanwhile

    def _reason(self, error: Exception, seconds: float) -> RefdeskError:
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


async def close_all(links: Iterable[Link]) -> None:
    """End links and wait until nothing is left of them; cancelling it only cuts their ending short."""
    tasks = {link.task for link in links if link.task is not None}
    for link in links:
        link.end()
    if not tasks:
        return
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
