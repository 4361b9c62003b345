"""Rules of the stateless revision that the SDK implements: what is wrong with a request, and sealed request state.

Importing the SDK takes a second and 30 MB. `McpDispatcher` imports this module when a request needs it, which most
servers never get.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from mcp.server.context import HandlerResult, ServerRequestContext
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import (
    InboundLadderRejection,
    InboundModernRoute,
    classify_inbound_request,
    validate_mcp_param_headers,
)

from refdesk.calls import Caller
from refdesk.errors import TransportError
from refdesk.inbound.jsonrpc import RpcRequest
from refdesk.inbound.mcp.revisions import MODERN_REVISION, SERVER_INFO
from refdesk.inbound.requests import Headers


class SdkRules:
    """The SDK's checks, with its rejections as our errors."""

    def __init__(self, state_key: bytes) -> None:
        sealed = RequestStateSecurity(keys=[state_key], bind_principal=_name_principal)
        self._boundary = RequestStateBoundary(sealed, default_audience=SERVER_INFO["name"])

    def check_request(self, request: RpcRequest, headers: Headers | None) -> None:
        """Raise TransportError if `_meta` is incomplete, or the headers contradict the request."""
        body = {"method": request.method, "params": request.params}
        _raise_rejection(classify_inbound_request(body, headers=None if headers is None else _decode_headers(headers)))

    def check_param_headers(self, schema: Mapping[str, Any], arguments: Mapping[str, Any], headers: Headers) -> None:
        """Raise TransportError if the headers of a tool's arguments contradict them."""
        _raise_rejection(validate_mcp_param_headers(schema, arguments, _decode_headers(headers)))

    async def run_with_state(
        self, request: RpcRequest, caller: Caller, run: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
    ) -> dict[str, Any]:
        """Run a call with the opened state of its request, and seal the state of its result."""
        ctx = ServerRequestContext(
            session=None,  # type: ignore[arg-type]  # not looked at where there is nothing to be sent
            lifespan_context=None,
            protocol_version=MODERN_REVISION,
            method=request.method,
            params=request.params,
            request=caller,
        )

        async def run_opened(opened: ServerRequestContext[Any, Any]) -> HandlerResult:
            return await run(opened.params or {})

        try:
            # The boundary returns what `run_opened` does, with its state sealed.
            return cast("dict[str, Any]", await self._boundary(ctx, run_opened))
        except MCPError as error:
            raise TransportError(error.error.message, code=error.error.code, data=error.error.data) from None


def _decode_headers(headers: Headers) -> dict[str, str]:
    """Return headers as text, without trailing whitespace (RFC 9110, 5.5)."""
    return {name.decode("latin-1"): value.rstrip(b" \t").decode("latin-1") for name, value in headers.items()}


def _raise_rejection(verdict: InboundModernRoute | InboundLadderRejection | None) -> None:
    if isinstance(verdict, InboundLadderRejection):
        raise TransportError(verdict.message, code=verdict.code, data=verdict.data)


def _name_principal(ctx: ServerRequestContext[Any, Any]) -> str:
    """Return the principal that a request's state is bound to. Nobody else can send it back."""
    caller: Any = ctx.request
    return f"{caller.tenant!r} {caller.user!r}"
