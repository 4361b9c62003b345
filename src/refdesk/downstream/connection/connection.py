"""One server, as everybody else knows it: asked within bounds, and never worth more than one typed error when it fails.

Whether its session is kept or made anew for each operation is decided by its settings, and done in `kept` and `short`.
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

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.connection.ephemeral import ShortSessions
from refdesk.downstream.connection.leases import SPARE_SECONDS
from refdesk.downstream.connection.persistent import KeptSession
from refdesk.downstream.connection.session_task import AlsoLost, Link, OpenTransport, Owner
from refdesk.downstream.connection.status import STOPPED, Status
from refdesk.downstream.connection.subscriptions import STANDING_METHODS, Standing
from refdesk.downstream.envelopes import Mirrored
from refdesk.downstream.jsonrpc import Voice
from refdesk.downstream.session import TERMS, Greeting, Session, Terms
from refdesk.downstream.transports import open_transport
from refdesk.downstream.transports.base import Inbox, Message, NotLetIn, NotTaken, Transport
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTooSlow
from refdesk.resilience.deadlines import Deadlines, Overdue
from refdesk.resilience.dependency import SERVICE, Dependency, Pause

__all__ = ["Connection", "Heard", "Status"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONCURRENCY = 1000
"""Calls of one server at a time: they wait here, where a waiting call costs a few kilobytes, and not in the server."""

STDERR_LINES = 200
"""How much of what a server writes on standard error is kept."""

SHOWN_CHARACTERS = 100
"""Of the name and version that a server gives itself."""

MOST_BOUNDS = 32
"""How many different time-outs are remembered; calls mostly have one of a few."""


class Heard(Protocol):
    """Who hears what belongs to no call."""

    def noticed(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """A notification of the server: lists or resources that changed, log messages."""
        ...


class Connection:
    """One server: its session, kept or short, owned by one task."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        *,
        protocol_version: str | None = None,
        heard: Heard,
        changed: Callable[[Connection], None],
        now: Callable[[], float] = time.monotonic,
        pause: Pause = asyncio.sleep,
        chance: Callable[[], float] = random.random,
        heard_stderr: Callable[[str], None] | None = None,
        open_transport: OpenTransport | None = None,
        terms: Terms = TERMS,
        spare_seconds: float = SPARE_SECONDS,
    ) -> None:
        self.name = name
        self.settings = settings
        self.status = STOPPED
        self.greeting: Greeting | None = None
        """What the server said of itself when it was last greeted."""
        self.dependency = Dependency(f"downstream {name}", SERVICE, concurrency=CONCURRENCY, now=now)
        self.call_seconds = settings.call_timeout_seconds
        self.capabilities_seconds = settings.capabilities_timeout_seconds
        self.connect_seconds = settings.connect_timeout_seconds
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES)
        """The last of what the server wrote on standard error, without secrets; `heard_stderr` is told every line."""
        self._version = protocol_version
        self._terms = terms
        self._heard = heard
        self._changed = changed
        self._heard_stderr = heard_stderr
        self._open_transport = open_transport or self._open_by_settings
        self._since = datetime.now(UTC)
        self._opened = 0
        self._garbage = 0
        self._open_links: set[Link] = set()
        self._mirrored: dict[str, Mirrored] = {}
        self._deadlines: dict[float, Deadlines] = {}
        self._standing = Standing()
        self._sessions: KeptSession | ShortSessions = (
            ShortSessions(self)
            if settings.session == "short"
            else KeptSession(self, self._standing, now=now, pause=pause, chance=chance, spare_seconds=spare_seconds)
        )

    async def run(self) -> None:
        """Own all that the server needs here, until this is cancelled; then nothing is left of it."""
        try:
            await self._sessions.run()
        finally:
            for deadlines in self._deadlines.values():
                deadlines.close()

    async def restart(self) -> None:
        """Close the session and open another; how that turned out is the status afterwards."""
        await self._sessions.restart()

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        voice: Voice | None = None,
        token: str | None = None,
        seconds: float | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Message:
        """The result of a request, within the time that a call has.

        Raises ServerAway, ServerGone, ServerTooSlow, ServerTalksNonsense or BreakerOpen when there is none, and
        ServerRefused when the server said no. `capabilities` are those of the client that the call is made for.
        """
        credential = token if self.settings.forward_token else None
        if method in STANDING_METHODS:
            return await self._have_stand(method, params or {}, credential)

        def ask(session: Session) -> Awaitable[Message]:
            return session.request(method, params, voice=voice, token=credential, capabilities=capabilities)

        key = None if voice is None else voice.key
        return await self._perform(ask, self.call_seconds if seconds is None else seconds, key)

    async def _have_stand(self, method: str, params: Mapping[str, Any], token: str | None) -> Message:
        """Ask for something that outlives the session; a server without a handshake has another way to be asked."""

        async def ask(session: Session) -> Message:
            answer = {} if session.greeting.is_modern else await session.request(method, params, token=token)
            self._standing.note(method, params)
            session.level = self._standing.level
            return answer

        return await self._perform(ask, self.call_seconds)

    async def list_all(self, method: str, member: str) -> list[Message]:
        """All entries of a list, within the time that a list has. A server whose lists fail can still be called: its
        breaker is told nothing of them."""
        seconds = self.capabilities_seconds
        return await self._perform(lambda session: session.list_all(method, member), seconds, is_call=False)

    async def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Tell the server something; one without a session at this time has nothing to be told about."""
        for link in list(self._open_links):
            if link.session is not None:
                await link.session.notify(method, params)

    def describe(self) -> dict[str, Any]:
        """How it stands, for those who look after this desk."""
        described: dict[str, Any] = {
            "state": self.status.state,
            "since": self._since.isoformat(timespec="milliseconds"),
            "transport": self.settings.kind,
            "session": self.settings.session,
            "restarts": max(0, self._sessions.restarts),
            "sessions": self._opened,
            "garbage": self._garbage + sum(link.peer.garbage for link in self._open_links),
            "in_flight": sum(link.users for link in self._open_links),
            "breaker": self.dependency.state,
        }
        if self.status.message:
            described["message"] = self.status.message
        pids = [link.pid for link in self._open_links if link.pid is not None]
        if pids:
            described["pid"] = pids[0]
        if self.greeting is not None:
            described["version"] = self.greeting.version
            info = self.greeting.info
            described["server"] = {key: _shown(info.get(key)) for key in ("name", "version")}
        return described

    async def _perform(
        self, work: Callable[[Session], Awaitable[T]], seconds: float, key: object = None, *, is_call: bool = True
    ) -> T:
        sessions = self._sessions
        sessions.refuse_while_away()
        deadlines = self._deadlines.get(seconds) or self._new_deadlines(seconds)

        def operate() -> Awaitable[T]:
            return deadlines.run(sessions.operate, work, key)

        try:
            return await (self.dependency.run(operate, queue_seconds=seconds) if is_call else operate())
        except AlsoLost as also:
            raise _as_known(also.error) from None
        except (NotTaken, NotLetIn) as error:
            raise _as_known(error) from error
        except Overdue:
            sessions.doubt()
            raise ServerTooSlow(f"The server {self.name!r} did not answer within {seconds:g} s") from None

    def _new_deadlines(self, seconds: float) -> Deadlines:
        if len(self._deadlines) >= MOST_BOUNDS:
            self._deadlines.clear()  # what runs under them is kept by itself
        deadlines = self._deadlines[seconds] = Deadlines(seconds)
        return deadlines

    # What the sessions call.

    def new_link(self, owner: Owner) -> Link:
        """A link that is yet to be opened."""
        return Link(self.name, self.settings, owner, self._open_transport, self._terms)

    def _open_by_settings(
        self, name: str, settings: McpServerConfig, inbox: Inbox
    ) -> AbstractAsyncContextManager[Transport]:
        if settings.kind == "stdio":
            from refdesk.downstream.transports.stdio import open_stdio

            return open_stdio(name, settings, inbox, heard_stderr=self._take_stderr)
        return open_transport(name, settings, inbox)

    def _take_stderr(self, line: str) -> None:
        self.stderr_lines.append(line)
        if self._heard_stderr is not None:
            self._heard_stderr(line)

    async def open(self, link: Link) -> None:
        """Open it, within the time that connecting has at this moment."""
        await link.open(self.connect_seconds, self._version, self._mirrored)

    def opened(self, link: Link) -> None:
        """The server has been greeted."""
        self._opened += 1
        self._open_links.add(link)
        if link.session is not None:
            self.greeting = link.session.greeting
            link.session.level = self._standing.level

    def heard(self, link: Link, method: str, params: Mapping[str, Any]) -> None:
        """Pass on what the server says to nobody in particular."""
        if method == "notifications/subscriptions/acknowledged":
            return
        if method.endswith("/list_changed"):
            logger.debug("downstream.list_changed", extra={"fields": {"server": self.name, "method": method}})
        self._heard.noticed(self, method, params)

    def stands(self, status: Status) -> None:
        """Have another status, and tell so."""
        if status == self.status:
            return
        self.status = status
        self._since = datetime.now(UTC)
        level = logging.WARNING if status.state == "Error" else logging.INFO
        fields = {"server": self.name, "state": status.state, "message": status.message[:500]}
        logger.log(level, "downstream.status", extra={"fields": fields})
        self._changed(self)

    def is_back(self) -> None:
        """It can be reached again, which is what its breaker waits to find out."""
        self.dependency.recovered()

    def closed(self, link: Link) -> None:
        """Nothing is left of it."""
        self._open_links.discard(link)
        self._garbage += link.peer.garbage


def _shown(given: object) -> str | None:
    """What a server says of itself, where it is text at all."""
    return given[:SHOWN_CHARACTERS] if isinstance(given, str) else None


def _as_known(error: RefdeskError) -> RefdeskError:
    """By the name that callers know: what some say beyond that has been made use of here."""
    if isinstance(error, NotTaken):
        return ServerGone(error.detail)
    return ServerAway(error.detail) if isinstance(error, NotLetIn) else error
