"""HTTP requests on ASGI: who may send them, their context, body and disconnects, and simple responses."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, NamedTuple

import orjson

from refdesk.calls import Caller
from refdesk.config.models import ServerConfig
from refdesk.telemetry.traces import Trace, read_trace, set_current_span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
RETRY_SOON = (b"retry-after", b"1")
"""For overload that passes in a moment."""

CHECK_INTERVAL_SECONDS = 0.1
"""Longest time in which a call isn't watched for its client's disconnect."""


def build_retry_after(seconds: float) -> tuple[bytes, bytes]:
    """Return the `Retry-After` header of a delay, which HTTP gives in whole seconds."""
    return b"retry-after", b"%d" % max(1, ceil(seconds))


class Reject(Exception):
    """An HTTP error response that is sent before any call is made."""

    def __init__(self, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(status)
        self.status = status
        self.detail = detail
        self.headers = (JSON, *headers)


class ClientGone(Exception):
    """The client has disconnected."""


async def respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    """Send a complete response."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def respond_json(send: Send, status: int, body: Any) -> None:
    """Send a complete JSON response."""
    await respond(send, status, orjson.dumps(body), JSON)


ANY = "*"
MAX_KNOWN_HOSTS = 256
"""Maximum number of accepted Host values to cache. Clients send one or two, an attacker any number."""

PROXY_HEADERS = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers that proxies and tunnels add. Some of them still send this server's own name as Host."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Access:
    """Allowed hosts and origins of a server. They stop DNS rebinding and requests from pages of other sites."""

    hosts: frozenset[str]
    origins: frozenset[str]
    own_pages: frozenset[str] = frozenset()
    """The subset of `origins` that belongs to this server."""
    any_address: bool = False
    """Whether any IP address is an accepted Host. DNS rebinding needs a name, so an address is safe."""
    _known_hosts: set[bytes] = field(default_factory=set)

    def allows_host(self, header: bytes | None) -> bool:
        """Return whether the Host header names this server."""
        if header is None:
            return False
        if header in self._known_hosts:
            return True
        match = _HOST.fullmatch(header.decode("latin-1"))
        if match is None:
            return False
        host = (match[1] or match[2]).lower()
        # The port isn't checked: a forwarded port differs from ours, and rebinding is about names.
        allowed = ANY in self.hosts or host in self.hosts or (self.any_address and _is_address(host))
        if allowed and len(self._known_hosts) < MAX_KNOWN_HOSTS:
            self._known_hosts.add(header)
        return allowed

    def allows_origin(self, header: bytes | None, host: bytes | None = None) -> bool:
        """Return whether a page of this origin may call. Requests without an Origin header are allowed."""
        if header is None or ANY in self.origins:
            return True
        return header.decode("latin-1").lower() in self.origins or self.is_own_page(header, host)

    def is_configured(self, header: bytes | None) -> bool:
        """Return whether an origin is another site that the configuration allows."""
        if header is None:
            return False
        return ANY in self.origins or header.decode("latin-1").lower() in self.origins - self.own_pages

    def is_own_page(self, origin: bytes, host: bytes | None) -> bool:
        """Return whether an origin is this server, under a configured name or under the Host of the request.

        `https` counts too, because a TLS proxy may be in front of this server.
        """
        page = origin.decode("latin-1").lower()
        if page in self.own_pages:
            return True
        scheme, _, name = page.partition("://")
        is_same_host = host is not None and name == host.decode("latin-1").lower()
        return is_same_host and scheme in ("http", "https") and self.allows_host(host)


def build_access(settings: ServerConfig, port: int, *, authenticated: bool) -> Access:
    """Build the access rules of a server that listens on this port.

    On loopback only loopback names are accepted. Elsewhere, IP addresses and the configured names are. If API keys are
    required and no names are configured, any name is accepted, since a page that rebinds a name has no key.
    """
    hosts = {host.lower() for host in settings.allowed_hosts}
    if not hosts and authenticated and not settings.is_loopback:
        hosts.add(ANY)
    hosts |= LOOPBACK_NAMES | {settings.host.lower()}
    names = {f"[{host}]" if ":" in host else host for host in hosts if host != ANY}
    own_pages = {f"http://{name}:{port}" for name in names}
    configured = {origin.lower().rstrip("/") for origin in settings.allowed_origins}
    return Access(
        hosts=frozenset(hosts),
        origins=frozenset(configured | own_pages),
        own_pages=frozenset(own_pages),
        any_address=not settings.is_loopback,
    )


def is_proxied(headers: Headers) -> bool:
    """Return whether a proxy forwarded the request. If so, the client may be anyone, even on loopback."""
    return not PROXY_HEADERS.isdisjoint(headers)


