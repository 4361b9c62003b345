"""Other MCP servers behind this desk: a client of them that survives what they do, and a fleet of such clients."""
