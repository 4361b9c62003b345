"""HTTP endpoints other than MCP: tools, uploads, calls of other services, health, readiness and metrics."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import IO, Any
from urllib.parse import parse_qs

import orjson
from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field

from refdesk.calls import CONSOLE, SERVICE, SILENT, UPLOAD_METHOD, WINDOW_METHOD, Call, Caller, TenantId, UserId
from refdesk.config.models import Config
from refdesk.documents.file_limits import MAX_FILE_BYTES, MEGABYTE
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
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.jsonrpc import encode, http_status, log_unexpected, parse, to_rpc_error
from refdesk.inbound.mcp.revisions import MODERN_REVISION
from refdesk.inbound.requests import (
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
from refdesk.validation import validate
from refdesk.version import __version__

API = "/api/"
TOOLS = f"{API}tools"
UPLOADS = f"{API}uploads"
EXECUTE = "/internal/mcp/execute"
WINDOW = "/internal/retrieval/chunks/window"
INTERNAL_PATHS = frozenset({EXECUTE, WINDOW})
OPEN_PAGES = frozenset({"/", "/health", "/ready"})
"""Paths that probes can read without a key."""

PAGES = OPEN_PAGES | {"/metrics", TOOLS}
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")

WRITE_SIZE = MEGABYTE
"""Bytes of an upload to buffer before each write to disk."""

FORM_TYPES = (b"application/x-www-form-urlencoded", b"multipart/form-data", b"text/plain")
"""Content types that pages of other origins can send without a preflight request."""

_TRACE_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Trace ids that are safe to log."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    trace_id: str | None = None


class _User(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    user_id: str = Field(min_length=1, max_length=255)
    tenant_id: str = Field(min_length=1, max_length=255)
    roles: list[str] | None = None


class ExecuteRequest(_Body):
    """Request body: a tool to run for a user."""

    tool_name: str = Field(min_length=1)
    arguments: dict[str, Any] | None = None
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


class Endpoints:
    """Handlers of paths other than `/mcp`."""

    def __init__(self, services: Services, config: Config, monitor: DisconnectMonitor) -> None:
        self._services = services
        self._config = config
        self._monitor = monitor
        self.draining = False

    async def serve_page(self, path: str, context: RequestContext | None, send: Send) -> None:
        """Serve a GET path. `context` is set for paths that need authentication."""
        match path:
            case "/":
                about = {"service": "Refdesk", "version": __version__, "protocol": f"MCP {MODERN_REVISION}"}
                await respond_json(send, 200, {"status": "healthy", **about})
            case "/health":
                await respond_json(send, 200, {"status": "healthy", "version": __version__})
            case "/ready":
                ready, checks = await self._services.readiness()
                if self.draining:
                    ready, checks = False, {**checks, "server": {"state": "draining"}}
                body = {"status": "ready" if ready else "not ready", "checks": checks}
                await respond_json(send, 200 if ready else 503, body)
            case "/metrics":
                if not self._config.monitoring.prometheus.enabled:
                    raise Reject(404, "Metrics are switched off; see monitoring.prometheus.enabled")
                await self._services.measure()
                shared = self._config.server.workers > 1
                await respond(send, 200, self._services.metrics.exposition(shared=shared), TEXT)
            case _:
                assert context is not None
                await self._call_and_respond("tools/list", {}, context, send)

    async def post(self, path: str, body: bytes, context: RequestContext, receive: Receive, send: Send) -> None:
        """Call a tool, a console method or an internal endpoint with a JSON body."""
        try:
            parsed = parse(body, max_depth=self._config.server.max_json_depth) if body else {}
        except ProtocolError as error:
            if path in INTERNAL_PATHS:
                await _respond_service_error(send, error, enter_caller_trace(context, {}).trace_id)
            else:
                await respond_error(send, error)
            return
        with self._monitor.watch(receive):
            if path in INTERNAL_PATHS:
                await self._call_for_service(path, parsed, context, send)
            elif not path.startswith(f"{API}{CONSOLE}"):
                params = {"name": path.removeprefix(f"{TOOLS}/"), "arguments": parsed}
                await self._call_and_respond("tools/call", params, context, send)
            elif isinstance(parsed, dict):
                await self._call_and_respond(path.removeprefix(API), parsed, context, send)
            else:
                await respond_error(send, InvalidArguments([Problem("arguments", "must be an object")]))

    async def _call_and_respond(self, method: str, params: dict[str, Any], context: RequestContext, send: Send) -> None:
        context = enter_caller_trace(context, {})
        call = Call(
            method, params, context.caller, SILENT,
            context.trace_id, context.toolsets, context.credential, context.project,
        )  # fmt: skip
        try:
            body = encode((await self._services.handle(call)).result)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await respond_error(send, error, context.trace_id)
        else:
            await respond(send, 200, body, JSON)

    async def _call_for_service(self, path: str, body: Any, context: RequestContext, send: Send) -> None:
        """Run a tool for the user that another service names, or read chunk windows for another Refdesk.

        Errors have the same shape as results, with the trace id.
        """
        trace_id = enter_caller_trace(context, {}).trace_id
        given = body.get("trace_id") if isinstance(body, dict) else None
        try:
            if given is not None:
                trace_id = _check_trace_id(given)
            answer = self._execute if path == EXECUTE else self._read_window
            status, result = await answer(body, context.caller, trace_id)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            await _respond_service_error(send, error, trace_id)
        else:
            await respond_json(send, status, {**result, "trace_id": trace_id})

    async def _execute(self, body: Any, caller: Caller, trace_id: str) -> tuple[int, dict[str, Any]]:
        request = validate(ExecuteRequest, body)
        caller = self._impersonate(caller, request.user)
        params = {"name": request.tool_name, "arguments": request.arguments}
        answer = await self._services.handle(Call("tools/call", params, caller, trace_id=trace_id))
        if answer.is_error:
            data = answer.result.get("_meta", {}).get(ERROR_META, {})
            error = {"code": ToolFailure.code, "message": answer.text, "data": data}
            is_missing = data.get("type") == DocumentNotFound.__name__
            return 404 if is_missing else 422, {"status": "error", "error": error}
        return 200, {"status": "ok", "result": answer.result if answer.structured is None else answer.structured}

    async def _read_window(self, body: Any, caller: Caller, trace_id: str) -> tuple[int, dict[str, Any]]:
        request = validate(WindowRequest, body)
        caller = self._impersonate(caller, _User(user_id=caller.user, tenant_id=request.tenant_id))
        params = request.model_dump(exclude={"tenant_id", "trace_id"}, exclude_none=True)
        answer = await self._services.handle(Call(WINDOW_METHOD, params, caller, trace_id=trace_id))
        return 200, {"status": "ok", **answer.result}

    def _impersonate(self, caller: Caller, user: _User) -> Caller:
        """Return the caller for the user that a service names. Raises Forbidden if it may not.

        If keys are in use, naming another tenant, user or role needs a key with the role `service`. The toolsets of the
        service's own key always apply.
        """
        tenant, name, roles = TenantId(user.tenant_id), UserId(user.user_id), frozenset(user.roles or ())
        if not self._services.authenticate.has_keys or SERVICE in caller.roles:
            # Unknown roles are kept: they grant nothing, and without them a caller could do everything.
            return replace(caller, user=name, tenant=tenant, roles=roles, local=False)
        if tenant != caller.tenant:
            raise Forbidden(f"To act for another tenant takes a key with the role {SERVICE!r}")
        if name != caller.user or not roles <= caller.roles:
            raise Forbidden(f"To act for another user, or with more roles, takes a key with the role {SERVICE!r}")
        # Naming no roles must not remove them: a caller without roles may do everything.
        return replace(caller, roles=roles or caller.roles)

    async def upload(self, context: RequestContext, query: bytes, headers: Headers, receive: Receive) -> dict[str, Any]:
        """Store a request's body as a file of the caller's tenant, named by the query parameter `name`.

        For files that are too large for a JSON message.
        """
        trace_id = enter_caller_trace(context, {}).trace_id
        try:
            # The policies run before any of the body is read.
            await self._services.handle(Call(UPLOAD_METHOD, {}, context.caller, trace_id=trace_id))
        except Refused as error:
            wait = () if error.retry_after is None else (build_retry_after(error.retry_after),)
            raise Reject(http_status(type(error)), error.detail, CLOSE, *wait) from None
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in FORM_TYPES:
            raise Reject(415, "Send the file itself, with Content-Type: application/octet-stream", CLOSE)
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > MAX_FILE_BYTES:
            raise _build_too_large()
        name = parse_qs(query.decode("latin-1")).get("name", ["document"])[0]
        conversions = self._services.conversions
        async with conversions.create_upload() as file:
            try:
                size = await _receive_into(file, receive)
            except OSError as error:
                raise StorageError(f"The upload cannot be kept: {error.strerror or error}") from error
            uri = await conversions.keep_upload(context.caller.tenant, file, name)
        return {"uri": uri, "size": size}


async def respond_error(send: Send, error: Exception, trace_id: str = "") -> None:
    """Send an error outside JSON-RPC, with its HTTP status."""
    log_unexpected(error, trace_id)
    retry_after = getattr(error, "retry_after", None)
    headers = () if retry_after is None else (build_retry_after(retry_after),)
    body = orjson.dumps({"error": to_rpc_error(error, trace_id)})
    await respond(send, http_status(type(error)), body, JSON, *headers)


async def _respond_service_error(send: Send, error: Exception, trace_id: str) -> None:
    """Send an error to another service, in the shape of a result."""
    log_unexpected(error, trace_id)
    body = {"status": "error", "error": to_rpc_error(error), "trace_id": trace_id}
    await respond_json(send, http_status(type(error)), body)


def _check_trace_id(given: object) -> str:
    if not isinstance(given, str) or not _TRACE_ID.fullmatch(given):
        raise InvalidArguments([Problem("trace_id", "must be 1 to 128 printable ASCII characters without spaces")])
    return given


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
    return Reject(413, detail, CLOSE)
