"""Types of JSON-RPC and MCP messages. At runtime they are plain dictionaries, as received or sent.

Annotations are evaluated here, unlike in other modules, so that the optional keys are known at runtime.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

RequestId = str | int

# JSON-RPC


class JsonRpcRequest(TypedDict):
    """Request. The client's own ids are UUIDs of version 4."""

    jsonrpc: Literal["2.0"]
    id: RequestId
    method: str
    params: NotRequired[Mapping[str, Any]]


class JsonRpcNotification(TypedDict):
    """Message without a response, and therefore without an id."""

    jsonrpc: Literal["2.0"]
    method: str
    params: NotRequired[Mapping[str, Any]]


class JsonRpcError(TypedDict):
    """The `error` of a failed request. `map_error` accepts it."""

    code: int
    message: str
    data: NotRequired[Any]


class JsonRpcSuccess(TypedDict):
    """Response with a result."""

    jsonrpc: Literal["2.0"]
    id: RequestId
    result: Mapping[str, Any]


class JsonRpcFailure(TypedDict):
    """Response with an error. The id is null if the request's couldn't be read."""

    jsonrpc: Literal["2.0"]
    id: RequestId | None
    error: JsonRpcError


JsonRpcResponse = JsonRpcSuccess | JsonRpcFailure


# Handshake


class Implementation(TypedDict):
    """Name and version that a client or server introduces itself with."""

    name: str
    version: str
    title: NotRequired[str]


ServerInfo = Implementation


class ListCapability(TypedDict, total=False):
    """Whether changes of a list are announced, and of single resources."""

    listChanged: bool
    subscribe: bool


class ClientCapabilities(TypedDict, total=False):
    """Requests that a client answers."""

    roots: ListCapability
    sampling: Mapping[str, Any]
    elicitation: Mapping[str, Any]
    experimental: Mapping[str, Any]


class ServerCapabilities(TypedDict, total=False):
    """What a server offers. A missing key means that it doesn't."""

    tools: ListCapability
    prompts: ListCapability
    resources: ListCapability
    logging: Mapping[str, Any]
    completions: Mapping[str, Any]
    experimental: Mapping[str, Any]


class InitializeParams(TypedDict):
    """Parameters of `initialize`."""

    protocolVersion: str
    capabilities: ClientCapabilities
    clientInfo: Implementation


class InitializeResult(TypedDict):
    """Result of `initialize`."""

    protocolVersion: str
    capabilities: ServerCapabilities
    serverInfo: ServerInfo
    instructions: NotRequired[str]


# Tools


class ToolDefinition(TypedDict):
    """Tool in the result of `tools/list`."""

    name: str
    inputSchema: Mapping[str, Any]
    title: NotRequired[str]
    description: NotRequired[str]
    outputSchema: NotRequired[Mapping[str, Any]]
    annotations: NotRequired[Mapping[str, Any]]
    _meta: NotRequired[Mapping[str, Any]]


class ToolCallParams(TypedDict):
    """Parameters of `tools/call`."""

    name: str
    arguments: NotRequired[Mapping[str, Any]]
    _meta: NotRequired[Mapping[str, Any]]


class ToolCallResult(TypedDict):
    """Result of `tools/call`."""

    content: list[Mapping[str, Any]]
    structuredContent: NotRequired[Any]
    isError: NotRequired[bool]
    _meta: NotRequired[Mapping[str, Any]]
