"""Parser of JSON-RPC messages. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from refdesk.errors import InvalidRequest, ParseError

MessageId = str | int


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
        return _read_response(parsed)
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
    if isinstance(parsed, dict):
        candidate = parsed.get("id")
        if isinstance(candidate, str | int) and _is_id(candidate):
            return candidate
    return None


def _read_response(parsed: Mapping[str, Any]) -> RpcResponse:
    if "id" in parsed and ("result" in parsed) != ("error" in parsed):
        return RpcResponse(parsed["id"], parsed.get("result"), parsed.get("error"))
    raise InvalidRequest("method is missing")


def _is_id(value: object) -> bool:
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
