"""MCP session: protocol negotiation, requests in the format of the negotiated version, and the task that owns it.

Requests and results are raw objects. Timeouts and failure handling belong to the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import orjson

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Callbacks, Message, Peer, Transport, TransportListener
from refdesk.downstream.request_meta import (
    CLIENT_INFO,
    GATEWAY_CAPABILITIES,
    HANDSHAKE_VERSIONS,
    MODERN_VERSIONS,
    NEWEST_HANDSHAKE,
    NEWEST_MODERN,
    RESERVED_PREFIX,
    HeaderMirrorError,
    Mirrored,
    add_envelope,
    build_headers,
    find_mirrored_arguments,
    strip_envelope,
)
from refdesk.errors import (
    DependencyError,
    RefdeskError,
    ServerAway,
    ServerConnectTimeout,
    ServerGone,
    ServerRefused,
    ServerTalksNonsense,
)
from refdesk.support.tasks import TaskSet, wait_all

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_VERSION_CHARACTERS = 32
"""Maximum length of a protocol version, which is sent back in a header. Real ones have ten characters."""

PROBE_SECONDS = 5.0
"""Timeout for probing `server/discover`: some servers with a handshake ignore any request before `initialize`."""

MAX_LIST_PAGES = 1000
MAX_LIST_ENTRIES = 10_000
MAX_LIST_BYTES = 16_777_216
"""Limits for reading one list: more than any real server offers, and small enough to keep for all servers."""

ListName = Literal["tools", "prompts", "resources", "templates"]


class ListKind(NamedTuple):
    """How a list of a server is requested."""

    method: str
    capability: str
    member: str
    """Member of the result that has the entries."""
    key: str
    """Field that identifies an entry."""


LISTS: Mapping[ListName, ListKind] = {
    "tools": ListKind("tools/list", "tools", "tools", "name"),
    "prompts": ListKind("prompts/list", "prompts", "prompts", "name"),
    "resources": ListKind("resources/list", "resources", "resources", "uri"),
    "templates": ListKind("resources/templates/list", "resources", "resourceTemplates", "uriTemplate"),
}


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """What a server declared: protocol version, capabilities, name and instructions."""

    version: str
    capabilities: Mapping[str, Any]
    info: Mapping[str, Any] = field(default_factory=dict)
    instructions: str | None = None

    @property
    def is_modern(self) -> bool:
        """Whether the version has no handshake."""
        return self.version in MODERN_VERSIONS

    def has(self, capability: str) -> bool:
        """Whether the server declared a capability, or part of one: `tools`, `tools.listChanged`."""
        found: Any = self.capabilities
        for part in capability.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return found is not None and found is not False


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Client side of a session: declared capabilities, acceptance check, fallback callbacks and name."""

    capabilities: Mapping[str, Any] = field(default_factory=lambda: GATEWAY_CAPABILITIES)
    check: Callable[[ServerProfile], None] | None = None
    """Raises a RefdeskError to reject a server before the handshake completes."""
    fallback: Callbacks | None = None
    """Callbacks for server requests that belong to no call."""
    client_info: Mapping[str, Any] = field(default_factory=lambda: CLIENT_INFO)
    """Name and version that the client introduces itself with."""
    list_roots: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """Returns the roots of all clients, for servers that ask for roots without naming a call."""


DEFAULT_OPTIONS = SessionOptions()
"""Options of a gateway, which forwards server requests to its clients."""


class DuplicateFailure(Exception):
    """A lost connection that another caller already reported, with the original as `error`.

    A hundred calls that fail with one crash count as one failure for the breaker.
    """

    def __init__(self, error: RefdeskError) -> None:
        super().__init__(error.detail)
        self.error = error


OnNotification = Callable[[str, Mapping[str, Any]], None]
OpenTransport = Callable[[str, McpServerConfig, TransportListener], AbstractAsyncContextManager[Transport]]


class SessionOwner(Protocol):
    """Owner of sessions: decides when they open and close. Its methods don't block."""

    def on_open(self, session: Session) -> None:
        """Handle an opened session."""

    def on_lost(self, session: Session, error: RefdeskError) -> None:
        """Handle the end of an opened session, whether intended or not."""

    def on_closed(self, session: Session) -> None:
        """Handle a closed session: all resources are released."""


