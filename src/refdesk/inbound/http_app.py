"""The HTTP application: access checks, authentication, routing, and the endpoint of MCP.

A plain ASGI application without a framework.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final
from urllib.parse import parse_qs, unquote

import orjson

from refdesk.calls import Caller, new_trace_id
from refdesk.config.models import Config, ServerConfig
from refdesk.errors import (
    DependencyError,
    Forbidden,
    InvalidRequest,
    Overloaded,
    ProtocolError,
    StorageError,
    TransportError,
    Unauthenticated,
)
from refdesk.inbound.console_routes import EVENTS, ConsoleRoutes
from refdesk.inbound.console_routes import PAGES as CONSOLE_PAGES
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.endpoints import INTERNAL_PATHS, OPEN_PAGES, PAGES, TOOLS, UPLOADS, Endpoints
from refdesk.inbound.jsonrpc import (
    RpcMessage,
    RpcNotification,
    RpcRequest,
    RpcResponse,
    encode_error,
    parse,
    read_id,
    read_message,
)
from refdesk.inbound.mcp.dispatch import STREAMING_METHODS, McpDispatcher
from refdesk.inbound.mcp.revisions import (
    HANDSHAKE_REVISIONS,
    MODERN_HEADER,
    MODERN_REVISION,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from refdesk.inbound.mcp.sessions import HttpSession, SessionTable
from refdesk.inbound.mcp.streams import STREAM_HEADERS, EventStream, ResponseChannel
from refdesk.inbound.oauth import ProtectedResource, build_rejection
from refdesk.inbound.requests import (
    CLOSE,
    JSON,
    RETRY_SOON,
    BodyReader,
    ClientGone,
    DisconnectMonitor,
    Headers,
    Message,
    Receive,
    Reject,
    RequestCancelled,
    RequestContext,
    Scope,
    Send,
    build_access,
    is_proxied,
    read_credential,
    respond,
    respond_json,
)
from refdesk.inbound.uvicorn_protocol import Sender
from refdesk.telemetry.traces import read_trace

MCP = "/mcp"
_HANDSHAKE_HEADERS: Final = frozenset(revision.encode() for revision in HANDSHAKE_REVISIONS)
_NOT_FOUND = TransportError("Session not found")

PROJECT_HEADER = b"refdesk-project"
"""Header that names the current project, percent-encoded if it isn't ASCII. `?project=` in the URL does the same."""

_UNREPEATABLE_HEADERS = frozenset(
    {b"host", b"origin", b"authorization", b"content-length", b"content-type", b"x-api-key", PROJECT_HEADER}
)
"""Headers that a proxy might read the first of, and we the last. Those of MCP can't be repeated either."""


