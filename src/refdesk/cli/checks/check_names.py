"""Names and descriptions of the checks, in display order. Imports nothing, as shell completion reads it."""

from __future__ import annotations

CHECKS = {
    "python": "Python and the installed extras",
    "config": "configuration file and settings",
    "data": "data folder: permissions, owner, free space",
    "engine": "documents and indexes",
    "locks": "processes that write the indexes",
    "embedding": "embedding model",
    "cache": "Redis, if used",
    "r2r": "R2R, if used",
    "answers": "model that writes answers, if set",
    "servers": "MCP servers behind Refdesk",
    "port": "address and port of the server",
    "console": "web console",
    "keys": "API keys and access",
    "clients": "MCP clients configured to use Refdesk",
}
