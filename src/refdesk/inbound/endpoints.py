"""HTTP endpoints other than MCP: tools, uploads, calls of other services, health, readiness and metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import IO, Any, TypeVar
from urllib.parse import parse_qs

import orjson
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refdesk.calls import CONSOLE, ROLES, SERVICE, UPLOAD_METHOD, WINDOW_METHOD, Answer, Call, Caller, TenantId, UserId
from refdesk.config import ServerConfig
from refdesk.documents.conversion_limits import MAX_FILE_BYTES, MEGABYTE
from refdesk.errors import (
    ERROR_META,
    DocumentNotFound,
    Forbidden,
    InvalidArguments,
    Problem,
    ProtocolError,
    Refused,
    StorageError,
    ToolFailure,
)
from refdesk.inbound.asgi import (
    CLOSE,
    JSON,
    ClientGone,
    DisconnectMonitor,
    Headers,
    Receive,
    Reject,
    RequestContext,
    Send,
    build_retry_after,
    enter_caller_trace,
    respond,
    respond_json,
)
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.envelope import encode, http_status, log_unexpected, parse, to_rpc_error
from refdesk.inbound.mcp.revisions import MODERN_REVISION
from refdesk.validation import invalid_arguments
from refdesk.version import __version__

API = "/api/"
TOOLS = f"{API}tools"
OPEN_PAGES = frozenset({"/", "/health", "/ready"})
"""Paths that probes can read without a key."""

PAGES = OPEN_PAGES | {"/metrics", TOOLS}
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class Endpoints:
    """Handlers of paths other than `/mcp`."""

    def __init__(
        self, services: Services, settings: ServerConfig, monitor: DisconnectMonitor, *, metrics: bool
    ) -> None:
        self._services = services
        self._settings = settings
        self._monitor = monitor
        self._metrics_on = metrics
        self._internal = InternalEndpoints(services)
        self.draining = False

    async def serve_page(self, path: str, context: RequestContext | None, send: Send) -> None:
        """Serve a GET path. `context` is set for paths that need authentication."""
        match path:
            case "/":
                await respond_json(send, 200, _describe_server())
            case "/health":
                await respond_json(send, 200, {"status": "ok"})
            case "/ready":
                await self._serve_readiness(send)
            case "/metrics":
                await self._serve_metrics(send)
            case _:
                assert context is not None
                await self._call_and_respond("tools/list", {}, context, send)

    async def post(self, path: str, body: bytes, context: RequestContext, receive: Receive, send: Send) -> None:
        """Call a tool, a console method or an internal endpoint with a JSON body."""
        try:
            parsed = parse(body, max_depth=self._settings.max_json_depth) if body else {}
        except ProtocolError as error:
            await respond_error(send, error)
            return
        with self._monitor.watch(receive):
            if path in INTERNAL_PATHS:
                await respond_json(send, *await self._internal.answer(path, parsed, context))
            elif path.startswith(f"{API}{CONSOLE}"):
                await self._call_console(path.removeprefix(API), parsed, context, send)
            else:
                params = {"name": path.removeprefix(f"{TOOLS}/"), "arguments": parsed}
                await self._call_and_respond("tools/call", params, context, send)

    async def _call_console(self, method: str, params: Any, context: RequestContext, send: Send) -> None:
        """Call a console method."""
        if isinstance(params, dict):
            await self._call_and_respond(method, params, context, send)
        else:
            await respond_error(send, InvalidArguments([Problem("arguments", "must be an object")]))

    async def _call_and_respond(self, method: str, params: dict[str, Any], context: RequestContext, send: Send) -> None:
        context = enter_caller_trace(context, {})
        call = Call(
            method,
            params,
            context.caller,
            trace_id=context.trace_id,
            toolsets=context.toolsets,
            credential=context.credential,
        )
        try:
            body = encode((await self._services.handle(call)).result)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await respond_error(send, error, context.trace_id)
        else:
            await respond(send, 200, body, JSON)

    async def _serve_readiness(self, send: Send) -> None:
        ready, checks = await self._services.readiness()
        if self.draining:
            ready, checks = False, {**checks, "server": {"state": "draining"}}
        body = {"status": "ready" if ready else "not ready", "checks": checks}
        await respond_json(send, 200 if ready else 503, body)

    async def _serve_metrics(self, send: Send) -> None:
        if not self._metrics_on:
            raise Reject(404, {"detail": "Metrics are switched off; see monitoring.prometheus.enabled"})
        shared = self._settings.workers > 1
        await self._services.measure()
        await respond(send, 200, self._services.metrics.exposition(shared=shared), TEXT)


async def respond_error(send: Send, error: Exception, trace_id: str = "") -> None:
    """Send an error outside JSON-RPC, with its HTTP status."""
    log_unexpected(error, trace_id)
    retry_after = getattr(error, "retry_after", None)
    headers = () if retry_after is None else (build_retry_after(retry_after),)
    body = orjson.dumps({"error": to_rpc_error(error, trace_id).to_dict()})
    await respond(send, http_status(type(error)), body, JSON, *headers)


def _describe_server() -> dict[str, Any]:
    return {
        "status": "healthy",
        "service": "Refdesk",
        "version": __version__,
        "protocol": f"MCP {MODERN_REVISION}",
    }


EXECUTE = "/internal/mcp/execute"
WINDOW = "/internal/retrieval/chunks/window"
INTERNAL_PATHS = frozenset({EXECUTE, WINDOW})

B = TypeVar("B", bound=BaseModel)

_TRACE_ID = re.compile(r"[\x21-\x7e]{1,128}")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    trace_id: str | None = Field(None, max_length=128)


class _User(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    user_id: str = Field(min_length=1, max_length=255)
    tenant_id: str = Field(min_length=1, max_length=255)
    roles: list[str] = []


class ExecuteRequest(_Body):
    """Request body: a tool to run for a user."""

    tool_name: str = Field(min_length=1)
    arguments: dict[str, Any] = {}
    user: _User


class WindowRequest(_Body):
    """Request body: a chunk, and the number of chunks around it."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    tenant_id: str = Field(min_length=1, max_length=255)
    doc_id: str = Field(min_length=1)
    anchor_chunk_id: str = Field(min_length=1)
    window_before: int | None = Field(None, ge=0)
    window_after: int | None = Field(None, ge=0)
    radius: int | None = Field(None, ge=0)


