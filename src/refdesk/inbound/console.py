"""The web console over HTTP: its pages, and the stream of what changes while somebody looks at them.

Pages are for everybody, as nothing in them is anybody's; whatever they ask for passes the policies as any call does.
There are no cookies: a foreign page that has a browser send something here has no key to send with it, and where none
is asked for it is stopped by its origin.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from refdesk.calls import CONSOLE, Call, Caller
from refdesk.errors import DependencyError, Forbidden, Refused, Unauthenticated
from refdesk.inbound.access import Access
from refdesk.inbound.asgi import Headers, Receive, Reject, Send, respond
from refdesk.inbound.disconnects import Watches
from refdesk.inbound.endpoints import respond_error
from refdesk.inbound.interfaces import ConsolePages, ConsoleWatch, Services
from refdesk.inbound.request_context import Visitor
from refdesk.inbound.traces import in_trace

PAGES = "/console"
ACTIONS = "/api/console"
EVENTS = f"{ACTIONS}/events"

PING_SECONDS = 15.0
"""How long a stream stays quiet before a comment is sent, lest something on the way takes it for dead."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""Nothing but the console's own files runs in it, and nothing in it can become a program."""

PAGE_HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-cache"),
)
STREAM_HEADERS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)
FOREIGN = {"detail": "Pages of other sites may not call this"}

_ACCEPTED = re.compile(r"([^;]+)(?:;.*?\bq=([^;]*))?.*", re.ASCII)

Identify = Callable[[], Awaitable[Caller]]
"""Who the one is who opened a stream, by now; raises when they are nobody any more."""


class ConsoleDoor:
    """Answers for the console's paths; there is none of it where it is switched off."""

    def __init__(self, services: Services, access: Access, watches: Watches) -> None:
        self._services = services
        self._console: ConsolePages | None = services.console
        self._access = access
        self._watches = watches

    def has(self, path: str) -> bool:
        """Whether a path is one of the console's."""
        if self._console is None:
            return False
        return path == PAGES or path.startswith((f"{PAGES}/", f"{ACTIONS}/"))

    def methods(self, path: str) -> tuple[str, ...]:
        """How a path of the console's is asked."""
        if path == EVENTS:
            return ("GET",)
        return ("POST",) if path.startswith(f"{ACTIONS}/") else ("GET", "HEAD")

    def wants_page(self, headers: Headers) -> bool:
        """Whether it is a browser that asks for the root, and there is a page to send it to."""
        return self._console is not None and prefers_html(headers.get(b"accept", b"").decode("latin-1"))

    def drain(self) -> None:
        """End all streams."""
        if self._console is not None:
            self._console.drain()

    def require_own_page(self, headers: Headers) -> None:
        """Refuse what a page that is not the console's own has had a browser send."""
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site", b"none")
        is_own = origin is None or self._access.is_own_page(origin, headers.get(b"host"))
        if not is_own or site not in (b"same-origin", b"none"):
            raise Reject(403, FOREIGN)

    async def page(self, path: str, headers: Headers, send: Send) -> None:
        """A file, or the page that shows a view."""
        assert self._console is not None
        if path == PAGES:
            await respond(send, 308, b"", (b"location", b"/console/"), *PAGE_HEADERS)
            return
        asset = self._console.find(path.removeprefix(f"{PAGES}/"))
        if asset is None:
            raise Reject(404, {"detail": "The console has no such page"}, PAGE_HEADERS)
        etag = (b"etag", asset.etag.encode())
        if _is_known(headers.get(b"if-none-match", b"").decode("latin-1"), asset.etag):
            await respond(send, 304, b"", etag, *PAGE_HEADERS)
        else:
            await respond(send, 200, asset.body, (b"content-type", asset.media_type.encode()), etag, *PAGE_HEADERS)

    async def stream(self, visitor: Visitor, identify: Identify, receive: Receive, send: Send) -> None:
        """Tell of changes, until the client leaves, its key no longer holds, or the desk stops."""
        assert self._console is not None
        visitor = in_trace(visitor, {})
        try:
            await self._services.handle(Call(f"{CONSOLE}events", {}, visitor.caller, trace_id=visitor.trace_id))
            watching = self._console.watched_by(visitor.caller)
            with watching as watch, self._watches.over(receive):
                await send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
                await _tell(watch, visitor.caller, identify, send)
        except Refused as error:
            await respond_error(send, error, visitor.trace_id)


async def _tell(watch: ConsoleWatch, caller: Caller, identify: Identify, send: Send) -> None:
    spoke = 0.0
    while (events := await watch.next()) is not None and await _is_still(caller, identify):
        body = b"".join(framed(name, data) for name, data in events)
        if not body and time.monotonic() - spoke >= PING_SECONDS:
            body = b": ping\n\n"
        if body:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            spoke = time.monotonic()
    await send({"type": "http.response.body", "body": b""})


async def _is_still(caller: Caller, identify: Identify) -> bool:
    """Whether the key that opened a stream is still in force, and still opens the same."""
    try:
        return await identify() == caller
    except (Unauthenticated, Forbidden):
        return False
    except DependencyError:
        return True  # who issues tokens is away, which says nothing of this one


def framed(name: str, data: Mapping[str, Any]) -> bytes:
    """One event of a stream."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


def prefers_html(accept: str) -> bool:
    """Whether a client would rather have a page than JSON; one that takes anything gets JSON."""
    wishes = [match for part in accept.split(",")[:50] if (match := _ACCEPTED.fullmatch(part.strip()))]
    weights = {match[1].strip().lower(): _weight(match[2]) for match in wishes}
    html = weights.get("text/html", 0.0)
    other = weights.get("application/json", weights.get("application/*", weights.get("*/*", 0.0)))
    return html > other


def _weight(text: str | None) -> float:
    try:
        return 1.0 if text is None else float(text)
    except ValueError:
        return 0.0


def _is_known(header: str, etag: str) -> bool:
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in tags or "*" in tags
