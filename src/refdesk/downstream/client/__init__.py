"""`refdesk.connect`: a client of any MCP server, for programs that have no desk."""
