"""Fast path for MCP requests: one JSON-RPC request, one JSON response, without the SDK.

It serves every request that needs no message from server to client, through the same handler as the SDK routes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp.server.lowlevel.server import NotificationOptions
from mcp_types import InitializeRequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from refdesk.calls import SILENT, Call, Client, Handler, InputRequired
from refdesk.inbound.envelope import Request
from refdesk.inbound.error_mapping import encode_error, encode_result, log_unforeseen, to_wire
from refdesk.inbound.fast_path_2026 import Stamp, status_of
from refdesk.inbound.mcp import CACHE, SdkServer, log_arrival
from refdesk.inbound.request_context import Visitor
from refdesk.inbound.server_requests import cannot_end
from refdesk.inbound.traces import in_trace
from refdesk.validation import invalid_arguments


class PlainLane:
    """Answers requests without the SDK."""

    def __init__(self, handle: Handler, server: SdkServer) -> None:
        self._handle = handle
        self._server = server
        self._stamp = Stamp(server.server_info_stamp, CACHE)
        self._own_methods: dict[str, Callable[[Mapping[str, Any], Visitor], dict[str, Any]]] = {
            "initialize": self._initialize,
            "ping": _nothing,
            "logging/setLevel": _nothing,
        }

    async def answer(
        self, request: Request, visitor: Visitor, client: Client = SILENT, *, newest: bool = False
    ) -> tuple[int, bytes]:
        """Return the HTTP status and body of the response to a request."""
        visitor = in_trace(visitor, request.params)
        try:
            if not newest and (own := self._own_methods.get(request.method)) is not None:
                return 200, encode_result(request.id, own(request.params, visitor))
            call = Call(
                request.method,
                request.params,
                visitor.caller,
                client,
                visitor.trace_id,
                visitor.toolsets,
                visitor.credential,
            )
            try:
                result = (await self._handle(call)).result
            except InputRequired as asked:
                if not newest:
                    raise cannot_end(asked) from None
                result = await self._server.ask_by_ending(request, visitor, asked)
            return 200, encode_result(request.id, self._stamp(request.method, result) if newest else result)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            log_unforeseen(error, visitor.trace_id)
            status = status_of(to_wire(error).code) if newest else 200
            return status, encode_error(request.id, error, visitor.trace_id)

    def _initialize(self, params: Mapping[str, Any], visitor: Visitor) -> dict[str, Any]:
        """Answer the handshake without a session, with the same content as the SDK."""
        try:
            asked = InitializeRequestParams.model_validate(params, by_name=False).protocol_version
        except ValidationError as error:
            raise invalid_arguments(error) from None
        log_arrival("initialize", params, visitor)
        # Notifications can't reach a client without a session.
        options = self._server.create_initialization_options(NotificationOptions())
        capabilities = options.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        capabilities["resources"]["subscribe"] = False
        result: dict[str, Any] = {
            "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": capabilities,
            "serverInfo": self._server.server_info.model_dump(by_alias=True, mode="json", exclude_none=True),
        }
        return {**result, "instructions": self._server.instructions_for(visitor.caller)}


def _nothing(params: Mapping[str, Any], visitor: Visitor) -> dict[str, Any]:
    return {}