class Session:
    """Session with a server, and the task that owns its transport. `open` starts it and `end` closes it."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        owner: SessionOwner,
        on_notification: OnNotification,
        open_transport: OpenTransport,
        options: SessionOptions = DEFAULT_OPTIONS,
        mirrored: dict[str, Mirrored] | None = None,
    ) -> None:
        """`mirrored` comes from an earlier session with the same server."""
        self.name = name
        self.owner = owner
        self.on_notification = on_notification
        self.peer = Peer(name, self, options.fallback, options.list_roots)
        self.server_profile = ServerProfile("", {})
        """What the server declared in the handshake."""
        self.is_open = False
        """Whether the handshake is complete. Stays true when the session ends."""
        self.mirrored: dict[str, Mirrored] = {} if mirrored is None else mirrored
        """Arguments to repeat in headers, by tool, from the last tool list."""
        self.level: str | None = None
        """Log level for servers without a handshake, sent with each request."""
        self.answers = 0
        """Number of calls that the server has answered since the handshake."""
        self.used_at = 0.0
        self.in_flight = 0
        """Number of calls that wait for an answer."""
        self.runner: asyncio.Task[None] | None = None
        self.background = TaskSet()
        """Tasks that end with the session."""
        self._settings = settings
        self._open_transport = open_transport
        self._options = options
        self._is_ending = False
        self._ending = asyncio.Event()
        self._open_result: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_loss_reported = False
        self._liveness_check: asyncio.Task[None] | None = None

    # Requests

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        callbacks: Callbacks | None = None,
        token: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
    ) -> Message:
        """Send a request and return the raw result.

        The `resultType` of a server without a handshake may say that input is required. `token` is sent as the bearer
        token of this request. `capabilities` are those of the client that the request is for; servers without a
        handshake get them with each request.
        """
        headers = None
        if self.server_profile.is_modern:
            capabilities = self._options.capabilities if capabilities is None else capabilities
            info = self._options.client_info
            params = add_envelope(self.server_profile.version, params, capabilities, self.level, info)
            mirrored = self.mirrored.get(params.get("name", "")) if method == "tools/call" and self.mirrored else None
            headers = build_headers(self.server_profile.version, method, params, mirrored)
        elif params is not None and "_meta" in params:
            params = strip_envelope(params)
        if token is not None:
            headers = {**(headers or {}), "authorization": f"Bearer {token}"}
        return await self.peer.request(method, params, callbacks=callbacks, headers=headers)

    async def use(self, work: Callable[[Session], Awaitable[T]], now: float) -> T:
        """Run `work` in the session."""
        self.used_at = now
        self.in_flight += 1
        try:
            answer = await work(self)
        except ServerRefused:
            self.answers += 1
            raise
        except ServerGone as error:
            if self._is_loss_reported:
                raise DuplicateFailure(error) from None
            self._is_loss_reported = self.is_ended
            raise
        finally:
            self.in_flight -= 1
        self.answers += 1
        return answer

    async def list_all(self, name: ListName) -> list[Message]:
        """Return all entries of a paged list, up to the limits for pages, entries and bytes."""
        method = LISTS[name].method
        entries: list[Message] = []
        size = 0
        cursors: set[str] = set()
        params: Mapping[str, Any] | None = None
        logger.debug("downstream.list_asked", extra={"fields": {"server": self.name, "method": method}})
        while True:
            page = await self.request(method, params)
            usable = self._select_usable(LISTS[name], page)
            entries += usable
            size += sum(map(_measure_size, usable))
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                break
            is_long = len(cursors) + 1 >= MAX_LIST_PAGES or len(entries) > MAX_LIST_ENTRIES or size > MAX_LIST_BYTES
            if is_long or cursor in cursors:
                self._log_warning("downstream.endless_list", method=method, entries=len(entries))
                break
            cursors.add(cursor)
            params = {"cursor": cursor}
        fields = {"server": self.name, "method": method, "entries": len(entries)}
        logger.debug("downstream.listed", extra={"fields": fields})
        entries = entries[:MAX_LIST_ENTRIES]
        return self._record_mirrored(entries) if name == "tools" and self.server_profile.is_modern else entries

    def _select_usable(self, kind: ListKind, page: Message) -> list[Message]:
        """Return the valid entries of a page. The others are logged and dropped."""
        given = page.get(kind.member)
        if not isinstance(given, list):
            raise ServerTalksNonsense(f"The server {self.name!r} returned a list without {kind.member!r}")
        usable = [entry for entry in given if isinstance(entry, dict) and isinstance(entry.get(kind.key), str)]
        if len(usable) < len(given):
            self._log_warning("downstream.entries_dropped", member=kind.member, dropped=len(given) - len(usable))
        return usable

    def _record_mirrored(self, tools: list[Message]) -> list[Message]:
        """Record which arguments are repeated in headers, and drop tools whose arguments can't be."""
        learned: dict[str, Mirrored] = {}
        usable: list[Message] = []
        for tool in tools:
            try:
                mirrored = find_mirrored_arguments(tool.get("inputSchema"))
            except HeaderMirrorError as error:
                self._log_warning("downstream.tool_unusable", tool=tool["name"][:100], why=str(error)[:200])
                continue
            usable.append(tool)
            if mirrored:
                learned[tool["name"]] = mirrored
        self.mirrored.clear()
        self.mirrored.update(learned)
        return usable

    def _log_warning(self, event: str, **fields: Any) -> None:
        logger.warning(event, extra={"fields": {"server": self.name, **fields}})

    # Handshake

    async def negotiate(
        self, transport: Transport, version: str | None, *, probe_seconds: float = PROBE_SECONDS
    ) -> None:
        """Negotiate a protocol version over an open transport.

        A version that is unknown, or other than the requested one, is logged.

        `probe_seconds` is the timeout of `server/discover` when it's only a probe.
        """
        self.peer.transport = transport
        profile = None
        if version in MODERN_VERSIONS:
            with suppress(TimeoutError):
                async with asyncio.timeout(probe_seconds):
                    profile = await self._discover()
        if profile is None:
            wanted = NEWEST_HANDSHAKE if version is None or version in MODERN_VERSIONS else version
            profile = await self._initialize_or_discover(wanted)
        is_known = profile.version in (*HANDSHAKE_VERSIONS, *MODERN_VERSIONS)
        # Without a wish, any known version will do.
        if version not in (None, profile.version) or not is_known:
            wanted = version or NEWEST_HANDSHAKE
            self._log_warning("downstream.version_mismatch", wanted=wanted, spoken=profile.version, known=is_known)
        if self._options.check is not None:
            self._options.check(profile)
        transport.set_protocol_version(profile.version)
        if not profile.is_modern:
            await self.peer.notify("notifications/initialized")
        self.server_profile = profile

    async def _initialize_or_discover(self, version: str) -> ServerProfile:
        """Run the handshake, or `server/discover` if the server rejects it."""
        capabilities, info = self._options.capabilities, self._options.client_info
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
        try:
            answer = await self.peer.request("initialize", params)
        except ServerRefused:
            discovered = await self._discover()
            if discovered is None:
                raise
            return discovered
        agreed = answer.get("protocolVersion")
        if not isinstance(agreed, str) or not 0 < len(agreed) <= MAX_VERSION_CHARACTERS or not agreed.isprintable():
            raise ServerTalksNonsense(f"The server {self.name!r} did not return a valid protocol version")
        profile = self._build_profile(agreed, answer, answer.get("serverInfo"))
        return await self._discover() or profile if profile.is_modern else profile

    async def _discover(self) -> ServerProfile | None:
        """Return what a server without a handshake declares, or None if it has one."""
        params = add_envelope(NEWEST_MODERN, None, self._options.capabilities, client_info=self._options.client_info)
        headers = build_headers(NEWEST_MODERN, "server/discover", params, None)
        try:
            answer = await self.peer.request("server/discover", params, headers=headers)
        except ServerRefused:
            return None
        supported = answer.get("supportedVersions")
        common = [version for version in MODERN_VERSIONS if isinstance(supported, list) and version in supported]
        if not common:
            return None
        meta = answer.get("_meta")
        info = meta.get(f"{RESERVED_PREFIX}serverInfo") if isinstance(meta, dict) else None
        return self._build_profile(common[-1], answer, info)

    def _build_profile(self, version: str, answer: Message, info: Any) -> ServerProfile:
        capabilities, instructions = answer.get("capabilities"), answer.get("instructions")
        if not isinstance(capabilities, dict):
            raise ServerTalksNonsense(f"The server {self.name!r} did not declare its capabilities")
        return ServerProfile(
            version,
            capabilities,
            info if isinstance(info, dict) else {},
            instructions if isinstance(instructions, str) else None,
        )

    # Lifecycle

    async def open(self, seconds: float, version: str | None) -> None:
        """Open the session. Raises the reason if that fails. Cancelling it ends the session."""
        self.runner = asyncio.create_task(self._run(seconds, version), name=f"downstream {self.name}")
        try:
            await asyncio.shield(self._open_result)
        except asyncio.CancelledError:
            self.end()
            raise

    def end(self) -> None:
        """Start closing the session; `close_all` waits for it."""
        self._is_ending = True
        self._ending.set()
        if self.runner is not None and not self._open_result.done():
            self.runner.cancel()

    @property
    def is_ended(self) -> bool:
        """Whether the session was lost or is ending."""
        return self._ending.is_set()

    def on_disconnect(self, error: RefdeskError) -> None:
        """Handle the end of the connection. Before the session is open, opening it fails."""
        self._ending.set()
        if self.is_open:
            self.owner.on_lost(self, error)

    async def _run(self, seconds: float, version: str | None) -> None:
        try:
            async with AsyncExitStack() as stack:
                if await self._try_open(stack, seconds, version):
                    await self._ending.wait()
                    await self.background.cancel()
        except asyncio.CancelledError:
            if not self._is_ending:
                raise
        except Exception:
            # From closing: errors of opening are reported to `open`. A broken server must not break its owner.
            logger.exception("downstream.closing_failed", extra={"fields": {"server": self.name}})
        finally:
            if not self._open_result.done():
                self._fail_open(ServerAway(f"The server {self.name!r} was closed before the handshake was complete"))
            await self.peer.close()
            self.owner.on_closed(self)

    async def _try_open(self, stack: AsyncExitStack, seconds: float, version: str | None) -> bool:
        """Open transport and session, and report the outcome to `open`."""
        try:
            async with asyncio.timeout(seconds):
                opening = self._open_transport(self.name, self._settings, self.peer)
                await self.negotiate(await stack.enter_async_context(opening), version)
                if self.is_ended:
                    raise ServerGone("it closed the connection")
        except Exception as error:  # noqa: BLE001 reported to `open`
            self._fail_open(self._map_open_error(error, seconds))
            return False
        self.is_open = True
        self._open_result.set_result(None)
        self.owner.on_open(self)
        return True

    def _fail_open(self, error: RefdeskError) -> None:
        self._open_result.set_exception(error)
        self._open_result.exception()  # retrieved here: the opener may be cancelled

    def _map_open_error(self, error: Exception, seconds: float) -> RefdeskError:
        """Return the error for a session that couldn't be opened."""
        server = f"The server {self.name!r}"
        match error:
            case TimeoutError() if not isinstance(error, RefdeskError):
                did = "answer the handshake" if self.peer.transport is not None else "start"
                return ServerConnectTimeout(f"{server} did not {did} within {seconds:g} s")
            case ServerRefused():
                return ServerAway(f"{server} rejected the handshake: {error.detail[:500]}")
            case ServerGone():
                return ServerAway(f"{server} closed the connection during the handshake: {error.detail[:500]}")
            case RefdeskError():
                return error
        logger.error("downstream.opening_failed", exc_info=error, extra={"fields": {"server": self.name}})
        return ServerAway(f"{server} could not be connected to: {type(error).__name__}")

    def check_liveness(self, seconds: float) -> None:
        """Probe the server in the background, and drop the session if it doesn't answer."""
        is_checking = self._liveness_check is not None and not self._liveness_check.done()
        if not self.is_ended and not is_checking:
            self._liveness_check = self.background.spawn(self._probe(seconds))

    async def _probe(self, seconds: float) -> None:
        answers = self.answers
        try:
            async with asyncio.timeout(seconds):
                await self.request("server/discover" if self.server_profile.is_modern else "ping")
        except ServerRefused:
            return  # an error is an answer, too
        except (DependencyError, TimeoutError) as error:
            is_there = isinstance(error, DependencyError) and error.retry_after is not None
            # A server that answers calls meanwhile is only too busy for the probe.
            if not is_there and self.answers == answers:
                why = error.detail if isinstance(error, DependencyError) else f"it did not answer within {seconds:g} s"
                self.peer.on_close(ServerAway(f"The server {self.name!r} no longer responds: {why[:500]}"))


async def close_all(sessions: Iterable[Session]) -> None:
    """End sessions and wait until they are closed. Cancelling it cuts the closing short."""
    runners = {session.runner for session in sessions if session.runner is not None}
    for session in sessions:
        session.end()
    await wait_all(runners)


def _measure_size(entry: Message) -> int:
    """Return the size of an entry in bytes. One that is nested too deeply to encode exceeds the limit."""
    try:
        return len(orjson.dumps(entry))
    except orjson.JSONEncodeError:
        return MAX_LIST_BYTES + 1
