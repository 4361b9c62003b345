"""Protocol revisions: their names, the parameters of the methods that Refdesk answers itself, and result metadata.

Defined here rather than imported from the SDK, whose types take a quarter of a second to import. A test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, StrictBool
from pydantic.alias_generators import to_camel

from refdesk.calls import LOG_LEVELS, LogLevel
from refdesk.errors import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, PARSE_ERROR
from refdesk.inbound.jsonrpc import RpcRequest
from refdesk.inbound.requests import Headers
from refdesk.validation import validate
from refdesk.version import __version__

HANDSHAKE_REVISIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Revisions that begin with `initialize`, oldest first."""

MODERN_REVISION: Final = "2026-07-28"
"""The stateless revision. Every request names it and the client's capabilities in `_meta`."""

MODERN_HEADER: Final = MODERN_REVISION.encode()

CLIENT_CAPABILITIES_META: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_META: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_META: Final = "io.modelcontextprotocol/logLevel"
PROTOCOL_VERSION_META: Final = "io.modelcontextprotocol/protocolVersion"
SERVER_INFO_META: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_ID_META: Final = "io.modelcontextprotocol/subscriptionId"

METHODS: Final = frozenset(
    {
        "tools/list",
        "tools/call",
        "resources/list",
        "resources/templates/list",
        "resources/read",
        "prompts/list",
        "prompts/get",
        "completion/complete",
    }
)
"""Methods of MCP that the application answers, in every revision."""

INPUT_REQUIRED_METHODS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods whose result may be `input_required`."""

CACHEABLE_METHODS: Final = frozenset(
    {"tools/list", "resources/list", "resources/templates/list", "resources/read", "prompts/list"}
)
CACHE: Final[Mapping[str, Any]] = {"ttlMs": 60_000, "cacheScope": "private"}
"""How long a client may cache results. Listeners are notified of changes, other clients ask again after a minute."""

_HEADER_MISMATCH: Final = -32020
UNSUPPORTED_PROTOCOL_VERSION: Final = -32022

STATUSES: Final[Mapping[int, int]] = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    _HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_PROTOCOL_VERSION: 400,
}
"""HTTP status of JSON-RPC error codes in the stateless revision. It is 200 for all others."""

SERVER_INFO: Final[Mapping[str, Any]] = {"name": "refdesk", "title": "Refdesk", "version": __version__}

NAMES: Final[Mapping[str, str]] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that the header `Mcp-Name` repeats."""


def build_capabilities(*, notifications: bool) -> dict[str, Any]:
    """Return the server's capabilities. Without a session, `notifications` can't reach a client."""
    return {
        "completions": {},
        "logging": {},
        "prompts": {"listChanged": notifications},
        "resources": {"subscribe": notifications, "listChanged": notifications},
        "tools": {"listChanged": notifications},
    }


class _Params(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class ClientInfo(_Params):
    """Name and version of a client, as it declares them."""

    name: str
    version: str


class HandshakeParams(_Params):
    """Parameters of `initialize`."""

    capabilities: dict[str, Any]
    client_info: ClientInfo
    protocol_version: str


class SetLevelParams(_Params):
    """Parameters of `logging/setLevel`."""

    level: LogLevel


class SubscribeParams(_Params):
    """Parameters of `resources/subscribe` and `resources/unsubscribe`."""

    uri: str


class SubscriptionFilter(_Params):
    """The changes that a listener wants to be notified of."""

    tools_list_changed: StrictBool | None = None
    prompts_list_changed: StrictBool | None = None
    resources_list_changed: StrictBool | None = None
    resource_subscriptions: list[str] | None = None


class ListenParams(_Params):
    """Parameters of `subscriptions/listen`."""

    notifications: SubscriptionFilter


class _ModernMeta(BaseModel):
    capabilities: dict[str, Any] = Field(alias=CLIENT_CAPABILITIES_META)
    client_info: ClientInfo | None = Field(None, alias=CLIENT_INFO_META)
    log_level: LogLevel | None = Field(None, alias=LOG_LEVEL_META)


class _ModernParams(BaseModel):
    meta: _ModernMeta = Field(alias="_meta")
    input_responses: dict[str, dict[str, Any]] | None = Field(None, alias="inputResponses")


def is_consistent(request: RpcRequest, headers: Headers | None) -> bool:
    """Return whether `_meta` names the stateless revision, and the headers are those of the request.

    False doesn't mean that the request is invalid: a header may be encoded. `SdkRules` decides that.
    """
    meta = request.params.get("_meta")
    if not isinstance(meta, dict) or meta.get(PROTOCOL_VERSION_META) != MODERN_REVISION:
        return False
    if CLIENT_CAPABILITIES_META not in meta:
        return False
    if headers is None:
        return True
    if headers.get(b"mcp-protocol-version") != MODERN_HEADER or headers.get(b"mcp-method") != request.method.encode():
        return False
    key = NAMES.get(request.method)
    name = None if key is None else request.params.get(key)
    return name is None or (isinstance(name, str) and name.isascii() and headers.get(b"mcp-name") == name.encode())


def check_modern_params(params: Mapping[str, Any]) -> None:
    """Raise InvalidArguments if `_meta` or the answers of a continued request are malformed."""
    meta = params["_meta"]
    # Most requests are well-formed and continue nothing, which is faster to see than to validate.
    if (
        not isinstance(meta[CLIENT_CAPABILITIES_META], dict)
        or not _is_client_info(meta.get(CLIENT_INFO_META))
        or (LOG_LEVEL_META in meta and meta[LOG_LEVEL_META] not in LOG_LEVELS)
        or "inputResponses" in params
    ):
        validate(_ModernParams, params)


def _is_client_info(info: Any) -> bool:
    return info is None or (
        isinstance(info, dict) and isinstance(info.get("name"), str) and isinstance(info.get("version"), str)
    )


def add_result_metadata(method: str, result: dict[str, Any], server: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a result with the metadata that the stateless revision requires."""
    annotated = {"resultType": "complete", **result, "_meta": {**(result.get("_meta") or {}), SERVER_INFO_META: server}}
    is_cacheable = method in CACHEABLE_METHODS and annotated["resultType"] == "complete"
    return {**CACHE, **annotated} if is_cacheable else annotated
