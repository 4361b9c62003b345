"""The HTTP application: access checks, authentication and routing.

A plain ASGI application without a framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from urllib.parse import parse_qs

import orjson

from refdesk.calls import SILENT, Caller, new_trace_id
from refdesk.config import ServerConfig
from refdesk.errors import (
    DependencyError,
    Forbidden,
    InvalidRequest,
    Overloaded,
    ProtocolError,
    StorageError,
    Unauthenticated,
)
from refdesk.inbound.access import Access, is_proxied, read_credential
from refdesk.inbound.asgi import (
    CLOSE,
    JSON,
    ClientGone,
    Headers,
    Message,
    Receive,
    Reject,
    Scope,
    Send,
    replay,
    respond,
    respond_json,
)
from refdesk.inbound.body import BodyReader
from refdesk.inbound.console_routes import EVENTS, ConsoleRoutes
from refdesk.inbound.console_routes import PAGES as CONSOLE_PAGES
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.disconnects import DisconnectMonitor, RequestCancelled
from refdesk.inbound.endpoints import OPEN_PAGES, PAGES, TOOLS, Endpoints
from refdesk.inbound.envelope import RpcNotification, RpcRequest, parse, read_id, read_message
from refdesk.inbound.error_mapping import encode_error
from refdesk.inbound.fast_path import FastPath
from refdesk.inbound.fast_path_2026 import VERSION as MODERN_VERSION
from refdesk.inbound.internal import PATHS as INTERNAL_PATHS
from refdesk.inbound.mcp import SdkServer
from refdesk.inbound.oauth import ProtectedResource, build_rejection
from refdesk.inbound.request_context import RequestContext
from refdesk.inbound.sdk_routes import SdkRoutes
from refdesk.inbound.sender import Sender
from refdesk.inbound.sse import StreamingClient, create_client
from refdesk.inbound.trace_headers import read_trace_headers
from refdesk.inbound.uploads import UPLOADS, Uploads

MCP = "/mcp"
POST_PATHS = INTERNAL_PATHS | {UPLOADS}

_UNREPEATABLE_HEADERS = (
    b"host",
    b"origin",
    b"authorization",
    b"content-length",
    b"content-type",
    b"mcp-session-id",
    b"x-api-key",
)


class HttpApp:
    """The ASGI application. It serves requests while `open` is entered."""

    def __init__(
        self,
        services: Services,
        access: Access,
        settings: ServerConfig,
        server: SdkServer,
        *,
        metrics: bool = True,
        resource: ProtectedResource | None = None,
    ) -> None:
        """Initialize the application. `resource` is the OAuth metadata, if access tokens are accepted."""
        self._services = services
        self._resource = resource
        self._access = access
        self._max_json_depth = settings.max_json_depth
        self.bodies = BodyReader(settings.max_body_bytes, settings.max_inflight_body_bytes)
        self._server = server
        self._fast_path = FastPath(services.handle, server)
        self._sdk_routes = SdkRoutes(services, settings, server)
        self._uploads = Uploads(services)
        self._monitor = DisconnectMonitor()
        self._endpoints = Endpoints(services, settings, self._monitor, metrics=metrics)
        self._console = ConsoleRoutes(services, access, self._monitor)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the background tasks of the SDK routes."""
        async with self._sdk_routes.open():
            yield

    def drain(self) -> None:
        """Let calls in progress finish, and end long-lived streams."""
        self._endpoints.draining = True
        self._console.drain()
        self._sdk_routes.drain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        headers: Headers = dict(scope["headers"])
        try:
            self._check_headers(scope, headers)
            if b"origin" in headers:
                send = _with_cors(send, headers[b"origin"])
            if scope["path"] == MCP and scope["method"] == "POST":
                await self._post_mcp(scope, receive, send, headers)
            else:
                await self._route(scope, receive, send, headers)
        except Reject as reject:
            self._services.metrics.refusals.labels(str(reject.status)).inc()
            await respond(send, reject.status, orjson.dumps(reject.body), *reject.headers)
        except ClientGone:
            return

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path, method = scope["path"], scope["method"]
        if method == "OPTIONS":
            await respond(send, 204, b"")
        elif path == MCP and method in ("GET", "DELETE") and b"mcp-session-id" in headers:
            await self._sdk_routes.handle_session(await self._authenticate(scope, headers), scope, receive, send)
        elif (path.startswith(f"{TOOLS}/") or path in INTERNAL_PATHS) and method == "POST":
            await self._post_json(scope, receive, send, headers)
        elif path == UPLOADS and method == "POST":
            await self._post_upload(scope, receive, send, headers)
        elif self._console.has(path) and method in self._console.get_methods(path):
            await self._serve_console(scope, receive, send, headers)
        elif path == "/" and method in ("GET", "HEAD") and self._console.wants_page(headers):
            await respond(send, 303, b"", (b"location", b"/console/"), (b"vary", b"accept"))
        elif path in PAGES and method in ("GET", "HEAD"):
            context = None if path in OPEN_PAGES else await self._authenticate(scope, headers)
            await self._endpoints.serve_page(path, context, send)
        elif self._resource is not None and path in self._resource.paths and method in ("GET", "HEAD"):
            await respond_json(send, 200, self._resource.metadata)
        else:
            raise await self._build_not_found(scope, headers)

    async def _post_mcp(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        context = await self._authenticate(scope, headers)
        _check_json(headers)
        body = await self.bodies.read(receive, headers.get(b"content-length"))
        try:
            await self._answer_mcp(body, context, scope, receive, send, headers)
        finally:
            self.bodies.release(body)

    async def _answer_mcp(
        self, body: bytes, context: RequestContext, scope: Scope, receive: Receive, send: Send, headers: Headers
    ) -> None:
        parsed = None
        try:
            parsed = parse(body, max_depth=self._max_json_depth)
            message = read_message(parsed)
            if self._resource is not None and isinstance(message, RpcRequest) and message.method == "tools/call":
                self._resource.require_scopes(context.caller, message.params.get("name"))
            manager = self._sdk_routes.choose_manager(message, context, headers)
            if manager is not None:
                session = headers.get(b"mcp-session-id")
                await self._sdk_routes.handle(manager, message, context, scope, replay(body, receive), send, session)
            elif isinstance(message, RpcRequest):
                await self._answer_on_fast_path(message, context, receive, send, headers)
            elif isinstance(message, RpcNotification):
                await respond(send, 202, b"")
            else:
                raise InvalidRequest("A response belongs to a session; send its Mcp-Session-Id")
        except ProtocolError as error:
            await respond(send, 400, encode_error(read_id(parsed), error), JSON)

    async def _answer_on_fast_path(
        self, request: RpcRequest, context: RequestContext, receive: Receive, send: Send, headers: Headers
    ) -> None:
        """Answer without the SDK, with a JSON body or with the final event of a stream that the call has opened."""
        streaming = create_client(request, headers, send, self._server)
        client = SILENT if streaming is None else streaming
        try:
            with self._monitor.watch(receive) as watcher:
                if b"mcp-session-id" in headers:
                    with self._sdk_routes.track_request(headers[b"mcp-session-id"], request.id, watcher):
                        status, answer = await self._fast_path.answer(request, context, client)
                else:
                    modern = headers.get(b"mcp-protocol-version") == MODERN_VERSION
                    status, answer = await self._fast_path.answer(request, context, client, modern=modern)
            stream = None if streaming is None else streaming.take_stream()
            if stream is not None:
                await stream.end(answer)
            elif not (status == 200 and isinstance(send, Sender) and send.send_json(answer)):
                await respond(send, status, answer, JSON)
        except RequestCancelled:
            await _finish(streaming, send, 202, b"")
        except asyncio.CancelledError:
            if not self._endpoints.draining:
                raise
            # The grace period is over, but the connection stays open long enough to respond.
            stopping = Overloaded("The server is stopping; ask again in a moment", retry_after=1.0)
            encoded = encode_error(request.id, stopping)
            await _finish(streaming, send, 503, encoded, JSON, CLOSE, (b"retry-after", b"1"))
        finally:
            if streaming is not None:
                streaming.close()

    async def _post_json(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        self._reject_cross_site(headers)
        context = await self._authenticate(scope, headers)
        if self._console.has(scope["path"]) and is_proxied(headers):
            context = context._replace(caller=replace(context.caller, proxied=True))
        _check_json(headers)
        if self._resource is not None and scope["path"].startswith(f"{TOOLS}/"):
            self._resource.require_scopes(context.caller, scope["path"].removeprefix(f"{TOOLS}/"))
        body = await self.bodies.read(receive, headers.get(b"content-length"))
        try:
            await self._endpoints.post(scope["path"], body, context, receive, send)
        finally:
            self.bodies.release(body)

    async def _serve_console(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path = scope["path"]
        if path.startswith(f"{CONSOLE_PAGES}/") or path == CONSOLE_PAGES:
            await self._console.serve_page(path, headers, send)
            return
        self._console.require_own_page(headers)
        if path == EVENTS:
            context = await self._authenticate(scope, headers)
            await self._console.stream_events(context, partial(self._identify, context.credential), receive, send)
        else:
            await self._post_json(scope, receive, send, headers)

    async def _post_upload(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        self._reject_cross_site(headers)
        context = await self._authenticate(scope, headers)
        try:
            stored = await self._uploads.store(context, scope["query_string"], headers, receive)
        except StorageError as error:
            raise Reject(507, {"detail": error.detail}, (CLOSE,)) from error
        await respond_json(send, 201, stored)

    def _check_headers(self, scope: Scope, headers: Headers) -> None:
        if len(headers) != len(scope["headers"]):
            _reject_repeated(scope["headers"])
        if not self._access.allows_host(headers.get(b"host")):
            raise Reject(421, {"detail": "This server does not answer to that Host; see server.allowed_hosts"})
        if not self._access.allows_origin(headers.get(b"origin"), headers.get(b"host")):
            raise Reject(403, {"detail": "Pages of that Origin may not call; see server.allowed_origins"})

    def _reject_cross_site(self, headers: Headers) -> None:
        """Reject requests that a browser marks as cross-site. Their Origin, if any, has been checked already."""
        if headers.get(b"sec-fetch-site") == b"cross-site" and not self._access.is_configured(headers.get(b"origin")):
            raise Reject(403, {"detail": "Pages of other sites may not call; see server.allowed_origins"}, (CLOSE,))

    async def _authenticate(self, scope: Scope, headers: Headers) -> RequestContext:
        credential = read_credential(headers.get(b"authorization"), headers.get(b"x-api-key"))
        try:
            caller = self._services.identify(credential)
            if not isinstance(caller, Caller):
                caller = await caller
        except (Unauthenticated, Forbidden, DependencyError) as error:
            self._services.metrics.count_auth_failure(type(error).__name__)
            raise build_rejection(error, self._resource, has_credential=credential is not None) from None
        parent = read_trace_headers(headers)
        trace_id = parent.trace_id if parent else new_trace_id()
        return RequestContext(caller, trace_id, _parse_toolsets(scope["query_string"]), parent, credential or None)

    async def _identify(self, credential: str | None) -> Caller:
        caller = self._services.identify(credential)
        return caller if isinstance(caller, Caller) else await caller

    async def _build_not_found(self, scope: Scope, headers: Headers) -> Reject:
        path, method = scope["path"], scope["method"]
        if path == MCP:
            await self._authenticate(scope, headers)
            session = " without an Mcp-Session-Id" if method in ("GET", "DELETE") else ""
            detail = f"{method} is not for /mcp{session}; send JSON-RPC with POST"
            return Reject(405, {"detail": detail}, ((b"allow", b"POST, GET, DELETE, OPTIONS"),))
        if path in PAGES or path.startswith(f"{TOOLS}/") or path in POST_PATHS:
            allowed = b"GET, HEAD, OPTIONS" if path in PAGES else b"POST, OPTIONS"
            return Reject(405, {"detail": f"{method} is not for {path}"}, ((b"allow", allowed),))
        if self._console.has(path):
            allowed = ", ".join((*self._console.get_methods(path), "OPTIONS")).encode()
            return Reject(405, {"detail": f"{method} is not for {path}"}, ((b"allow", allowed),))
        return Reject(404, {"detail": f"There is nothing at {path}; the MCP endpoint is /mcp"})


async def _finish(
    streaming: StreamingClient | None, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    """Respond to a call that was stopped. If its stream is open, the status has been sent already."""
    stream = None if streaming is None else streaming.take_stream()
    if stream is None:
        await respond(send, status, body, *headers)
    else:
        await stream.end(body or None)


def _parse_toolsets(query: bytes) -> frozenset[str] | None:
    if not query:
        return None
    values = parse_qs(query.decode("latin-1")).get("toolsets")
    names = frozenset(name for value in values or () for name in value.lower().split(",") if name)
    return names or None


def _check_json(headers: Headers) -> None:
    kind = headers.get(b"content-type", b"")
    # Form content types are rejected: pages of other origins can send them without a preflight request.
    if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
        raise Reject(415, {"detail": "Send the body with Content-Type: application/json"}, (CLOSE,))


def _reject_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in _UNREPEATABLE_HEADERS:
        if names.count(name) > 1:
            raise Reject(400, {"detail": f"The {name.decode()} header is there more than once"}, (CLOSE,))


def _with_cors(send: Send, origin: bytes) -> Send:
    """Wrap `send` to add the CORS headers for an allowed origin."""

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"access-control-allow-origin", origin), *_CORS]
        await send(message)

    return send_with_cors


_CORS = [
    (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
    (b"access-control-allow-headers", b"authorization, content-type, last-event-id, mcp-method, mcp-name, "
                                      b"mcp-protocol-version, mcp-session-id, traceparent, tracestate, x-api-key"),
    (b"access-control-expose-headers", b"mcp-session-id, retry-after, www-authenticate"),
    (b"access-control-max-age", b"600"),
    (b"vary", b"origin"),
]  # fmt: skip
