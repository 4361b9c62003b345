"""`refdesk.connect`: a standalone client for any MCP server."""