class InternalEndpoints:
    """Handlers of the paths for other services. Each returns a status and a body.

    A service names the user it acts for. If keys are in use, naming another tenant, user or role needs a key with the
    role `service`. The toolsets of the service's own key always apply.
    """

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, path: str, body: Any, context: RequestContext) -> tuple[int, dict[str, Any]]:
        """Handle a request. Errors have the same shape, with the trace id."""
        trace_id = enter_caller_trace(context, {}).trace_id
        trace_id = _read_trace_id(body) or trace_id
        try:
            answer = self._execute if path == EXECUTE else self._window
            return await answer(body, context, trace_id)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            log_unexpected(error, trace_id)
            return http_status(type(error)), _build_error(to_rpc_error(error).to_dict(), trace_id)

    async def _execute(self, body: Any, context: RequestContext, trace_id: str) -> tuple[int, dict[str, Any]]:
        request = _validate(ExecuteRequest, body)
        caller = self._impersonate(context.caller, request.user)
        params = {"name": request.tool_name, "arguments": request.arguments}
        answer = await self._services.handle(Call("tools/call", params, caller, trace_id=trace_id))
        if answer.is_error:
            return _build_tool_failure(answer, trace_id)
        result = answer.structured if answer.structured is not None else answer.result
        return 200, {"status": "ok", "result": result, "trace_id": trace_id}

    async def _window(self, body: Any, context: RequestContext, trace_id: str) -> tuple[int, dict[str, Any]]:
        request = _validate(WindowRequest, body)
        user = _User(user_id=context.caller.user, tenant_id=request.tenant_id)
        params = request.model_dump(exclude={"tenant_id", "trace_id"}, exclude_none=True)
        caller = self._impersonate(context.caller, user)
        answer = await self._services.handle(Call(WINDOW_METHOD, params, caller, trace_id=trace_id))
        return 200, {"status": "ok", **answer.result, "trace_id": trace_id}

    def _impersonate(self, caller: Caller, user: _User) -> Caller:
        """Return the caller for the user that a service names. Raises Forbidden if it may not."""
        tenant, name, roles = TenantId(user.tenant_id), UserId(user.user_id), frozenset(user.roles)
        if not self._services.authenticate.has_keys or SERVICE in caller.roles:
            # The service may send roles of its own. Only those known here count.
            return replace(caller, user=name, tenant=tenant, roles=roles.intersection(ROLES), local=False)
        if tenant != caller.tenant:
            raise Forbidden(f"To act for another tenant takes a key with the role {SERVICE!r}")
        if name != caller.user or not roles <= caller.roles:
            raise Forbidden(f"To act for another user, or with more roles, takes a key with the role {SERVICE!r}")
        # Naming no roles must not remove them: a caller without roles may do everything.
        return replace(caller, roles=roles or caller.roles)


