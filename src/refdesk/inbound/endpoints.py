"""Everything that is not MCP: the tools as plain endpoints, and the pages that tell how the server is."""

from __future__ import annotations

import logging
from typing import Any

import orjson
from mcp_types.version import LATEST_MODERN_VERSION

from refdesk.calls import Call
from refdesk.config import Config
from refdesk.errors import RefdeskError
from refdesk.inbound.asgi import JSON, ClientGone, Receive, Reject, Send, respond, respond_json
from refdesk.inbound.envelope import parse
from refdesk.inbound.mcp import Visitor
from refdesk.inbound.services import Services
from refdesk.inbound.watch import Watches
from refdesk.inbound.wire import http_status, to_wire
from refdesk.version import __version__

logger = logging.getLogger(__name__)

TOOLS = "/api/tools"
OPEN_PAGES = frozenset({"/", "/health", "/ready"})
"""What a probe may see without a key."""

PAGES = OPEN_PAGES | {"/metrics", TOOLS}
TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class Endpoints:
    """Answers for paths other than `/mcp`."""

    def __init__(self, services: Services, config: Config, watches: Watches) -> None:
        self._services = services
        self._config = config
        self._watches = watches
        self.draining = False

    async def page(self, path: str, visitor: Visitor | None, send: Send) -> None:
        """A page that is read with GET; `visitor` is known for those that are not open."""
        match path:
            case "/":
                await respond_json(send, 200, _about())
            case "/health":
                await respond_json(send, 200, {"status": "ok"})
            case "/ready":
                await self._ready(send)
            case "/metrics":
                await self._metrics(send)
            case _:
                assert visitor is not None
                await respond_json(send, 200, await self._answer("tools/list", {}, visitor))

    async def call_tool(self, name: str, body: bytes, visitor: Visitor, receive: Receive, send: Send) -> None:
        """A tool with its arguments as the body."""
        try:
            arguments = parse(body, max_depth=self._config.server.max_json_depth) if body else {}
        except RefdeskError as error:
            raise rejected(error) from None
        with self._watches.over(receive):
            result = await self._answer("tools/call", {"name": name, "arguments": arguments}, visitor)
        await respond(send, 200, orjson.dumps(result), JSON)

    async def _answer(self, method: str, params: dict[str, Any], visitor: Visitor) -> dict[str, Any]:
        call = Call(method, params, visitor.caller, trace_id=visitor.trace_id, toolsets=visitor.toolsets)
        try:
            return (await self._services.handle(call)).result
        except ClientGone:
            raise
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            raise rejected(error) from None

    async def _ready(self, send: Send) -> None:
        ready, checks = await self._services.readiness()
        if self.draining:
            ready, checks = False, {**checks, "server": {"state": "draining"}}
        body = {"status": "ready" if ready else "not ready", "checks": checks}
        await respond_json(send, 200 if ready else 503, body)

    async def _metrics(self, send: Send) -> None:
        if not self._config.monitoring.prometheus.enabled:
            raise Reject(404, {"detail": "Metrics are switched off; see monitoring.prometheus.enabled"})
        shared = self._config.server.workers > 1
        await respond(send, 200, self._services.metrics.exposition(shared=shared), TEXT)


def rejected(error: Exception) -> Reject:
    """An error as an HTTP answer."""
    if not isinstance(error, RefdeskError):
        logger.error("a call failed in a way that nobody foresaw", exc_info=error)
    retry_after = getattr(error, "retry_after", None)
    headers = () if retry_after is None else ((b"retry-after", b"%d" % max(1, round(retry_after))),)
    return Reject(http_status(error), {"error": to_wire(error).body()}, headers)


def _about() -> dict[str, Any]:
    return {
        "status": "healthy",
        "service": "Refdesk",
        "version": __version__,
        "protocol": f"MCP {LATEST_MODERN_VERSION}",
    }
