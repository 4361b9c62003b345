"""HTTP routes of the web console: static pages and the event stream.

Pages are public because they hold no data. Everything they request goes through the policies like any other call. There
are no cookies: a page of another site has no key to send, and if no key is required, its Origin is rejected.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import orjson

from refdesk.calls import CONSOLE, Call, Caller
from refdesk.errors import DependencyError, Forbidden, Refused, Unauthenticated
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.endpoints import respond_error
from refdesk.inbound.mcp.streams import PING_SECONDS, STREAM_HEADERS
from refdesk.inbound.requests import (
    Access,
    DisconnectMonitor,
    Headers,
    Receive,
    Reject,
    RequestContext,
    Send,
    enter_caller_trace,
    respond,
)

FILES = Path(__file__).parents[1] / "console" / "pages"
INDEX = "index.html"

_VIEW_PATH = re.compile(r"(?:[\w-]+(?:/[\w-]+)*)?", re.ASCII)
"""Paths that are answered with the index page, which routes to the view itself."""

TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
"""Media types by suffix. Other files aren't served."""

PAGES = "/console"
ACTIONS = "/api/console"
EVENTS = f"{ACTIONS}/events"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Content Security Policy: only the console's own files run, and no string becomes code."""

PAGE_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
EVENT_HEADERS = (*STREAM_HEADERS, (b"x-content-type-options", b"nosniff"))

_ACCEPTED = re.compile(r"([^;]+)(?:;.*?\bq=([^;]*))?.*", re.ASCII)


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A static file with its response headers."""

    body: bytes
    media_type: bytes
    etag: bytes
    """Quoted, as in the header."""


class Assets:
    """Static files by path below `/console/`."""

    def __init__(self, folder: Path = FILES) -> None:
        self._folder = folder

    def find(self, path: str) -> StaticFile | None:
        """Return a file by path, the index page for a view's path, or None.

        The path is never looked up on disk, so it can't escape the folder.
        """
        name = INDEX if _VIEW_PATH.fullmatch(path) else path
        return self._files.get(name)

    @cached_property
    def _files(self) -> dict[str, StaticFile]:
        found = {}
        for path in self._folder.rglob("*"):
            if path.suffix in TYPES and path.is_file():
                body = path.read_bytes()
                etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'.encode()
                found[path.relative_to(self._folder).as_posix()] = StaticFile(body, TYPES[path.suffix], etag)
        return found


class ConsoleRoutes:
    """Routes of the web console. No path matches if the console is disabled."""

    def __init__(self, services: Services, access: Access, monitor: DisconnectMonitor) -> None:
        self._services = services
        self._console = services.console
        self._assets = Assets()
        self._access = access
        self._monitor = monitor

    def has(self, path: str) -> bool:
        """Return whether a path belongs to the console."""
        return self._console is not None and (path == PAGES or path.startswith((f"{PAGES}/", f"{ACTIONS}/")))

    def get_methods(self, path: str) -> tuple[str, ...]:
        """Return the HTTP methods of a console path."""
        if path == EVENTS:
            return ("GET",)
        return ("POST",) if path.startswith(f"{ACTIONS}/") else ("GET", "HEAD")

    def wants_page(self, headers: Headers) -> bool:
        """Return whether to redirect `/` to the console: it's enabled, and the client is a browser."""
        return self._console is not None and prefers_html(headers.get(b"accept", b"").decode("latin-1"))

    def drain(self) -> None:
        """End all event streams."""
        if self._console is not None:
            self._console.feed.drain()

    def require_own_page(self, headers: Headers) -> None:
        """Reject requests that a browser sent for a page other than the console's own."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
        is_own = origin is None or self._access.is_own_page(origin, headers.get(b"host"))
        if not is_own or site not in (b"same-origin", b"none"):
            raise Reject(403, "Pages of other sites may not call this")

    async def serve_page(self, path: str, headers: Headers, send: Send) -> None:
        """Serve a static file, or the page of a view."""
        if path == PAGES:
            await respond(send, 308, b"", (b"location", b"/console/"), *PAGE_HEADERS)
            return
        asset = self._assets.find(path.removeprefix(f"{PAGES}/"))
        if asset is None:
            raise Reject(404, "The console has no such page", *PAGE_HEADERS)
        known = {tag.strip().removeprefix(b"W/") for tag in headers.get(b"if-none-match", b"").split(b",")}
        if not known.isdisjoint({asset.etag, b"*"}):
            await respond(send, 304, b"", (b"etag", asset.etag), *PAGE_HEADERS)
        else:
            file_headers = (b"content-type", asset.media_type), (b"etag", asset.etag)
            await respond(send, 200, asset.body, *file_headers, *PAGE_HEADERS)

    async def stream_events(self, context: RequestContext, receive: Receive, send: Send) -> None:
        """Stream change events until the client disconnects, its key is revoked or the server stops."""
        assert self._console is not None
        context = enter_caller_trace(context, {})
        try:
            await self._services.handle(Call(f"{CONSOLE}events", {}, context.caller, trace_id=context.trace_id))
            subscribing = self._console.feed.open_feed_subscription(context.caller)
            with subscribing as subscription, self._monitor.watch(receive):
                await send({"type": "http.response.start", "status": 200, "headers": list(EVENT_HEADERS)})
                last_sent = 0.0
                while (events := await subscription.next()) is not None:
                    if not await self._is_still_valid(context):
                        break
                    body = b"".join(
                        b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data)) for name, data in events
                    )
                    if not body and time.monotonic() - last_sent >= PING_SECONDS:
                        body = b": ping\n\n"
                    if body:
                        await send({"type": "http.response.body", "body": body, "more_body": True})
                        last_sent = time.monotonic()
                await send({"type": "http.response.body", "body": b""})
        except Refused as error:
            await respond_error(send, error, context.trace_id)

    async def _is_still_valid(self, context: RequestContext) -> bool:
        """Return whether the credential that opened a stream is still valid and grants the same access."""
        try:
            caller = self._services.authenticate.identify(context.credential)
            return (caller if isinstance(caller, Caller) else await caller) == context.caller
        except (Unauthenticated, Forbidden):
            return False
        except DependencyError:
            return True  # an unreachable issuer says nothing about this token


def prefers_html(accept: str) -> bool:
    """Return whether a client prefers HTML to JSON. `*/*` gets JSON."""
    accepted = [match for part in accept.split(",")[:50] if (match := _ACCEPTED.fullmatch(part.strip()))]
    weights = {match[1].strip().lower(): _weight(match[2]) for match in accepted}
    html = weights.get("text/html", 0.0)
    other = weights.get("application/json", weights.get("application/*", weights.get("*/*", 0.0)))
    return html > other


def _weight(text: str | None) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        return 0.0
