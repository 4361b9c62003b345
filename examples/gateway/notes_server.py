"""A small MCP server over standard input and output: notes, with a search of its own."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

NOTES = {
    "Backups": "Backups run every night at two and are kept for thirty days.",
    "Deployments": "A deployment starts when a tag is pushed, and takes about four minutes.",
}

server = MCPServer("notes", log_level="ERROR")


@server.tool()
async def search(query: str) -> list[dict[str, str]]:
    """Find notes that have a word of the query."""
    asked = set(query.lower().split())
    return [{"title": title, "text": text} for title, text in NOTES.items() if asked & set(text.lower().split())]


if __name__ == "__main__":
    server.run("stdio")
