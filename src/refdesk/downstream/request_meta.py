"""Per-version request metadata: protocol keys in `_meta`, and parameters mirrored in HTTP headers. No I/O.

Versions with a handshake negotiate once. Versions without one send version, client info and capabilities with every
request, and mirror in headers what proxies may route by.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

from refdesk.downstream.jsonrpc import VERSION_HEADER
from refdesk.version import __version__

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Versions negotiated by `initialize`, oldest first."""

MODERN_VERSIONS = ("2026-07-28",)
"""Versions without a handshake, found by `server/discover`."""

NEWEST_HANDSHAKE, NEWEST_MODERN = HANDSHAKE_VERSIONS[-1], MODERN_VERSIONS[-1]

RESERVED_PREFIX = "io.modelcontextprotocol/"
"""Prefix of the `_meta` keys that belong to the protocol."""

CLIENT_INFO: Mapping[str, Any] = {"name": "refdesk", "version": __version__}

CLIENT_CAPABILITIES: Mapping[str, Any] = {
    "sampling": {},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": False},
}
"""Capabilities declared to servers on behalf of all clients. A client that lacks one rejects the request."""

GATEWAY_CAPABILITIES: Mapping[str, Any] = {**CLIENT_CAPABILITIES, "roots": {"listChanged": True}}
"""The same in the handshake of the gateway, which tells servers about changed roots."""

METHOD_HEADER, NAME_HEADER, PARAM_HEADER = "mcp-method", "mcp-name", "mcp-param-"

_NAME_PARAMS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
"""The parameter that `Mcp-Name` mirrors, by method."""

_HEADER_KEYWORD = "x-mcp-header"
"""Schema keyword that has an argument mirrored in a header."""

_BASE64_FORM = re.compile(r"=\?base64\?.*\?=", re.DOTALL)
_PLAIN_TEXT = re.compile(r"[\x20-\x7e]*")
_HEADER_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MIRRORABLE_TYPES = frozenset({"string", "integer", "boolean"})

Mirrored = Mapping[tuple[str, ...], str]
"""Mirrored arguments of a tool: path of the argument, and suffix of the header name."""


class HeaderMirrorError(ValueError):
    """A schema that marks an argument which no header can carry. Such a tool must not be called."""


def strip_envelope(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Remove the protocol's own `_meta` keys, for servers with a handshake."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or not any(key.startswith(RESERVED_PREFIX) for key in meta):
        return params
    remaining = {key: value for key, value in meta.items() if not key.startswith(RESERVED_PREFIX)}
    bare = {key: value for key, value in params.items() if key != "_meta"}
    return {**bare, "_meta": remaining} if remaining else bare


def add_envelope(
    version: str,
    params: Mapping[str, Any] | None,
    capabilities: Mapping[str, Any] | None = None,
    level: str | None = None,
    client_info: Mapping[str, Any] = CLIENT_INFO,
) -> dict[str, Any]:
    """Add the protocol's `_meta` keys, for servers without a handshake.

    `capabilities` are those of the client that the request is for. `level` is the log level, unless the client set one.
    """
    original = params or {}
    meta = original.get("_meta")
    envelope: dict[str, Any] = {
        f"{RESERVED_PREFIX}protocolVersion": version,
        f"{RESERVED_PREFIX}clientInfo": client_info,
        f"{RESERVED_PREFIX}clientCapabilities": CLIENT_CAPABILITIES if capabilities is None else capabilities,
    }
    if isinstance(meta, dict):
        envelope = {**meta, **envelope}
    if level is not None:
        envelope.setdefault(f"{RESERVED_PREFIX}logLevel", level)
    return {**original, "_meta": envelope}


def build_headers(version: str, method: str, params: Mapping[str, Any], mirrored: Mirrored | None) -> dict[str, str]:
    """Return the headers of a request without a handshake."""
    headers = {VERSION_HEADER: version, METHOD_HEADER: method}
    key = _NAME_PARAMS.get(method)
    name = params.get(key) if key is not None else None
    if isinstance(name, str):
        headers[NAME_HEADER] = encode_header_value(name)
    for path, token in (mirrored or {}).items():
        argument = params.get("arguments")
        for key in path:
            argument = argument.get(key) if isinstance(argument, dict) else None
        value = _format_value(argument)
        if value is not None:
            headers[PARAM_HEADER + token.lower()] = encode_header_value(value)
    return headers


def encode_header_value(value: str) -> str:
    """Encode a text for a header: unchanged if it's safe, or else as base64."""
    if _PLAIN_TEXT.fullmatch(value) and value == value.strip() and not _BASE64_FORM.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def find_mirrored_arguments(schema: Any) -> Mirrored:
    """Return the arguments that a tool's input schema marks for headers. Raises `HeaderMirrorError`."""
    found: dict[tuple[str, ...], str] = {}
    for path, node in _iter_subschemas(schema):
        if _HEADER_KEYWORD not in node:
            continue
        token = node[_HEADER_KEYWORD]
        if not path:
            raise HeaderMirrorError(f"{_HEADER_KEYWORD} doesn't belong to a single argument")
        if not isinstance(token, str) or not _HEADER_TOKEN.fullmatch(token):
            raise HeaderMirrorError(f"{_HEADER_KEYWORD} of {'.'.join(path)!r} is not a valid header name")
        if node.get("type") not in _MIRRORABLE_TYPES:
            raise HeaderMirrorError(f"{_HEADER_KEYWORD} of {'.'.join(path)!r}, whose type no header can carry")
        if token.lower() in (other.lower() for other in found.values()):
            raise HeaderMirrorError(f"{_HEADER_KEYWORD} {token!r} is there twice")
        found[path] = token
    return found


_SCHEMA_KEYS = frozenset(
    "items contains unevaluatedItems additionalProperties propertyNames unevaluatedProperties "
    "not if then else contentSchema".split()
)
_SCHEMA_LIST_KEYS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SCHEMA_MAP_KEYS = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


def _iter_subschemas(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, dict[str, Any]]]:
    """Yield every subschema, with its argument path if that consists of `properties` only."""
    pending: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while pending:
        path, node = pending.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for key, value in node.items():
            if key == "properties" and isinstance(value, dict):
                pending += [(None if path is None else (*path, name), each) for name, each in value.items()]
            elif key in _SCHEMA_KEYS:
                pending.append((None, value))
            elif key in _SCHEMA_LIST_KEYS and isinstance(value, list):
                pending += [(None, each) for each in value]
            elif key in _SCHEMA_MAP_KEYS and isinstance(value, dict):
                pending += [(None, each) for each in value.values()]


def _format_value(value: Any) -> str | None:
    """Format a scalar as text. Return None for a missing value, object or list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, (str, int, float)):
        return None
    try:
        return str(value)
    except ValueError:  # more digits than Python converts
        return None
