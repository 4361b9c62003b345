"""JSON-RPC messages: parsing of requests, encoding of results, and errors with their codes and HTTP statuses."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import orjson

from refdesk.errors import (
    DeadlineExceeded,
    DependencyError,
    DocumentNotFound,
    Forbidden,
    InternalError,
    InvalidCall,
    InvalidRequest,
    MethodNotFound,
    Overloaded,
    ParseError,
    ProtocolError,
    RateLimited,
    RefdeskError,
    ServerTalksNonsense,
    ToolFailure,
    Unauthenticated,
    UnknownTool,
)

MessageId = str | int

logger = logging.getLogger(__name__)


# Named tuples: one is created per request, and a frozen dataclass takes three times as long.


class RpcRequest(NamedTuple):
    """A JSON-RPC request."""

    id: MessageId
    method: str
    params: Mapping[str, Any]


class RpcNotification(NamedTuple):
    """A JSON-RPC notification."""

    method: str
    params: Mapping[str, Any]


class RpcResponse(NamedTuple):
    """A client's JSON-RPC response to a request of ours."""

    id: MessageId
    result: Any
    error: Any


RpcMessage = RpcRequest | RpcNotification | RpcResponse


def parse(body: bytes, *, max_depth: int) -> Any:
    """Parse JSON, and reject it if it's nested too deeply."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ParseError(f"The body is not JSON: {error.msg} at byte {error.pos}") from None
    # Every level opens a bracket, so a body with few brackets cannot be deep. Most bodies have few.
    if body.count(b"[") + body.count(b"{") > max_depth and _is_deeper(body, max_depth):
        raise InvalidRequest(f"The JSON is nested more than {max_depth} levels deep")
    return parsed


def read_message(parsed: Any) -> RpcMessage:
    """Convert parsed JSON to a message. Raises InvalidRequest if it isn't one."""
    if isinstance(parsed, list):
        raise InvalidRequest("Batches are not part of MCP any more; send each message in a request of its own")
    if not isinstance(parsed, dict):
        raise InvalidRequest("The message must be a JSON object")
    if parsed.get("jsonrpc") != "2.0":
        raise InvalidRequest('jsonrpc must be "2.0"')
    if "id" in parsed and not _is_id(parsed["id"]):
        raise InvalidRequest("id must be a string or an integer")
    if "method" not in parsed:
        if "id" not in parsed or ("result" in parsed) == ("error" in parsed):
            raise InvalidRequest("method is missing")
        return RpcResponse(parsed["id"], parsed.get("result"), parsed.get("error"))
    method, params = parsed["method"], parsed.get("params")
    if not isinstance(method, str) or not method:
        raise InvalidRequest("method must be a non-empty string")
    if params is None:
        params = {}
    elif not isinstance(params, dict):
        raise InvalidRequest("params must be an object")
    return RpcRequest(parsed["id"], method, params) if "id" in parsed else RpcNotification(method, params)


def read_id(parsed: Any) -> MessageId | None:
    """Return the id to echo in an error response, if there is a usable one."""
    id = parsed.get("id") if isinstance(parsed, dict) else None
    return id if _is_id(id) else None


def _is_id(value: object) -> TypeGuard[MessageId]:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _is_deeper(body: bytes, limit: int) -> bool:
    """Return whether valid JSON is nested deeper than `limit`.

    Each round removes the innermost brackets, at the speed of C.
    """
    brackets = _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS)
    for _ in range(limit):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return False
    return True


_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def to_rpc_error(error: Exception, trace_id: str = "") -> dict[str, Any]:
    """Convert an exception to a JSON-RPC error object.

    Of an unexpected exception, the client only gets the trace id to find it in the log.
    """
    if isinstance(error, RefdeskError):
        return {"code": error.code, "message": error.detail, "data": error.data}
    unexpected = InternalError("An error inside the server; its log says more")
    data = {**unexpected.data, **({"trace_id": trace_id} if trace_id else {})}
    return {"code": unexpected.code, "message": unexpected.detail, "data": data}


def log_unexpected(error: Exception, trace_id: str) -> None:
    """Log an unexpected exception. Refdesk's own errors aren't logged, because the client gets all of their detail."""
    if not isinstance(error, RefdeskError):
        fields = {"trace_id": trace_id}
        logger.error("a call failed in a way that nobody foresaw", exc_info=error, extra={"fields": fields})


def http_status(kind: type[Exception]) -> int:
    """Return the HTTP status of an exception type outside JSON-RPC."""
    return next((status for types, status in _STATUSES if issubclass(kind, types)), 500)


def encode_result(id: MessageId, result: Any) -> bytes:
    """Encode a JSON-RPC response."""
    return encode({"jsonrpc": "2.0", "id": id, "result": result})


def encode(answer: Any) -> bytes:
    """Encode a result as JSON. A downstream server's result may be JSON that can be parsed but not encoded."""
    try:
        return orjson.dumps(answer)
    except orjson.JSONEncodeError as error:
        raise ServerTalksNonsense(f"A server gave a result that cannot be passed on: {error}") from error


def encode_error(id: MessageId | None, error: Exception, trace_id: str = "") -> bytes:
    """Encode a JSON-RPC error response."""
    return orjson.dumps({"jsonrpc": "2.0", "id": id, "error": to_rpc_error(error, trace_id)})


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