class HttpApp:
    """The ASGI application."""

    def __init__(self, services: Services, config: Config, port: int, state_key: bytes | None = None) -> None:
        """Initialize the application. `state_key` is described in `McpDispatcher`."""
        settings, oauth, monitor = config.server, config.auth.oauth, DisconnectMonitor()
        self._services = services
        self._access = build_access(settings, port, authenticated=config.auth.required)
        self._resource: ProtectedResource | None = None
        if oauth.issuer:
            self._resource = ProtectedResource(oauth, config.own_url, services.permissions.scopes_for)
        self._metrics_port = config.monitoring.prometheus.port
        self._max_json_depth = settings.max_json_depth
        self.bodies = BodyReader(settings.max_body_bytes, settings.max_inflight_body_bytes)
        self._mcp = McpEndpoint(McpDispatcher(services, state_key, settings.name), settings, monitor)
        self._endpoints = Endpoints(services, config, monitor)
        self._console = ConsoleRoutes(services, self._access, monitor)

    def drain(self) -> None:
        """Let calls in progress finish, and end long-lived streams."""
        self._endpoints.draining = True
        self._console.drain()
        self._mcp.drain()

    def close(self) -> None:
        """End all sessions."""
        self._mcp.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        headers: Headers = dict(scope["headers"])
        try:
            self._check_headers(scope, headers)
            if self._metrics_port is not None and scope["server"][1] == self._metrics_port:
                await self._serve_metrics(scope, send)
                return
            if b"origin" in headers:
                send = _with_cors(send, headers[b"origin"])
            if scope["path"] == MCP and scope["method"] == "POST":
                await self._post_mcp(scope, receive, send, headers)
            else:
                await self._route(scope, receive, send, headers)
        except Reject as reject:
            self._services.metrics.refusals.labels(str(reject.status)).inc()
            await respond(send, reject.status, orjson.dumps({"detail": reject.detail}), *reject.headers)
        except ClientGone:
            return

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path, method = scope["path"], scope["method"]
        if method == "OPTIONS":
            await respond(send, 204, b"")
        elif path == MCP and method == "GET" and b"mcp-session-id" in headers:
            await self._mcp.get(await self._authenticate(scope, headers), receive, send, headers)
        elif path == MCP and method == "DELETE" and b"mcp-session-id" in headers:
            await self._mcp.delete(await self._authenticate(scope, headers), send, headers)
        elif (path.startswith(f"{TOOLS}/") or path in INTERNAL_PATHS) and method == "POST":
            await self._post_json(scope, receive, send, headers)
        elif path == UPLOADS and method == "POST":
            self._reject_cross_site(headers)
            context = await self._authenticate(scope, headers)
            try:
                stored = await self._endpoints.upload(context, scope["query_string"], headers, receive)
            except StorageError as error:
                raise Reject(507, error.detail, CLOSE) from error
            await respond_json(send, 201, stored)
        elif self._console.has(path) and method in self._console.get_methods(path):
            await self._serve_console(scope, receive, send, headers)
        elif path == "/" and method in ("GET", "HEAD") and self._console.wants_page(headers):
            await respond(send, 303, b"", (b"location", b"/console/"), (b"vary", b"accept"))
        elif path in PAGES and method in ("GET", "HEAD"):
            allowed = None if path in OPEN_PAGES else await self._authenticate(scope, headers)
            await self._endpoints.serve_page(path, allowed, send)
        elif self._resource is not None and path in self._resource.paths and method in ("GET", "HEAD"):
            await respond_json(send, 200, self._resource.metadata)
        else:
            raise await self._build_not_found(scope, headers)

    async def _serve_metrics(self, scope: Scope, send: Send) -> None:
        """Answer a request to the port for metrics, which needs no key."""
        if scope["path"] != "/metrics" or scope["method"] not in ("GET", "HEAD"):
            raise Reject(404, "This port serves GET /metrics only; see monitoring.prometheus.port")
        await self._endpoints.serve_page("/metrics", None, send)

    async def _post_mcp(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        context = await self._authenticate(scope, headers)
        _check_json(headers)
        body = await self.bodies.read(receive, headers.get(b"content-length"))
        parsed = None
        try:
            parsed = parse(body, max_depth=self._max_json_depth)
            message = read_message(parsed)
            if self._resource is not None and isinstance(message, RpcRequest) and message.method == "tools/call":
                self._resource.require_scopes(context.caller, message.params.get("name"))
            await self._mcp.post(message, context, receive, send, headers)
        except ProtocolError as error:
            await respond(send, 400, encode_error(read_id(parsed), error), JSON)
        finally:
            self.bodies.release(body)

    async def _post_json(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path = scope["path"]
        self._reject_cross_site(headers)
        context = await self._authenticate(scope, headers)
        if self._console.has(path) and not is_proxied(headers):
            context = context._replace(caller=replace(context.caller, at_console=True))
        _check_json(headers)
        if self._resource is not None and path.startswith(f"{TOOLS}/"):
            self._resource.require_scopes(context.caller, path.removeprefix(f"{TOOLS}/"))
        body = await self.bodies.read(receive, headers.get(b"content-length"))
        try:
            await self._endpoints.post(path, body, context, receive, send)
        finally:
            self.bodies.release(body)

    async def _serve_console(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path = scope["path"]
        if path.startswith(f"{CONSOLE_PAGES}/") or path == CONSOLE_PAGES:
            await self._console.serve_page(path, headers, send)
            return
        self._console.require_own_page(headers)
        if path == EVENTS:
            await self._console.stream_events(await self._authenticate(scope, headers), receive, send)
        else:
            await self._post_json(scope, receive, send, headers)

    def _check_headers(self, scope: Scope, headers: Headers) -> None:
        if len(headers) != len(scope["headers"]):
            seen: set[bytes] = set()
            for name, _ in scope["headers"]:
                if name in seen and (name in _UNREPEATABLE_HEADERS or name.startswith(b"mcp-")):
                    raise Reject(400, f"The {name.decode('latin-1')[:100]} header is there more than once", CLOSE)
                seen.add(name)
        if not self._access.allows_host(headers.get(b"host")):
            raise Reject(421, "This server does not answer to that Host; see server.allowed_hosts")
        if not self._access.allows_origin(headers.get(b"origin"), headers.get(b"host")):
            raise Reject(403, "Pages of that Origin may not call; see server.allowed_origins")

    def _reject_cross_site(self, headers: Headers) -> None:
        """Reject requests that a browser marks as cross-site. Their Origin, if any, has been checked already."""
        if headers.get(b"sec-fetch-site") == b"cross-site" and not self._access.is_configured(headers.get(b"origin")):
            raise Reject(403, "Pages of other sites may not call; see server.allowed_origins", CLOSE)

    async def _authenticate(self, scope: Scope, headers: Headers) -> RequestContext:
        credential = read_credential(headers.get(b"authorization"), headers.get(b"x-api-key"))
        try:
            caller = self._services.authenticate.identify(credential)
            if not isinstance(caller, Caller):
                caller = await caller
        except (Unauthenticated, Forbidden, DependencyError) as error:
            self._services.metrics.count_auth_failure(type(error).__name__)
            raise build_rejection(error, self._resource, has_credential=credential is not None) from None
        traceparent, toolsets = headers.get(b"traceparent"), None
        project = unquote(headers.get(PROJECT_HEADER, b"").decode("utf-8", "replace")).strip()
        parent = read_trace(traceparent, headers.get(b"tracestate")) if traceparent else None
        if scope["query_string"]:
            query = parse_qs(scope["query_string"].decode("latin-1"))
            values = query.get("toolsets", ())
            toolsets = frozenset(name for value in values for name in value.lower().split(",") if name) or None
            project = project or query.get("project", [""])[0].strip()
        trace_id = parent.trace_id if parent else new_trace_id()
        return RequestContext(caller, trace_id, toolsets, parent, credential or None, project or None)

    async def _build_not_found(self, scope: Scope, headers: Headers) -> Reject:
        path, method = scope["path"], scope["method"]
        detail = f"{method} is not for {path}"
        if path == MCP:
            await self._authenticate(scope, headers)
            session = " without an Mcp-Session-Id" if method in ("GET", "DELETE") else ""
            detail, allowed = f"{detail}{session}; send JSON-RPC with POST", "POST, GET, DELETE, OPTIONS"
        elif path in PAGES:
            allowed = "GET, HEAD, OPTIONS"
        elif path.startswith(f"{TOOLS}/") or path in INTERNAL_PATHS or path == UPLOADS:
            allowed = "POST, OPTIONS"
        elif self._console.has(path):
            allowed = ", ".join((*self._console.get_methods(path), "OPTIONS"))
        else:
            return Reject(404, f"There is nothing at {path}; the MCP endpoint is /mcp")
        return Reject(405, detail, (b"allow", allowed.encode()))


def _check_json(headers: Headers) -> None:
    kind = headers.get(b"content-type", b"")
    # Form content types are rejected: pages of other origins can send them without a preflight request.
    if kind != b"application/json" and kind.partition(b";")[0].strip().lower() != b"application/json":
        raise Reject(415, "Send the body with Content-Type: application/json", CLOSE)


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
                                      b"mcp-protocol-version, mcp-session-id, refdesk-project, traceparent, "
                                      b"tracestate, x-api-key"),
    (b"access-control-expose-headers", b"mcp-session-id, retry-after, www-authenticate"),
    (b"access-control-max-age", b"600"),
    (b"vary", b"origin"),
]  # fmt: skip


class McpEndpoint:
    """Serves `/mcp` from a dispatcher, and holds its sessions."""

    def __init__(self, dispatcher: McpDispatcher, settings: ServerConfig, monitor: DisconnectMonitor) -> None:
        self._dispatcher = dispatcher
        self._monitor = monitor
        # A session lives in one process. With several workers the next request might reach another one.
        self._sessions_on = not settings.stateless and settings.workers == 1
        self._sessions = SessionTable(settings.max_sessions, settings.session_idle_seconds, dispatcher.close_session)
        self._is_draining = False

    def drain(self) -> None:
        """End long-lived streams."""
        self._is_draining = True
        self._sessions.end_streams()
        self._dispatcher.close()

    def close(self) -> None:
        """End all sessions."""
        self._dispatcher.close()
        self._sessions.close_all()

    async def post(
        self, message: RpcMessage, context: RequestContext, receive: Receive, send: Send, headers: Headers
    ) -> None:
        """Answer a message. Raises ProtocolError if it isn't one for this endpoint."""
        version, session_id = headers.get(b"mcp-protocol-version"), headers.get(b"mcp-session-id")
        if version is not None and version not in _HANDSHAKE_HEADERS and version.strip() not in _HANDSHAKE_HEADERS:
            await self._post_modern(message, context, receive, send, headers)
            return
        session = None
        if session_id is not None:
            session = self._sessions.find(session_id, context.caller)
            if session is None:
                await respond(send, 404, encode_error(None, _NOT_FOUND), JSON)
                return
        if isinstance(message, RpcRequest):
            accepts_stream = b"text/event-stream" in headers.get(b"accept", b"")
            if message.method == "initialize" and session is None and accepts_stream and self._sessions_on:
                await self._open_session(message, context, send)
            else:
                channel = None
                if accepts_stream and message.method in STREAMING_METHODS:
                    channel = ResponseChannel(send, STREAM_HEADERS if session is None else _build_headers(session))
                await self._answer(message, context, channel, session, receive, send)
        elif session is not None:
            self._dispatcher.take(message, session)
            await respond(send, 202, b"")
        elif isinstance(message, RpcNotification):
            await respond(send, 202, b"")
        else:
            raise InvalidRequest("A response belongs to a session; send its Mcp-Session-Id")

    async def get(self, context: RequestContext, receive: Receive, send: Send, headers: Headers) -> None:
        """Send the notifications of a session until its client leaves, or the session or the server ends."""
        session = self._sessions.find(headers[b"mcp-session-id"], context.caller)
        last_event_id = headers.get(b"last-event-id")
        if session is None:
            await respond(send, 404, encode_error(None, _NOT_FOUND), JSON)
        elif not _accepts(headers, b"text/event-stream"):
            error = TransportError("Not Acceptable: Client must accept text/event-stream")
            await respond(send, 406, encode_error(None, error), JSON)
        elif session.stream is not None and last_event_id is None:
            error = TransportError("Conflict: Only one SSE stream is allowed per session")
            await respond(send, 409, encode_error(None, error), JSON)
        else:
            stream = EventStream(send, _build_headers(session))
            session.attach(stream, last_event_id)
            self._dispatcher.request_roots(session)
            if self._is_draining:
                stream.finish()
            try:
                with self._monitor.watch(receive):
                    await stream.wait()
            finally:
                session.detach(stream)
                stream.abandon()
                self._sessions.touch(session)

    async def delete(self, context: RequestContext, send: Send, headers: Headers) -> None:
        """End a session."""
        session = self._sessions.find(headers[b"mcp-session-id"], context.caller)
        if session is None:
            await respond(send, 404, encode_error(None, _NOT_FOUND), JSON)
        else:
            self._sessions.close(session)
            await respond(send, 200, b"", JSON)

    async def _post_modern(
        self, message: RpcMessage, context: RequestContext, receive: Receive, send: Send, headers: Headers
    ) -> None:
        if not (_accepts(headers, b"application/json") and _accepts(headers, b"text/event-stream")):
            error = TransportError("Not Acceptable: Client must accept both application/json and text/event-stream")
            await respond(send, 406, encode_error(None, error), JSON)
        elif isinstance(message, RpcRequest):
            channel = ResponseChannel(send) if message.method in STREAMING_METHODS else None
            await self._answer(message, context, channel, None, receive, send, headers)
        elif isinstance(message, RpcResponse):
            raise InvalidRequest("A client of this revision sends requests and notifications only")
        elif (version := headers[b"mcp-protocol-version"].strip()) != MODERN_HEADER:
            data = {"supported": [MODERN_REVISION], "requested": version.decode("latin-1")}
            raise TransportError("Unsupported protocol version", code=UNSUPPORTED_PROTOCOL_VERSION, data=data)
        else:
            # A client cancels a request by leaving, so there is no notification to act on.
            await respond(send, 202, b"")

    async def _open_session(self, request: RpcRequest, context: RequestContext, send: Send) -> None:
        try:
            session = self._sessions.create(context.caller)
        except Overloaded as error:
            await respond(send, 503, encode_error(request.id, error), JSON, RETRY_SOON)
            return
        answer = await self._dispatcher.answer(request, context, session=session)
        if session.revision is None:
            await respond(send, 200, answer, JSON)
        else:
            self._sessions.add(session)
            await respond(send, 200, answer, JSON, (b"mcp-session-id", session.id.encode()))

    async def _answer(
        self,
        request: RpcRequest,
        context: RequestContext,
        channel: ResponseChannel | None,
        session: HttpSession | None,
        receive: Receive,
        send: Send,
        headers: Headers | None = None,
    ) -> None:
        """Answer with a JSON body, or with the final event of a stream that the call has opened.

        A request with `headers` is one of the stateless revision.
        """
        status = 200
        try:
            with self._monitor.watch(receive) as watcher:
                if channel is not None:
                    channel.on_open = watcher.start
                if headers is not None:
                    status, answer = await self._dispatcher.answer_modern(request, context, channel, headers)
                elif session is None:
                    answer = await self._dispatcher.answer(request, context, channel)
                else:
                    session.begin(request.id, watcher)
                    try:
                        answer = await self._dispatcher.answer(request, context, channel, session)
                    finally:
                        session.finish(request.id, watcher)
                        self._sessions.touch(session)
            stream = None if channel is None else channel.take_stream()
            if stream is not None:
                await stream.end(answer)
            elif not (status == 200 and isinstance(send, Sender) and send.send_json(answer)):
                await respond(send, status, answer, JSON)
        except RequestCancelled:
            await _finish(channel, send, 202, b"")
        except asyncio.CancelledError:
            if not self._is_draining:
                raise
            # The grace period is over, but the connection stays open long enough to respond.
            stopping = Overloaded("The server is stopping; ask again in a moment", retry_after=1.0)
            encoded = encode_error(request.id, stopping)
            await _finish(channel, send, 503, encoded, JSON, CLOSE, RETRY_SOON)
        finally:
            if channel is not None:
                channel.close()


async def _finish(
    channel: ResponseChannel | None, send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]
) -> None:
    """Respond to a call that was stopped. If its stream is open, the status has been sent already."""
    stream = None if channel is None else channel.take_stream()
    if stream is None:
        await respond(send, status, body, *headers)
    else:
        await stream.end(body or None)


def _build_headers(session: HttpSession) -> tuple[tuple[bytes, bytes], ...]:
    return (*STREAM_HEADERS, (b"mcp-session-id", session.id.encode()))


def _accepts(headers: Headers, media_type: bytes) -> bool:
    """Return whether a client accepts a media type, by name or by a wildcard."""
    accept = headers.get(b"accept", b"")
    if media_type in accept:
        return True
    wildcards = b"*/*", media_type.partition(b"/")[0] + b"/*"
    return any(item.partition(b";")[0].strip() in wildcards for item in accept.lower().split(b","))
