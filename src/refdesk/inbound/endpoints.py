"""HTTP endpoints other than MCP: tools over plain HTTP, health, readiness and metrics."""

from __future__ import annotations

from typing import Any

import orjson

from refdesk.calls import CONSOLE, Call
from refdesk.config import ServerConfig
from refdesk.errors import InvalidArguments, Problem, ProtocolError
from refdesk.inbound.asgi import JSON, Receive, Reject, Send, build_retry_after, respond, respond_json
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.disconnects import DisconnectMonitor
from refdesk.inbound.envelope import parse
from refdesk.inbound.error_mapping import encode, http_status, log_unexpected, to_rpc_error
from refdesk.inbound.internal import PATHS as INTERNAL_PATHS
from refdesk.inbound.internal import InternalEndpoints
from refdesk.inbound.mcp.revisions import MODERN_REVISION
from refdesk.inbound.request_context import RequestContext, enter_caller_trace
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
