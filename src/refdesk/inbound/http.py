"""The HTTP door: `/mcp` with its lanes, the tools as plain endpoints, and the pages that tell how the server is.

One ASGI application without a framework around it: what stands between a socket and the policy chain is on this page.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs

import anyio
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from refdesk.calls import Call, Caller, new_trace_id
from refdesk.config import ServerConfig
from refdesk.errors import InvalidRequest, Overloaded, ProtocolError, RefdeskError, Unauthenticated
from refdesk.inbound.access import Access, bearer
from refdesk.inbound.body import BodyReader, BodyTooLarge, ClientGone, Receive
from refdesk.inbound.envelope import Notification, Reply, Request, id_of, parse, read_message
from refdesk.inbound.events import ResumableSessions
from refdesk.inbound.mcp import VISITOR, SdkServer, Visitor
from refdesk.inbound.plain import PlainLane
from refdesk.inbound.services import Services
from refdesk.inbound.wire import encode_error, http_status, to_wire
from refdesk.version import __version__

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Mapping[bytes, bytes]

JSON = (b"content-type", b"application/json")
CLOSE = (b"connection", b"close")
WATCH_AFTER_SECONDS = 0.05
"""Most calls are over by then; only a longer one is worth a task that watches whether its client is still there."""

_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_SINGLE = (b"host", b"origin", b"authorization", b"content-length", b"mcp-session-id", b"x-api-key")
_METHODS_BY_PATH = {
    "/mcp": "POST, GET, DELETE, OPTIONS",
    "/": "GET, HEAD",
    "/health": "GET, HEAD",
    "/ready": "GET, HEAD",
    "/metrics": "GET, HEAD",
    "/api/tools": "GET, HEAD, OPTIONS",
}


class Reject(Exception):
    """An HTTP answer decided before any call is made."""

    def __init__(self, status: int, body: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(status)
        self.status = status
        self.body = body
        self.headers = (JSON, *headers)


class HttpApp:
    """The ASGI application; it answers while `open` is entered."""

    def __init__(self, services: Services, access: Access, settings: ServerConfig, server: SdkServer) -> None:
        self._services = services
        self._access = access
        self._settings = settings
        self._server = server
        self._bodies = BodyReader(settings.max_body_bytes, settings.max_inflight_body_bytes)
        self._plain = PlainLane(services.handle, server)
        self._stateful = ResumableSessions(server, settings)
        self._stateless = StreamableHTTPSessionManager(
            server, stateless=True, max_request_body_size=settings.max_body_bytes
        )
        self._in_flight: set[tuple[bytes, str]] = set()
        self._draining = asyncio.Event()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run the SDK's session managers while open."""
        async with self._stateful.run(), self._stateless.run():
            yield

    def drain(self) -> None:
        """Finish what is under way, and end the streams that would never end by themselves."""
        self._draining.set()
        self._server.listeners.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"this application does not speak {scope['type']}")
        headers: Headers = dict(scope["headers"])
        try:
            self._check_headers(scope, headers)
            await self._route(scope, receive, self._with_cors(send, headers), headers)
        except Reject as reject:
            self._services.metrics.refusals.labels(str(reject.status)).inc()
            await _respond(self._with_cors(send, headers), reject.status, orjson.dumps(reject.body), *reject.headers)
        except ClientGone:
            return

    async def _route(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/mcp" and method == "POST":
            return await self._post_mcp(scope, receive, send, headers)
        if method == "OPTIONS":
            return await _respond(send, 204, b"")
        if path == "/mcp" and method in ("GET", "DELETE"):
            return await self._session_request(scope, receive, send, headers)
        if path.startswith("/api/tools/") and method == "POST":
            return await self._rest_call(scope, receive, send, headers)
        if path in _METHODS_BY_PATH and method in ("GET", "HEAD"):
            return await self._page(path, scope, send, headers)
        raise _not_here(path, method)

    # What every request must show

    def _check_headers(self, scope: Scope, headers: Headers) -> None:
        if len(headers) != len(scope["headers"]):
            _refuse_repeated(scope["headers"])
        if not self._access.allows_host(headers.get(b"host")):
            raise Reject(421, {"detail": "This server does not answer to that Host; see server.allowed_hosts"})
        if not self._access.allows_origin(headers.get(b"origin")):
            raise Reject(403, {"detail": "Pages of that Origin may not call; see server.allowed_origins"})

    def _with_cors(self, send: Send, headers: Headers) -> Send:
        origin = headers.get(b"origin")
        if origin is None or not self._access.allows_origin(origin):
            return send

        async def send_with_cors(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_cors(origin)]
            await send(message)

        return send_with_cors

    def _visitor(self, scope: Scope, headers: Headers) -> Visitor:
        try:
            caller = self._services.identify(bearer(headers.get(b"authorization"), headers.get(b"x-api-key")))
        except Unauthenticated as error:
            raise Reject(401, {"detail": error.detail}, ((b"www-authenticate", b"Bearer"),)) from None
        return Visitor(caller, _trace_id(headers), _toolsets(scope["query_string"]))

    # /mcp

    async def _post_mcp(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        visitor = self._visitor(scope, headers)
        _check_json(headers)
        async with self._body(receive, headers) as body:
            parsed = None
            try:
                parsed = parse(body, max_depth=self._settings.max_json_depth)
                message = read_message(parsed)
            except ProtocolError as error:
                return await _respond(send, 400, encode_error(id_of(parsed), error), JSON)
            if (manager := self._lane(message, headers)) is not None:
                return await self._sdk(manager, message, visitor, scope, _replay(body, receive), send, headers)
            if isinstance(message, Request):
                with _watching(receive):
                    status, answer = await self._plain.answer(message, visitor)
                return await _respond(send, status, answer, JSON)
            if isinstance(message, Notification):
                return await _respond(send, 202, b"")
            stray = InvalidRequest("A response belongs to a session; send its Mcp-Session-Id")
            await _respond(send, 400, encode_error(None, stray), JSON)

    def _lane(self, message: Request | Notification | Reply, headers: Headers) -> StreamableHTTPSessionManager | None:
        """The SDK's manager for what needs it; None for the plain lane."""
        version = headers.get(b"mcp-protocol-version")
        if b"mcp-session-id" in headers or (
            version is not None and version.decode("latin-1") not in HANDSHAKE_PROTOCOL_VERSIONS
        ):
            return self._stateful
        if not isinstance(message, Request) or b"text/event-stream" not in headers.get(b"accept", b""):
            return None
        if message.method == "initialize":
            return None if self._settings.stateless else self._stateful
        return self._stateless if self._wants_messages(message) else None

    def _wants_messages(self, message: Request) -> bool:
        if message.method != "tools/call":
            return False
        meta = message.params.get("_meta")
        asked = isinstance(meta, dict) and "progressToken" in meta
        return asked or self._services.talks(str(message.params.get("name")))

    async def _sdk(
        self,
        manager: StreamableHTTPSessionManager,
        message: Request | Notification | Reply,
        visitor: Visitor,
        scope: Scope,
        receive: Receive,
        send: Send,
        headers: Headers,
    ) -> None:
        scope[VISITOR] = visitor
        scope["user"] = _principal(visitor.caller)
        session = headers.get(b"mcp-session-id")
        if session is None or not isinstance(message, Request):
            return await manager.handle_request(scope, receive, send)
        # Two calls of one id in one session could not be told apart; the SDK would let one of them hang.
        key = (session, str(message.id))
        if key in self._in_flight:
            error = InvalidRequest("A request with this id is still being answered in this session")
            return await _respond(send, 400, encode_error(message.id, error), JSON)
        self._in_flight.add(key)

        async def send_and_release(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self._in_flight.discard(key)
            await send(message)

        try:
            await manager.handle_request(scope, receive, send_and_release)
        finally:
            self._in_flight.discard(key)

    async def _session_request(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        """The stream of a session, or its end; without a session there is neither."""
        visitor = self._visitor(scope, headers)
        if b"mcp-session-id" not in headers:
            raise _not_here("/mcp", scope["method"])
        scope[VISITOR] = visitor
        scope["user"] = _principal(visitor.caller)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._cancel_when_draining, tasks.cancel_scope)
            await self._stateful.handle_request(scope, receive, send)
            tasks.cancel_scope.cancel()

    async def _cancel_when_draining(self, scope: anyio.CancelScope) -> None:
        await self._draining.wait()
        scope.cancel()

    # Tools as plain endpoints

    async def _rest_call(self, scope: Scope, receive: Receive, send: Send, headers: Headers) -> None:
        visitor = self._visitor(scope, headers)
        _check_json(headers)
        name = scope["path"].removeprefix("/api/tools/")
        try:
            async with self._body(receive, headers) as body:
                arguments = parse(body, max_depth=self._settings.max_json_depth) if body else {}
                call = _call("tools/call", {"name": name, "arguments": arguments}, visitor)
                with _watching(receive):
                    answer = await self._services.handle(call)
        except (Reject, ClientGone):
            raise
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            raise _rest_error(error) from None
        await _respond(send, 200, orjson.dumps(answer.result), JSON)

    # Pages

    async def _page(self, path: str, scope: Scope, send: Send, headers: Headers) -> None:
        match path:
            case "/health":
                await _json(send, 200, {"status": "ok"})
            case "/ready":
                await self._ready(send)
            case "/metrics":
                self._visitor(scope, headers)
                text = self._services.metrics.exposition(shared=self._settings.workers > 1)
                await _respond(send, 200, text, (b"content-type", b"text/plain; version=0.0.4; charset=utf-8"))
            case "/api/tools":
                call = _call("tools/list", {}, self._visitor(scope, headers))
                try:
                    answer = await self._services.handle(call)
                except RefdeskError as error:
                    raise _rest_error(error) from None
                await _json(send, 200, answer.result)
            case "/":
                await _json(send, 200, _about())
            case _:
                raise _not_here(path, "GET")

    async def _ready(self, send: Send) -> None:
        ready, checks = await self._services.readiness()
        if self._draining.is_set():
            ready, checks = False, {**checks, "server": {"state": "draining"}}
        await _json(send, 200 if ready else 503, {"status": "ready" if ready else "not ready", "checks": checks})

    @asynccontextmanager
    async def _body(self, receive: Receive, headers: Headers) -> AsyncIterator[bytes]:
        try:
            async with self._bodies.read(receive, headers.get(b"content-length")) as body:
                yield body
        except BodyTooLarge as error:
            raise Reject(413, {"detail": error.detail}, (CLOSE,)) from None
        except Overloaded as error:
            raise Reject(503, {"detail": error.detail}, (CLOSE, (b"retry-after", b"1"))) from None


class _watching:
    """Cancels the call under way when its client goes away. A timer, and a task only for a call that lasts."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._start)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        if self._gone and kind is asyncio.CancelledError:
            self._task.uncancel()
            raise ClientGone

    def _start(self) -> None:
        self._watcher = asyncio.ensure_future(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self._gone = True
        self._task.cancel()


def _call(method: str, params: dict[str, Any], visitor: Visitor) -> Call:
    return Call(
        method=method, params=params, caller=visitor.caller, trace_id=visitor.trace_id, toolsets=visitor.toolsets
    )


def _about() -> dict[str, Any]:
    return {
        "status": "healthy",
        "service": "Refdesk",
        "version": __version__,
        "protocol": f"MCP {LATEST_MODERN_VERSION}",
    }


def _principal(caller: Caller) -> AuthenticatedUser | None:
    """The caller in the SDK's type, by which it binds a session to whoever opened it."""
    if not caller.authenticated:
        return None
    token = AccessToken(token="", client_id=caller.tenant, scopes=[], subject=caller.user)
    return AuthenticatedUser(token)


def _trace_id(headers: Headers) -> str:
    """The trace that the caller is in, or a new one."""
    match = _TRACEPARENT.fullmatch(headers.get(b"traceparent", b""))
    return match[1].decode() if match else new_trace_id()


def _toolsets(query: bytes) -> frozenset[str] | None:
    if not query:
        return None
    values = parse_qs(query.decode("latin-1")).get("toolsets")
    return frozenset(name for value in values for name in value.split(",") if name) if values else None


def _check_json(headers: Headers) -> None:
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Reject(415, {"detail": "Send the body with Content-Type: application/json"}, (CLOSE,))


def _refuse_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in _SINGLE:
        if names.count(name) > 1:
            raise Reject(400, {"detail": f"The {name.decode()} header is there more than once"}, (CLOSE,))


def _not_here(path: str, method: str) -> Reject:
    allowed = "POST, OPTIONS" if path.startswith("/api/tools/") else _METHODS_BY_PATH.get(path)
    if allowed is None:
        return Reject(404, {"detail": f"There is nothing at {path}; the MCP endpoint is /mcp"})
    detail = f"{method} is not for {path}"
    if path == "/mcp" and method in ("GET", "DELETE"):
        detail += " without an Mcp-Session-Id; send JSON-RPC with POST"
    return Reject(405, {"detail": detail}, ((b"allow", allowed.encode()),))


def _rest_error(error: Exception) -> Reject:
    if not isinstance(error, RefdeskError):
        logger.error("a call failed in a way that nobody foresaw", exc_info=error)
    retry_after = getattr(error, "retry_after", None)
    headers = () if retry_after is None else ((b"retry-after", str(round(retry_after)).encode()),)
    return Reject(http_status(error), {"error": to_wire(error).body()}, headers)


def _cors(origin: bytes) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
        (b"access-control-allow-headers", b"authorization, content-type, last-event-id, mcp-method, mcp-name, "
                                          b"mcp-protocol-version, mcp-session-id, x-api-key"),
        (b"access-control-expose-headers", b"mcp-session-id"),
        (b"access-control-max-age", b"600"),
        (b"vary", b"origin"),
    ]  # fmt: skip


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read already, and then what really comes."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return replay


async def _json(send: Send, status: int, body: Any) -> None:
    await _respond(send, status, orjson.dumps(body), JSON)


async def _respond(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})