def read_credential(authorization: bytes | None, api_key: bytes | None) -> str | None:
    """Return the credential in `Authorization: Bearer …` or `X-API-Key`.

    None if neither header was sent, empty if the header holds no credential.
    """
    if authorization is not None:
        scheme, _, key = authorization.decode("utf-8", "replace").partition(" ")
        return key.strip() if scheme.lower() == "bearer" and key.strip() else ""
    return None if api_key is None else api_key.decode("utf-8", "replace").strip()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class RequestContext(NamedTuple):
    """Caller, trace, toolsets and project of a request. A named tuple, because one is created per request."""

    caller: Caller
    trace_id: str
    toolsets: frozenset[str] | None = None
    parent: Trace | None = None
    """The caller's span, if it sent a `traceparent`."""
    credential: str | None = None
    """The key or token of the request."""
    project: str | None = None
    """The project that the request names in its URL or header."""

    def __repr__(self) -> str:
        """Leave out the credential."""
        return f"RequestContext({self.caller!r}, trace_id={self.trace_id!r}, toolsets={self.toolsets!r})"


def enter_caller_trace(context: RequestContext, params: Mapping[str, Any]) -> RequestContext:
    """Return the context with the trace in `_meta`, which takes precedence over the headers.

    Also makes the caller's span the parent of everything the current task does.
    """
    meta = params.get("_meta")
    if isinstance(meta, dict) and "traceparent" in meta:
        trace = read_trace(meta["traceparent"], meta.get("tracestate"))
        if trace is not None:
            context = context._replace(trace_id=trace.trace_id, parent=trace)
    set_current_span(context.parent)
    return context


class BodyReader:
    """Reader that counts every byte of a body against the shared limit until the body is released."""

    def __init__(self, max_bytes: int, max_bytes_in_flight: int) -> None:
        self._max_bytes = max_bytes
        self._max_in_flight = max_bytes_in_flight
        self.in_flight = 0

    async def read(self, receive: Receive, declared: bytes | None) -> bytes:
        """Read a whole body. The caller must `release` it once the request is answered."""
        if declared is not None and declared.isdigit() and int(declared) > self._max_bytes:
            raise self._build_too_large()
        chunks: list[bytes] = []
        held = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                chunk = message.get("body", b"")
                held += len(chunk)
                self.in_flight += len(chunk)
                if held > self._max_bytes:
                    raise self._build_too_large()
                if self.in_flight > self._max_in_flight:
                    detail = "The server is receiving too much at once; try again in a moment"
                    raise Reject(503, detail, CLOSE, RETRY_SOON)
                chunks.append(chunk)
                more = message.get("more_body", False)
        except BaseException:
            self.in_flight -= held
            raise
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def release(self, body: bytes) -> None:
        """Return a body's bytes to the shared limit."""
        self.in_flight -= len(body)

    def _build_too_large(self) -> Reject:
        return Reject(413, f"The body is larger than {self._max_bytes} bytes", CLOSE)


class RequestCancelled(Exception):
    """The client has cancelled its request and expects no response."""


class DisconnectMonitor:
    """Registry of the calls in progress.

    Most calls end quickly, so starting a call only registers it. A timer starts a listening task for those that take
    longer, and the first message of a call starts it at once.
    """

    def __init__(self) -> None:
        self.new: set[DisconnectWatcher] = set()
        """Calls without a listening task yet."""
        self._timer: asyncio.TimerHandle | None = None
        # Kept because looking it up costs a system call each time before Python 3.12.
        self.loop = asyncio.get_running_loop()

    def watch(self, receive: Receive) -> DisconnectWatcher:
        """Return a watcher for the call that the current task is about to make."""
        return DisconnectWatcher(self, receive)

    def add(self, watcher: DisconnectWatcher) -> None:
        """Register a call. A task waits for its client's disconnect unless the call ends first."""
        self.new.add(watcher)
        if self._timer is None:
            self._timer = self.loop.call_later(CHECK_INTERVAL_SECONDS, self._start_watchers)

    def _start_watchers(self) -> None:
        self._timer = None
        for watcher in self.new:
            watcher.start()
        self.new.clear()


class DisconnectWatcher:
    """Context manager that cancels the current task when its client disconnects or cancels, and raises the reason."""

    __slots__ = ("_monitor", "_reason", "_receive", "_task", "_watcher")

    def __init__(self, monitor: DisconnectMonitor, receive: Receive) -> None:
        self._monitor = monitor
        self._receive = receive
        self._reason: Exception | None = None
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> DisconnectWatcher:
        self._task = asyncio.current_task(self._monitor.loop)
        self._monitor.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._monitor.new.discard(self)
        if self._watcher is not None:
            self._watcher.cancel()
        if self._reason is not None and self._task is not None:
            self._task.uncancel()
            raise self._reason

    def start(self) -> None:
        """Start waiting for the client to disconnect, unless this has begun."""
        if self._watcher is None:
            self._watcher = asyncio.ensure_future(self._wait_for_disconnect())

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.stop(ClientGone())

    def cancel(self) -> None:
        """Cancel the call at its client's request."""
        self.stop(RequestCancelled())

    def stop(self, reason: Exception) -> None:
        """Cancel the call. It ends with `reason`."""
        if self._task is not None and self._reason is None:
            self._reason = reason
            self._task.cancel()
