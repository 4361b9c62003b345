"""A server made with the official SDK: `python -m tests.downstream.servers.official stdio|http PORT`."""

from __future__ import annotations

import socket
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("official", log_level="ERROR")


class Name(BaseModel):
    """What is asked for."""

    name: str


@server.tool()
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
async def steps(count: int, ctx: Context[object]) -> str:
    """Tell of some steps."""
    for step in range(1, count + 1):
        await ctx.report_progress(step, count)
    return "done"


@server.tool()
async def greet(ctx: Context[object]) -> str:
    """Ask for a name."""
    answer = await ctx.elicit("Who?", Name)
    return f"Hello {answer.data.name}" if answer.action == "accept" else answer.action


def main(door: str, port: str = "0") -> None:
    """Serve until ended; the port is printed once it is open."""
    if door == "stdio":
        server.run("stdio")
        return
    listening = socket.create_server(("127.0.0.1", int(port)))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(server.streamable_http_app(), log_level="error")
    uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
