"""Everything public for clients of other MCP servers: the client, its errors, and the types of messages."""

from refdesk.downstream.client.connecting import connect
from refdesk.downstream.client.conversion_routing import Route, ServerDocument, route, route_export
from refdesk.downstream.client.error_mapping import ERRORS, AppError, map_error
from refdesk.downstream.client.mcp_client import Client, ToolResult
from refdesk.downstream.client.messages import (
    ClientCapabilities,
    Implementation,
    InitializeParams,
    InitializeResult,
    JsonRpcError,
    JsonRpcFailure,
    JsonRpcNotification,
    JsonRpcRequest,
    JsonRpcResponse,
    JsonRpcSuccess,
    ServerCapabilities,
    ServerInfo,
    ToolCallParams,
    ToolCallResult,
    ToolDefinition,
)
from refdesk.downstream.connection.connection import Status

__all__ = [
    "ERRORS",
    "AppError",
    "Client",
    "ClientCapabilities",
    "Implementation",
    "InitializeParams",
    "InitializeResult",
    "JsonRpcError",
    "JsonRpcFailure",
    "JsonRpcNotification",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "JsonRpcSuccess",
    "Route",
    "ServerCapabilities",
    "ServerDocument",
    "ServerInfo",
    "Status",
    "ToolCallParams",
    "ToolCallResult",
    "ToolDefinition",
    "ToolResult",
    "connect",
    "map_error",
    "route",
    "route_export",
]
