"""The MCP server: one dispatcher for all transports and protocol revisions."""
