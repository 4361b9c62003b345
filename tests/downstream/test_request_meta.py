"""How requests are dressed, compared with what the official SDK makes and takes."""

from __future__ import annotations

from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from mcp_types import version

from refdesk.downstream import request_meta


def test_the_revisions_are_those_of_the_official_sdk() -> None:
    assert request_meta.HANDSHAKE_VERSIONS == version.HANDSHAKE_PROTOCOL_VERSIONS
    assert request_meta.MODERN_VERSIONS == version.MODERN_PROTOCOL_VERSIONS


@given(st.text(max_size=30))
def test_any_text_survives_its_way_through_a_header(text: str) -> None:
    value = request_meta.encode_header_value(text)
    assert value.isascii()
    assert inbound.decode_header_value(value) == text
    assert value == inbound.encode_header_value(text)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "größe", "arguments": {"a": 1}}),
        ("prompts/get", {"name": " padded "}),
        ("resources/read", {"uri": "file:///a b"}),
        ("tools/list", None),
        ("resources/read", {"uri": "x:y", "_meta": {"progressToken": 3}}),
    ],
)
def test_a_dressed_request_passes_the_ladder_of_the_official_server(method: str, params: dict[str, Any] | None) -> None:
    dressed = request_meta.add_envelope(request_meta.NEWEST_MODERN, params)
    headers = request_meta.build_headers(request_meta.NEWEST_MODERN, method, dressed, None)
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dressed}
    route = inbound.classify_inbound_request(body, headers=headers)
    assert isinstance(route, inbound.InboundModernRoute)
    assert route.client_capabilities == request_meta.CLIENT_CAPABILITIES
    mcp_types.ClientCapabilities.model_validate(route.client_capabilities)


def test_the_envelope_is_ours_and_the_rest_of_meta_is_the_callers() -> None:
    meta = {"progressToken": 3, f"{request_meta.RESERVED_PREFIX}protocolVersion": "1999-01-01", "mine": True}
    dressed = request_meta.add_envelope("2026-07-28", {"name": "a", "_meta": meta}, {"roots": {}}, "info")["_meta"]
    assert dressed["progressToken"] == 3
    assert dressed["mine"] is True
    assert dressed[mcp_types.PROTOCOL_VERSION_META_KEY] == "2026-07-28"
    assert dressed[mcp_types.CLIENT_CAPABILITIES_META_KEY] == {"roots": {}}
    assert dressed[mcp_types.LOG_LEVEL_META_KEY] == "info"


def test_the_level_that_a_client_asks_for_itself_stands() -> None:
    params = {"_meta": {mcp_types.LOG_LEVEL_META_KEY: "debug"}}
    assert (
        request_meta.add_envelope("2026-07-28", params, None, "info")["_meta"][mcp_types.LOG_LEVEL_META_KEY] == "debug"
    )


@pytest.mark.parametrize(
    ("params", "bare"),
    [
        ({"a": 1}, {"a": 1}),
        ({"a": 1, "_meta": {"x": 2}}, {"a": 1, "_meta": {"x": 2}}),
        ({"a": 1, "_meta": {f"{request_meta.RESERVED_PREFIX}clientInfo": {}}}, {"a": 1}),
        (
            {"_meta": {f"{request_meta.RESERVED_PREFIX}clientInfo": {}, "progressToken": 1}},
            {"_meta": {"progressToken": 1}},
        ),
        ({"_meta": 7}, {"_meta": 7}),
    ],
)
def test_a_server_with_a_handshake_is_spared_the_envelope(params: dict[str, Any], bare: dict[str, Any]) -> None:
    assert request_meta.strip_envelope(params) == bare


MARKED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"flag": {"type": "boolean", "x-mcp-header": "Flag"}}},
        "plain": {"type": "string"},
    },
}


@pytest.mark.parametrize(
    "arguments",
    [{}, {"region": "eu", "deep": {"flag": False}}, {"region": "größe\n", "deep": 3}, {"region": None, "plain": "x"}],
)
def test_marked_arguments_are_repeated_as_the_official_server_checks(arguments: dict[str, Any]) -> None:
    mirrored = request_meta.find_mirrored_arguments(MARKED)
    params = request_meta.add_envelope("2026-07-28", {"name": "t", "arguments": arguments})
    headers = request_meta.build_headers("2026-07-28", "tools/call", params, mirrored)
    assert inbound.validate_mcp_param_headers(MARKED, arguments, headers) is None
    assert request_meta.find_mirrored_arguments({"type": "object"}) == {}


def _with(schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}}


@pytest.mark.parametrize(
    "schema",
    [
        _with({"type": "number", "x-mcp-header": "A"}),
        _with({"type": "string", "x-mcp-header": "no token"}),
        _with({"type": "string", "x-mcp-header": 3}),
        _with({"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}),
        {"x-mcp-header": "A", "type": "string"},
        {"properties": {n: {"type": "string", "x-mcp-header": h} for n, h in (("a", "X"), ("b", "x"))}},
        {"$defs": {"a": {"type": "string", "x-mcp-header": "A"}}},
        {"anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]},
    ],
)
def test_what_the_official_sdk_finds_unfit_for_a_header_is_unfit_here(schema: dict[str, Any]) -> None:
    assert inbound.find_invalid_x_mcp_header(schema) is not None
    with pytest.raises(request_meta.HeaderMirrorError):
        request_meta.find_mirrored_arguments(schema)
