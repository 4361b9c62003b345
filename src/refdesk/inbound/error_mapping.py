"""Maps exceptions to JSON-RPC errors and HTTP statuses."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import orjson

from refdesk.errors import (
    DeadlineExceeded,
    DependencyError,
    DocumentNotFound,
    Forbidden,
    InternalError,
    InvalidCall,
    MethodNotFound,
    Overloaded,
    ProtocolError,
    RateLimited,
    RefdeskError,
    ServerTalksNonsense,
    ToolFailure,
    Unauthenticated,
    UnknownTool,
)
from refdesk.inbound.envelope import MessageId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RpcError:
    """A JSON-RPC error object."""

    code: int
    message: str
    data: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return the error as JSON."""
        return {"code": self.code, "message": self.message, "data": self.data}


def to_rpc_error(error: Exception, trace_id: str = "") -> RpcError:
    """Convert an exception to a JSON-RPC error.

    Of an unexpected exception, the client only gets the trace id to find it in the log.
    """
    if isinstance(error, RefdeskError):
        return RpcError(error.code, error.detail, error.data)
    unexpected = InternalError("An error inside the server; its log says more")
    trace_data = {"trace_id": trace_id} if trace_id else {}
    return RpcError(unexpected.code, unexpected.detail, {**unexpected.data, **trace_data})


def log_unexpected(error: Exception, trace_id: str) -> None:
    """Log an unexpected exception. Refdesk's own errors aren't logged, because the client gets all of their detail."""
    if not isinstance(error, RefdeskError):
        fields = {"trace_id": trace_id}
        logger.error("a call failed in a way that nobody foresaw", exc_info=error, extra={"fields": fields})


def http_status(kind: type[Exception]) -> int:
    """Return the HTTP status of an exception type outside JSON-RPC."""
    for types, status in _STATUSES:
        if issubclass(kind, types):
            return status
    return 500


def encode_result(id: MessageId, result: Any) -> bytes:
    """Encode a JSON-RPC response."""
    return encode({"jsonrpc": "2.0", "id": id, "result": result})


def encode(answer: Any) -> bytes:
    """Encode a result as JSON.

    A downstream server's result may be JSON that can be parsed but not encoded.
    """
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError as error:
        raise ServerTalksNonsense(f"A server gave a result that cannot be passed on: {error}") from error


def encode_error(id: MessageId | None, error: Exception, trace_id: str = "") -> bytes:
    """Encode a JSON-RPC error response."""
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "error": to_rpc_error(error, trace_id).to_dict()})


_STATUSES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    ((UnknownTool, MethodNotFound), 404),
    ((ProtocolError, InvalidCall), 400),
    (DocumentNotFound, 404),
    (ToolFailure, 422),
    (RateLimited, 429),
    (Overloaded, 503),
    (DeadlineExceeded, 504),
    (DependencyError, 503),
)
