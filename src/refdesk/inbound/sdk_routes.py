"""MCP requests that the SDK answers: sessions, stateless requests with notifications, and the modern revision.

`choose_manager` sends the rest to the fast path.
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
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.disconnects import DisconnectWatcher, RequestCancelled
from refdesk.inbound.envelope import MessageId, RpcMessage, RpcNotification, RpcRequest, RpcResponse
from refdesk.inbound.event_store import ResumableSessionManager
from refdesk.inbound.mcp import METHODS, SdkServer
from refdesk.inbound.request_context import CONTEXT_KEY, RequestContext

_HANDSHAKE_VERSIONS = frozenset(version.encode() for version in HANDSHAKE_PROTOCOL_VERSIONS)
_FAST_PATH_VERSIONS = frozenset({b"2025-06-18", b"2025-11-25"})
"""Revisions that support every field of our results."""


class SdkRoutes:
    """Routes to the SDK's transports. They work while `open` is entered."""

    def __init__(self, services: Services, settings: ServerConfig, server: SdkServer) -> None:
        self._services = services
        # A session lives in one process. With several workers the next request might reach another one.
        self._sessions_on = not settings.stateless and settings.workers == 1
        self._server = server
        self._stateful = ResumableSessionManager(server, settings)
        self._stateless = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=settings.max_body_bytes
        )
        self._in_flight: dict[tuple[bytes, str], DisconnectWatcher | None] = {}
        self._draining = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the SDK's session managers."""
        reports, session_filter = logging.getLogger("mcp.server.streamable_http"), _ClosedSessionFilter()
        reports.addFilter(session_filter)
        try:
            async with self._stateful.run(), self._stateless.run():
                yield
        finally:
            reports.removeFilter(session_filter)

    def drain(self) -> None:
        """End long-lived streams."""
        self._draining.set()
        self._server.listeners.close()

    def choose_manager(
        self, message: RpcMessage, context: RequestContext, headers: Headers
    ) -> StreamableHTTPSessionManager | None:
        """Return the SDK's session manager for a message, or None for the fast path."""
        version, session = headers.get(b"mcp-protocol-version"), headers.get(b"mcp-session-id")
        if session is not None:
            return None if self._is_eligible_in_session(session, message, context, version) else self._stateful
        if version is not None and version not in _HANDSHAKE_VERSIONS:
            return None if self._is_eligible_modern(message, headers) else self._stateful
        if not isinstance(message, RpcRequest) or b"text/event-stream" not in headers.get(b"accept", b""):
            return None
        if message.method == "initialize":
            return self._stateful if self._sessions_on else None
        return None if self._is_eligible(message) else self._stateless

    @contextmanager
    def track_request(
        self, session: bytes, id: MessageId, watcher: DisconnectWatcher | None
    ) -> Iterator[Callable[[], None]]:
        """Register a request id of a session, and reject it while another request with it is in progress.

        Yields a function that releases the id, to be called before the final part of the response is sent.
        """
        key = (session, str(id))
        if key in self._in_flight:
            raise InvalidRequest("A request with this id is still being answered in this session")
        self._in_flight[key] = watcher

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
        context: RequestContext,
        scope: Scope,
        receive: Receive,
        send: Send,
        session: bytes | None,
    ) -> None:
        """Let the SDK answer a POST, unless it is the response to a request of the fast path."""
        if (
            session is not None
            and isinstance(message, RpcResponse)
            and self._resolve_response(session, message, context)
        ):
            await respond(send, 202, b"")
            return
        _prepare_scope(scope, context)
        send = _with_error_data(send)
        if session is None or not isinstance(message, RpcRequest):
            self._cancel_call(session, message, context)
            await _forward_once(manager, scope, receive, send)
            return
        with self.track_request(session, message.id, None) as release:

            async def send_and_release(part: Message) -> None:
                if part["type"] == "http.response.body" and not part.get("more_body"):
                    release()
                await send(part)

            await manager.handle_request(scope, receive, send_and_release)

    async def handle_session(self, context: RequestContext, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the SDK serve the stream of a session, or delete the session. The stream ends on shutdown."""
        _prepare_scope(scope, context)
        streaming = False

        async def send_and_track(part: Message) -> None:
            nonlocal streaming
            streaming = part["type"] == "http.response.start" or part.get("more_body", False)
            await send(part)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_draining, tasks.cancel_scope)
            await self._stateful.handle_request(scope, receive, _with_error_data(send_and_track))
            tasks.cancel_scope.cancel()
        if streaming:
            await send({"type": "http.response.body", "body": b""})

    async def _cancel_when_draining(self, scope: anyio.CancelScope) -> None:
        await self._draining.wait()
        scope.cancel()

    def _is_eligible(self, message: RpcMessage) -> TypeGuard[RpcRequest]:
        """Return whether the fast path can answer a message."""
        return isinstance(message, RpcRequest) and message.method in METHODS

    def _is_eligible_modern(self, message: RpcMessage, headers: Headers) -> bool:
        """Return whether the fast path can answer a message of the modern revision. The SDK reads header params."""
        return (
            isinstance(message, RpcRequest)
            and fast_path_2026.is_eligible(message, headers)
            and not (message.method == "tools/call" and self._services.has_header_params(message.params["name"]))
        )

    def _is_eligible_in_session(
        self, session: bytes, message: RpcMessage, context: RequestContext, version: bytes | None
    ) -> bool:
        """Return whether the fast path can answer a message of a session.

        The SDK removes fields that the oldest revisions don't know.
        """
        return version in _FAST_PATH_VERSIONS and self._is_eligible(message) and self._is_open(session, context)

    def _is_open(self, session: bytes, context: RequestContext) -> bool:
        user = _to_sdk_user(context.caller)
        return self._stateful.touch(session.decode("latin-1"), authorization_context(user) if user else None)

    def _resolve_response(self, session: bytes, response: RpcResponse, context: RequestContext) -> bool:
        """Resolve a request of the fast path with the client's response. Return False if it's for another one."""
        return self._is_open(session, context) and self._server.pending_requests.resolve(
            session.decode("latin-1"), response
        )

    def _cancel_call(self, session: bytes | None, message: RpcMessage, context: RequestContext) -> None:
        """Cancel a call of the fast path. The SDK only knows its own."""
        if session is None or not isinstance(message, RpcNotification) or message.method != "notifications/cancelled":
            return
        watcher = self._in_flight.get((session, str(message.params.get("requestId"))))
        if watcher is not None and self._is_open(session, context):
            watcher.stop(RequestCancelled())


def _prepare_scope(scope: Scope, context: RequestContext) -> None:
    """Add the caller to the scope, and strip trailing whitespace from header values (RFC 9110, 5.5)."""
    scope["headers"] = [(name, value.rstrip(b" \t")) for name, value in scope["headers"]]
    scope[CONTEXT_KEY] = context
    scope["user"] = _to_sdk_user(context.caller)


def _to_sdk_user(caller: Caller) -> AuthenticatedUser | None:
    """Return the caller in the SDK's type, which binds a session to the user who opened it."""
    if not caller.authenticated:
        return None
    return AuthenticatedUser(AccessToken(token="", client_id=caller.tenant, scopes=[], subject=caller.user))


async def _forward_once(manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send) -> None:
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


class _ClosedSessionFilter(logging.Filter):
    """Drops the SDK's error reports about messages to sessions that have ended."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], anyio.ClosedResourceError))


def _with_error_data(send: Send) -> Send:
    """Wrap `send` to add Refdesk's error data to errors of the SDK's transports."""
    held: list[Message] = []

    async def send_with_error_data(part: Message) -> None:
        if part["type"] == "http.response.start" and part["status"] >= 400:
            held.append(part)
            return
        if held and part["type"] == "http.response.body" and not part.get("more_body"):
            start = held.pop()
            full = start["status"] == 503
            body = _add_error_data(part.get("body", b""), Overloaded if full else TransportError)
            headers = [header for header in start["headers"] if header[0].lower() != b"content-length"]
            headers += [(b"content-length", b"%d" % len(body)), *([(b"retry-after", b"1")] if full else [])]
            await send({**start, "headers": headers})
            await send({**part, "body": body})
            return
        await send(part)

    return send_with_error_data


def _add_error_data(body: bytes, kind: type[RefdeskError]) -> bytes:
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
