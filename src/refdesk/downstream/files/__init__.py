"""Server definition files of Refdesk and of other MCP clients, and the servers' log files."""