def _validate(model: type[B], body: Any) -> B:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise invalid_arguments(error, list(model.model_fields)) from None


def _build_tool_failure(answer: Answer, trace_id: str) -> tuple[int, dict[str, Any]]:
    data = answer.result.get("_meta", {}).get(ERROR_META, {})
    status = 404 if data.get("type") == DocumentNotFound.__name__ else 422
    return status, _build_error({"code": ToolFailure.code, "message": answer.text, "data": data}, trace_id)


def _build_error(error: dict[str, Any], trace_id: str) -> dict[str, Any]:
    return {"status": "error", "error": error, "trace_id": trace_id}


def _read_trace_id(body: Any) -> str | None:
    """Return the trace id in the body, if it's safe to log."""
    given = body.get("trace_id") if isinstance(body, dict) else None
    return given if isinstance(given, str) and _TRACE_ID.fullmatch(given) else None


UPLOADS = "/api/uploads"

WRITE_SIZE = MEGABYTE
"""Bytes to buffer before each write to disk."""

FORM_TYPES = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")
"""Content types that pages of other origins can send without a preflight request."""


class Uploads:
    """Upload endpoint for files that are too large for a JSON message. A file belongs to one tenant."""

    def __init__(self, services: Services) -> None:
        self._handle = services.handle
        self._conversions = services.conversions

    async def store(self, context: RequestContext, query: bytes, headers: Headers, receive: Receive) -> dict[str, Any]:
        """Store a request's body as a file, named by the query parameter `name`."""
        await self._authorize(enter_caller_trace(context, {}))
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in FORM_TYPES:
            raise Reject(415, {"detail": "Send the file itself, with Content-Type: application/octet-stream"}, (CLOSE,))
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > MAX_FILE_BYTES:
            raise _build_too_large()
        name = parse_qs(query.decode("latin-1")).get("name", ["document"])[0]
        async with self._conversions.create_upload() as file:
            try:
                size = await _receive_into(file, receive)
            except OSError as error:
                raise StorageError(f"The upload cannot be kept: {error.strerror or error}") from error
            uri = await self._conversions.keep_upload(context.caller.tenant, file, name)
        return {"uri": uri, "size": size}

    async def _authorize(self, context: RequestContext) -> None:
        """Run the policies before any of the body is read."""
        try:
            await self._handle(Call(UPLOAD_METHOD, {}, context.caller, trace_id=context.trace_id))
        except Refused as error:
            wait = () if error.retry_after is None else (build_retry_after(error.retry_after),)
            raise Reject(http_status(type(error)), {"detail": error.detail}, (CLOSE, *wait)) from None


async def _receive_into(file: IO[bytes], receive: Receive) -> int:
    size, more = 0, True
    buffer = bytearray()
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        buffer += message.get("body", b"")
        more = message.get("more_body", False)
        if size + len(buffer) > MAX_FILE_BYTES:
            raise _build_too_large()
        if len(buffer) >= WRITE_SIZE or not more:
            size += await to_thread.run_sync(file.write, bytes(buffer))
            buffer.clear()
    await to_thread.run_sync(file.flush)
    return size


def _build_too_large() -> Reject:
    detail = f"The file is larger than {MAX_FILE_BYTES // MEGABYTE} MB; split it into smaller ones"
    return Reject(413, {"detail": detail}, (CLOSE,))
