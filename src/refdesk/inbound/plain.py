"""The plain lane: one JSON-RPC request answered with one JSON body, no session and no stream.

It serves whatever needs no message from server to client, from the same handler as every other way in.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mcp_types import InitializeRequestParams
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION
from pydantic import ValidationError

from refdesk.calls import Call, Handler
from refdesk.errors import RefdeskError, Unauthenticated
from refdesk.inbound.envelope import Request
from refdesk.inbound.mcp import SdkServer, Visitor
from refdesk.inbound.wire import encode_error, encode_result
from refdesk.problems import invalid_arguments

logger = logging.getLogger(__name__)


class PlainLane:
    """Answers requests in one go."""

    def __init__(self, handle: Handler, server: SdkServer) -> None:
        self._handle = handle
        self._server = server

    async def answer(self, request: Request, visitor: Visitor) -> tuple[int, bytes]:
        """The HTTP status and body for a request."""
        try:
            return 200, encode_result(request.id, await self._result(request, visitor))
        except Unauthenticated:
            raise
        except RefdeskError as error:
            return 200, encode_error(request.id, error)
        except Exception as error:
            logger.exception("a call failed in a way that nobody foresaw")
            return 200, encode_error(request.id, error)

    async def _result(self, request: Request, visitor: Visitor) -> dict[str, Any]:
        match request.method:
            case "initialize":
                return self._initialize(request.params)
            case "ping" | "logging/setLevel":
                return {}
        call = Call(
            method=request.method,
            params=request.params,
            caller=visitor.caller,
            trace_id=visitor.trace_id,
            toolsets=visitor.toolsets,
        )
        return (await self._handle(call)).result

    def _initialize(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The handshake without a session; the same words as the SDK's."""
        try:
            asked = InitializeRequestParams.model_validate(params, by_name=False).protocol_version
        except ValidationError as error:
            raise invalid_arguments(error) from None
        options = self._server.create_initialization_options()
        result: dict[str, Any] = {
            "protocolVersion": asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
            "capabilities": options.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
            "serverInfo": self._server.server_info.model_dump(by_alias=True, mode="json", exclude_none=True),
        }
        if options.instructions:
            result["instructions"] = options.instructions
        return result
