"""The SDK's lanes: sessions of the older revisions, stateless requests that want messages, and the newest revision.

What needs none of it goes down the plain lane; `choose` says which.
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
"""Revisions in which everything that our results hold is known."""


class SdkLanes:
    """Requests that the SDK's transports answer; while `open` is entered."""

    def __init__(self, services: Services, settings: ServerConfig, server: SdkServer) -> None:
        self._services = services
        # A session lives in one process: with several, the next request would find it only by luck.
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
        """End the streams that would never end by themselves."""
        self._draining.set()
        self._server.listeners.close()

    def choose(self, message: RpcMessage, visitor: Visitor, headers: Headers) -> StreamableHTTPSessionManager | None:
        """The SDK's manager for a message that needs it; None for the plain lane."""
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
        """Two calls of one id in one session could not be told apart: the second is refused until the first is over.

        What is given can be called when the answer goes out, before the client could send its next call.
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
        """Have the SDK answer a POST, unless it is the answer to a question of the plain lane."""
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
        """The stream of a session, which ends when the server does, or the end of the session."""
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
        """Whether a call of ours needs no more than a bare answer."""
        return (
            isinstance(message, Request)
            and message.method in METHODS
            and self._services.is_plain(message.method, str(message.params.get("name")))
        )

    def _is_plain_in(self, session: bytes, message: RpcMessage, visitor: Visitor, version: bytes | None) -> bool:
        """The same in a session, where the SDK also knows what to leave out for the oldest revisions."""
        return version in _SAME_RESULTS and self._is_plain(message) and self._is_open(session, visitor)

    def _is_open(self, session: bytes, visitor: Visitor) -> bool:
        user = _principal(visitor.caller)
        return self._stateful.touch(session.decode("latin-1"), authorization_context(user) if user else None)

    def _settles(self, session: bytes, reply: Reply, visitor: Visitor) -> bool:
        """Whether a reply is the answer that a call on the plain lane waits for; nobody else's is taken for it."""
        return self._is_open(session, visitor) and self._server.questions.settle(session.decode("latin-1"), reply)

    def _call_off(self, session: bytes | None, message: RpcMessage, visitor: Visitor) -> None:
        """Cancel a call that the plain lane answers; the SDK knows only its own."""
        if session is None or not isinstance(message, Notification) or message.method != "notifications/cancelled":
            return
        watch = self._in_flight.get((session, str(message.params.get("requestId"))))
        if watch is not None and self._is_open(session, visitor):
            watch.stop(CalledOff())


def _introduce(scope: Scope, visitor: Visitor) -> None:
    """Tell the SDK who is there, and give it header values without the blanks that may follow them (RFC 9110, 5.5)."""
    scope["headers"] = [(name, value.rstrip(b" \t")) for name, value in scope["headers"]]
    scope[VISITOR] = visitor
    scope["user"] = _principal(visitor.caller)


def _principal(caller: Caller) -> AuthenticatedUser | None:
    """The caller in the SDK's type, by which it binds a session to whoever opened it."""
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
    """Give the errors of the SDK's transports the data that all of ours carry."""
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
        # Not a JSON-RPC error: an HTTP answer in plain text, or none.
        return body
