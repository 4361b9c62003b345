"""The HTTP application: access checks, authentication and routing.

A plain ASGI application without a framework.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from urllib.parse import parse_qs

import orjson

from refdesk.calls import Caller, new_trace_id
from refdesk.config import Config
from refdesk.errors import DependencyError, Forbidden, ProtocolError, StorageError, Unauthenticated
from refdesk.inbound.access import ProtectedResource, build_access, build_rejection, is_proxied, read_credential
from refdesk.inbound.asgi import (
    CLOSE,
    JSON,
    BodyReader,
    ClientGone,
    DisconnectMonitor,
    Headers,
    Message,
    Receive,
    Reject,
    RequestContext,
    Scope,
    Send,
    respond,
    respond_json,
)
from refdesk.inbound.console_routes import EVENTS, ConsoleRoutes
from refdesk.inbound.console_routes import PAGES as CONSOLE_PAGES
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.endpoints import INTERNAL_PATHS, OPEN_PAGES, PAGES, TOOLS, UPLOADS, Endpoints
from refdesk.inbound.envelope import RpcRequest, encode_error, parse, read_id, read_message
from refdesk.inbound.http_mcp import McpEndpoint
from refdesk.inbound.mcp.dispatch import McpDispatcher
from refdesk.telemetry import read_trace

MCP = "/mcp"

_UNREPEATABLE_HEADERS = frozenset(
    {b"host", b"origin", b"authorization", b"content-length", b"content-type", b"x-api-key"}
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
        self._max_json_depth = settings.max_json_depth
        self.bodies = BodyReader(settings.max_body_bytes, settings.max_inflight_body_bytes)
        self._mcp = McpEndpoint(McpDispatcher(services, state_key), settings, monitor)
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
        if self._console.has(path) and is_proxied(headers):
            context = context._replace(caller=replace(context.caller, proxied=True))
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
            context = await self._authenticate(scope, headers)
            await self._console.stream_events(context, partial(self._identify, context.credential), receive, send)
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
        parent = read_trace(traceparent, headers.get(b"tracestate")) if traceparent else None
        if scope["query_string"]:
            values = parse_qs(scope["query_string"].decode("latin-1")).get("toolsets", ())
            toolsets = frozenset(name for value in values for name in value.lower().split(",") if name) or None
        trace_id = parent.trace_id if parent else new_trace_id()
        return RequestContext(caller, trace_id, toolsets, parent, credential or None)

    async def _identify(self, credential: str | None) -> Caller:
        caller = self._services.authenticate.identify(credential)
        return caller if isinstance(caller, Caller) else await caller

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
                                      b"mcp-protocol-version, mcp-session-id, traceparent, tracestate, x-api-key"),
    (b"access-control-expose-headers", b"mcp-session-id, retry-after, www-authenticate"),
    (b"access-control-max-age", b"600"),
    (b"vary", b"origin"),
]  # fmt: skip
