"""The MCP SDK's low-level server alone, set up for speed: JSON answers, and the schema hook that spares it a listing
of all tools on every call."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from listening import serve_app
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
ECHO = types.Tool(name="echo", description="Says a text back.", input_schema=SCHEMA)


async def list_tools(
    ctx: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    """The one tool."""
    return types.ListToolsResult(tools=[ECHO])


async def call_tool(ctx: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    """The text, unchanged."""
    text = (params.arguments or {})["text"]
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)])


async def health(request: Request) -> Response:
    """For the start-up benchmark."""
    return PlainTextResponse("ok")


def application() -> Any:
    """The server as an ASGI application."""
    server: Server[Any] = Server(
        "echo",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema={"echo": SCHEMA}.get,
    )
    return server.streamable_http_app(json_response=True, custom_starlette_routes=[Route("/health", health)])


if __name__ == "__main__":
    serve_app(application())
