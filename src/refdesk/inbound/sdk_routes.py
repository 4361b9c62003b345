"""MCP requests that the SDK answers: sessions, stateless requests with notifications, and the modern revision.

`choose` sends the rest to the fast path.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeGuard

import anyio
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, authorization_context
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from refdesk.calls import Caller
from refdesk.config import ServerConfig
from refdesk.errors import InvalidRequest, Overloaded, RefdeskError, TransportError
from refdesk.inbound import fast_path_2026
from refdesk.inbound.asgi import Headers, Message, Receive, Scope, Send, respond
from refdesk.inbound.disconnects import CalledOff, Watch
from refdesk.inbound.envelope import Message as RpcMessage
from refdesk.inbound.envelope import MessageId, Notification, Reply, Request
from refdesk.inbound.event_store import ResumableSessions
from refdesk.inbound.interfaces import Services
from refdesk.inbound.mcp import METHODS, SdkServer
from refdesk.inbound.request_context import VISITOR, Visitor

_HANDSHAKE_VERSIONS = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_SAME_RESULTS = frozenset({b"2025-06-18", b"2025-11-25"})
"""Revisions that support every field of our results."""


class SdkLanes:
    """Routes to the SDK's transports. They work while `open` is entered."""

    def __init__(self, services: Services, settings: ServerConfig, server: SdkServer) -> None:
        self._services = services
        # A session lives in one process. With several workers the next request might reach another one.
        self._sessions_on = not settings.stateless and settings.workers == 1
        self._server = server
        self._stateful = ResumableSessions(server, settings)
        self._stateless = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=settings.max_body_bytes
        )
        self._in_flight: dict[tuple[bytes, str], Watch | None] = {}
        self._draining = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the SDK's session managers."""
        reports, ended = logging.getLogger("mcp.server.streamable_http"), _EndedSessions()
        reports.addFilter(ended)
        try:
            async with self._stateful.run(), self._stateless.run():
                yield
        finally:
            reports.removeFilter(ended)

    def drain(self) -> None:
        """End long-lived streams."""
        self._draining.set()
        self._server.listeners.close()

    def choose(self, message: RpcMessage, visitor: Visitor, headers: Headers) -> StreamableHTTPSessionManager | None:
        """Return the SDK's session manager for a message, or None for the fast path."""
        version, session = headers.get(b"mcp-protocol-version"), headers.get(b"mcp-session-id")
        if session is not None:
            return None if self._is_plain_in(session, message, visitor, version) else self._stateful
        if version is not None and version not in _HANDSHAKE_VERSIONS:
            return None if self._is_plain(message) and fast_path_2026.is_plain(message, headers) else self._stateful
        if not isinstance(message, Request) or b"text/event-stream" not in headers.get(b"accept", b""):
            return None
        if message.method == "initialize":
            return self._stateful if self._sessions_on else None
        return None if self._is_plain(message) else self._stateless

    @contextmanager
    def in_flight(self, session: bytes, id: MessageId, watch: Watch | None) -> Iterator[Callable[[], None]]:
        """Register a request id of a session, and reject it while another request with it is in progress.

        Yields a function that releases the id, to be called before the final part of the response is sent.
        """
        key = (session, str(id))
        if key in self._in_flight:
            raise InvalidRequest("A request with this id is still being answered in this session")
        self._in_flight[key] = watch

        def release() -> None:
            self._in_flight.pop(key, None)

        try:
            yield release
        finally:
            release()

    async def handle(
        self,
        manager: StreamableHTTPSessionManager,
        message: RpcMessage,
        visitor: Visitor,
        scope: Scope,
        receive: Receive,
        send: Send,
        session: bytes | None,
    ) -> None:
        """Let the SDK answer a POST, unless it is the response to a request of the fast path."""
        if session is not None and isinstance(message, Reply) and self._settles(session, message, visitor):
            await respond(send, 202, b"")
            return
        _introduce(scope, visitor)
        send = _with_error_data(send)
        if session is None or not isinstance(message, Request):
            self._call_off(session, message, visitor)
            await _hand_over(manager, scope, receive, send)
            return
        with self.in_flight(session, message.id, None) as release:

            async def send_and_release(part: Message) -> None:
                if part["type"] == "http.response.body" and not part.get("more_body"):
                    release()
                await send(part)

            await manager.handle_request(scope, receive, send_and_release)

    async def handle_session(self, visitor: Visitor, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK serve the stream of a session, or delete the session. The stream ends on shutdown."""
        _introduce(scope, visitor)
        streaming = False

        async def send_and_note(part: Message) -> None:
            nonlocal streaming
            streaming = part["type"] == "http.response.start" or part.get("more_body", False)
            await send(part)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_draining, tasks.cancel_scope)
            await self._stateful.handle_request(scope, receive, _with_error_data(send_and_note))
            tasks.cancel_scope.cancel()
        if streaming:
            await send({"type": "http.response.body", "body": b""})

    async def _cancel_when_draining(self, scope: anyio.CancelScope) -> None:
        await self._draining.wait()
        scope.cancel()

    def _is_plain(self, message: RpcMessage) -> TypeGuard[Request]:
        """Return whether the fast path can answer a message."""
        return (
            isinstance(message, Request)
            and message.method in METHODS
            and self._services.is_plain(message.method, str(message.params.get("name")))
        )

    def _is_plain_in(self, session: bytes, message: RpcMessage, visitor: Visitor, version: bytes | None) -> bool:
        """Return whether the fast path can answer a message of a session.

        The SDK removes fields that the oldest revisions don't know.
        """
        return version in _SAME_RESULTS and self._is_plain(message) and self._is_open(session, visitor)

    def _is_open(self, session: bytes, visitor: Visitor) -> bool:
        user = _principal(visitor.caller)
        return self._stateful.touch(session.decode("latin-1"), authorization_context(user) if user else None)

    def _settles(self, session: bytes, reply: Reply, visitor: Visitor) -> bool:
        """Resolve a request of the fast path with the client's response. Return False if it's for another one."""
        return self._is_open(session, visitor) and self._server.questions.settle(session.decode("latin-1"), reply)

    def _call_off(self, session: bytes | None, message: RpcMessage, visitor: Visitor) -> None:
        """Cancel a call of the fast path. The SDK only knows its own."""
        if session is None or not isinstance(message, Notification) or message.method != "notifications/cancelled":
            return
        watch = self._in_flight.get((session, str(message.params.get("requestId"))))
        if watch is not None and self._is_open(session, visitor):
            watch.stop(CalledOff())


def _introduce(scope: Scope, visitor: Visitor) -> None:
    """Add the caller to the scope, and strip trailing whitespace from header values (RFC 9110, 5.5)."""
    scope["headers"] = [(name, value.rstrip(b" \t")) for name, value in scope["headers"]]
    scope[VISITOR] = visitor
    scope["user"] = _principal(visitor.caller)


def _principal(caller: Caller) -> AuthenticatedUser | None:
    """Return the caller in the SDK's type, which binds a session to the user who opened it."""
    if not caller.authenticated:
        return None
    return AuthenticatedUser(AccessToken(token="", client_id=caller.tenant, scopes=[], subject=caller.user))


async def _hand_over(manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send) -> None:
    """Pass a POST to the SDK whose session may end before it is delivered.

    The SDK acknowledges a notification first and delivers it then. If the client has ended its session in between, the
    delivery fails, and the SDK answers a second time.
    """
    is_answered = False

    async def send_once(part: Message) -> None:
        nonlocal is_answered
        if not is_answered:
            await send(part)
            is_answered = part["type"] == "http.response.body" and not part.get("more_body")

    with suppress(anyio.ClosedResourceError):
        await manager.handle_request(scope, receive, send_once)


class _EndedSessions(logging.Filter):
    """Drops the SDK's error reports about messages to sessions that have ended."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], anyio.ClosedResourceError))


def _with_error_data(send: Send) -> Send:
    """Wrap `send` to add Refdesk's error data to errors of the SDK's transports."""
    held: list[Message] = []

    async def send_amended(part: Message) -> None:
        if part["type"] == "http.response.start" and part["status"] >= 400:
            held.append(part)
            return
        if held and part["type"] == "http.response.body" and not part.get("more_body"):
            start = held.pop()
            full = start["status"] == 503
            body = _amended(part.get("body", b""), Overloaded if full else TransportError)
            headers = [header for header in start["headers"] if header[0].lower() != b"content-length"]
            headers += [(b"content-length", b"%d" % len(body)), *([(b"retry-after", b"1")] if full else [])]
            await send({**start, "headers": headers})
            await send({**part, "body": body})
            return
        await send(part)

    return send_amended


def _amended(body: bytes, kind: type[RefdeskError]) -> bytes:
    try:
        message: dict[str, Any] = orjson.loads(body)
        error = message["error"]
        data = error.get("data") or {}
        if "retryable" in data:
            return body
        return orjson.dumps({**message, "error": {**error, "data": {**kind(error["message"]).data, **data}}})
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        # Not a JSON-RPC error: plain text or an empty body.
        return body
