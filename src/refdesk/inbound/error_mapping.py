"""Errors on the wire: the one place where an exception becomes a JSON-RPC error or an HTTP status."""

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
class WireError:
    """A JSON-RPC error object."""

    code: int
    message: str
    data: dict[str, Any]

    def body(self) -> dict[str, Any]:
        """The error as it stands in a response."""
        return {"code": self.code, "message": self.message, "data": self.data}


def to_wire(error: Exception, trace_id: str = "") -> WireError:
    """What a caller is told of an error. Of one that nobody foresaw, only that it happened, and how to find it."""
    if isinstance(error, RefdeskError):
        return WireError(error.code, error.detail, error.data)
    unforeseen = InternalError("An error inside the server; its log says more")
    found_by = {"trace_id": trace_id} if trace_id else {}
    return WireError(unforeseen.code, unforeseen.detail, {**unforeseen.data, **found_by})


def log_unforeseen(error: Exception, trace_id: str) -> None:
    """What the log says more; nothing of an error that is one of ours, for its caller has been told all of it."""
    if not isinstance(error, RefdeskError):
        fields = {"trace_id": trace_id}
        logger.error("a call failed in a way that nobody foresaw", exc_info=error, extra={"fields": fields})


def http_status(kind: type[Exception]) -> int:
    """The HTTP status of an error of this kind outside JSON-RPC."""
    for kinds, status in _STATUSES:
        if issubclass(kind, kinds):
            return status
    return 500


def encode_result(id: MessageId, result: Any) -> bytes:
    """A JSON-RPC response."""
    return encode({"jsonrpc": "2.0", "id": id, "result": result})


def encode(answer: Any) -> bytes:
    """An answer as JSON; what a server behind us gave may be JSON that can be read and not written."""
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError as error:
        raise ServerTalksNonsense(f"A server gave a result that cannot be passed on: {error}") from error


def encode_error(id: MessageId | None, error: Exception, trace_id: str = "") -> bytes:
    """A JSON-RPC error response."""
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "error": to_wire(error, trace_id).body()})


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
