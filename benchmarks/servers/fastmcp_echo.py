"""FastMCP with JSON answers, in an environment of its own. The tool is a coroutine, so that no thread is needed."""

from __future__ import annotations

from fastmcp import FastMCP
from listening import serve_app


async def echo(text: str) -> str:
    """Says a text back."""
    return text


if __name__ == "__main__":
    server = FastMCP("echo")
    server.tool(echo, output_schema=None)
    serve_app(server.http_app(json_response=True))
