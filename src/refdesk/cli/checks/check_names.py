"""Names and descriptions of the checks, in display order. Imports nothing, as shell completion reads it."""

from __future__ import annotations

CHECKS = {
    "python": "Python, and the extras that are installed",
    "config": "the configuration: where it is, and whether it can be used",
    "data": "the data folder: rights, owner, free space",
    "engine": "the documents and their indexes",
    "locks": "who writes the indexes",
    "embedding": "the model that search by meaning needs",
    "cache": "Redis, where it is used",
    "r2r": "R2R, where it is used",
    "answers": "the model that writes answers, where one is set",
    "servers": "the MCP servers behind the desk",
    "port": "whether a desk runs, or could",
    "console": "the web console",
    "keys": "who may call",
    "clients": "clients that are set up to use the desk",
}
