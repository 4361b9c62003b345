"""Tools, resources and prompts exposed to MCP clients, one toolset per module."""
