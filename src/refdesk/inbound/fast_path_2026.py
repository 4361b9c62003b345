"""The modern protocol revision on the fast path: eligible requests and result metadata.

Only a request that passes every check of the SDK is eligible. The SDK handles all others, so malformed requests are
judged in one place. No I/O.
"""

from __future__ import annotations

from typing import Any, Final

from mcp.server.caching import CacheHint
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS, NAME_BEARING_METHODS
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    CLIENT_INFO_META_KEY,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
)
from mcp_types.methods import CACHEABLE_METHODS
from mcp_types.version import LATEST_MODERN_VERSION

from refdesk.inbound.asgi import Headers
from refdesk.inbound.envelope import RpcRequest
from refdesk.inbound.mcp import METHODS

VERSION: Final = LATEST_MODERN_VERSION.encode()
_CONTINUATION_PARAMS = ("inputResponses", "requestState")


def is_eligible(request: RpcRequest, headers: Headers) -> bool:
    """Return whether headers and `_meta` are consistent and the request continues no earlier one."""
    accept = headers.get(b"accept", b"")
    return (
        request.method in METHODS
        and headers.get(b"mcp-protocol-version") == VERSION
        and headers.get(b"mcp-method") == request.method.encode()
        and b"application/json" in accept
        and b"text/event-stream" in accept
        and _is_valid_meta(request.params.get("_meta"))
        and _has_matching_name(request, headers.get(b"mcp-name"))
        and not any(name in request.params for name in _CONTINUATION_PARAMS)
        and not any(name.startswith(b"mcp-param-") for name in headers)
    )


def status_for_code(code: int) -> int:
    """Return the HTTP status of a JSON-RPC error code in this revision."""
    return ERROR_CODE_HTTP_STATUS.get(code, 200)


class ResultMetadata:
    """Adds the metadata that every result of this revision carries."""

    def __init__(self, server_info: dict[str, Any], cache: CacheHint) -> None:
        self._meta = {SERVER_INFO_META_KEY: server_info}
        self._cacheable = {"ttlMs": cache.ttl_ms, "cacheScope": cache.scope}

    def __call__(self, method: str, result: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the result with its metadata."""
        meta = result.get("_meta")
        annotated = {"resultType": "complete", **result, "_meta": {**meta, **self._meta} if meta else self._meta}
        is_cacheable = method in CACHEABLE_METHODS and annotated["resultType"] == "complete"
        return {**self._cacheable, **annotated} if is_cacheable else annotated


def _is_valid_meta(meta: Any) -> bool:
    if not isinstance(meta, dict) or meta.get(PROTOCOL_VERSION_META_KEY) != LATEST_MODERN_VERSION:
        return False
    info = meta.get(CLIENT_INFO_META_KEY, {"name": "", "version": ""})
    return (
        isinstance(meta.get(CLIENT_CAPABILITIES_META_KEY), dict)
        and isinstance(info, dict)
        and isinstance(info.get("name"), str)
        and isinstance(info.get("version"), str)
        and LOG_LEVEL_META_KEY not in meta
    )


def _has_matching_name(request: RpcRequest, header: bytes | None) -> bool:
    key = NAME_BEARING_METHODS.get(request.method)
    if key is None:
        return True
    name = request.params.get(key)
    # A name that isn't valid in a header is sent encoded. The SDK decodes those.
    return isinstance(name, str) and name.isascii() and header == name.encode()
