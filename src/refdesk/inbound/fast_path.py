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
from refdesk.inbound.envelope import RpcRequest
from refdesk.inbound.error_mapping import encode_error, encode_result, log_unexpected, to_rpc_error
from refdesk.inbound.fast_path_2026 import ResultMetadata, status_for_code
from refdesk.inbound.mcp import CACHE, SdkServer, build_input_required, log_client_info
from refdesk.inbound.request_context import RequestContext
from refdesk.inbound.server_requests import build_input_error
from refdesk.inbound.trace_headers import enter_caller_trace
from refdesk.validation import invalid_arguments


class FastPath:
    """Answers requests without the SDK."""

    def __init__(self, handle: Handler, server: SdkServer) -> None:
        self._handle = handle
        self._server = server
        self._add_metadata = ResultMetadata(server.server_info_stamp, CACHE)
        self._own_methods: dict[str, Callable[[Mapping[str, Any], RequestContext], dict[str, Any]]] = {
            "initialize": self._initialize,
            "ping": _return_empty,
            "logging/setLevel": _return_empty,
        }

    async def answer(
        self, request: RpcRequest, context: RequestContext, client: Client = SILENT, *, modern: bool = False
    ) -> tuple[int, bytes]:
        """Return the HTTP status and body of the response to a request."""
        context = enter_caller_trace(context, request.params)
        try:
            if not modern and (own := self._own_methods.get(request.method)) is not None:
                return 200, encode_result(request.id, own(request.params, context))
            call = Call(
                request.method,
                request.params,
                context.caller,
                client,
                context.trace_id,
                context.toolsets,
                context.credential,
            )
            try:
                result = (await self._handle(call)).result
            except InputRequired as requested:
                if not modern:
                    raise build_input_error(requested) from None
                result = build_input_required(requested)
            if modern:
                if "requestState" in result:
                    result = await self._server.seal_state(request, context, result)
                result = self._add_metadata(request.method, result)
            return 200, encode_result(request.id, result)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            log_unexpected(error, context.trace_id)
            status = status_for_code(to_rpc_error(error).code) if modern else 200
            return status, encode_error(request.id, error, context.trace_id)

    def _initialize(self, params: Mapping[str, Any], context: RequestContext) -> dict[str, Any]:
        """Answer the handshake without a session, with the same content as the SDK."""
        try:
            requested = InitializeRequestParams.model_validate(params, by_name=False).protocol_version
        except ValidationError as error:
            raise invalid_arguments(error) from None
        log_client_info("initialize", params, context)
        # Notifications can't reach a client without a session.
        options = self._server.create_initialization_options(NotificationOptions())
        capabilities = options.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        capabilities["resources"]["subscribe"] = False
        result: dict[str, Any] = {
            "protocolVersion": requested if requested in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": capabilities,
            "serverInfo": self._server.server_info.model_dump(by_alias=True, mode="json", exclude_none=True),
        }
        return {**result, "instructions": self._server.build_instructions(context.caller)}


def _return_empty(params: Mapping[str, Any], context: RequestContext) -> dict[str, Any]:
    return {}
