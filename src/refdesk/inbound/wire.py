"""Errors on the wire: the one place where an exception becomes a JSON-RPC error or an HTTP status."""

from __future__ import annotations

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
    ToolFailure,
    Unauthenticated,
    UnknownTool,
)
from refdesk.inbound.envelope import MessageId


@dataclass(frozen=True, slots=True)
class WireError:
    """A JSON-RPC error object."""

    code: int
    message: str
    data: dict[str, Any]

    def body(self) -> dict[str, Any]:
        """The error as it stands in a response."""
        return {"code": self.code, "message": self.message, "data": self.data}


def to_wire(error: Exception) -> WireError:
    """What a caller is told of an error. Of one that nobody foresaw, only that it happened."""
    if isinstance(error, RefdeskError):
        return WireError(error.code, error.detail, error.data)
    return to_wire(InternalError("An error inside the server; its log says more"))


def http_status(kind: type[Exception]) -> int:
    """The HTTP status of an error of this kind outside JSON-RPC."""
    for kinds, status in _STATUSES:
        if issubclass(kind, kinds):
            return status
    return 500


def encode_result(id: MessageId, result: Any) -> bytes:
    """A JSON-RPC response."""
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "result": result})


def encode_error(id: MessageId | None, error: Exception) -> bytes:
    """A JSON-RPC error response."""
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "error": to_wire(error).body()})


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
