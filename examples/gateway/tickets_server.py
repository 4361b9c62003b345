"""A small MCP server over HTTP: tickets, with a search of its own. Its argument is the port."""

from __future__ import annotations

import sys

from mcp.server.mcpserver import MCPServer

TICKETS = {
    "T-17": "The nightly backups failed because the disk was full; it has been doubled.",
    "T-18": "The login page is slow in the morning.",
}

server = MCPServer("tickets", log_level="ERROR")


@server.tool()
async def search(query: str) -> list[dict[str, str]]:
    """Find tickets that have a word of the query."""
    asked = set(query.lower().split())
    return [
        {"title": number, "text": text, "url": f"https://tickets.example.com/{number}"}
        for number, text in TICKETS.items()
        if asked & set(text.lower().split())
    ]


@server.tool()
async def count() -> int:
    """How many tickets there are."""
    return len(TICKETS)


if __name__ == "__main__":
    server.run("streamable-http", port=int(sys.argv[1]))
