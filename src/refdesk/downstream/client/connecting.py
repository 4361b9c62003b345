"""`refdesk.connect`: resolves a target and connects a client to it."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from refdesk.downstream.client.handlers import (
    Handlers,
    OnChange,
    OnElicitation,
    OnLog,
    OnProgress,
    OnRoots,
    OnSampling,
)
from refdesk.downstream.client.mcp_client import Client
from refdesk.downstream.client.targets import Target, find_target, read_defaults
from refdesk.downstream.connection.connection import Status

# A library doesn't log until the program configures logging.
logging.getLogger("refdesk").addHandler(logging.NullHandler())


@asynccontextmanager
async def connect(
    target: Target,
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109  per call, and the server is notified when it expires
    list_timeout: float | None = None,
    connect_timeout: float | None = None,
    connect_tries: int | None = None,
    protocol_version: str | None = None,
    tool_cache_seconds: float | None = None,
    require_tools: bool = True,
    on_sampling: OnSampling | None = None,
    on_elicitation: OnElicitation | None = None,
    on_roots: OnRoots | None = None,
    on_progress: OnProgress | None = None,
    on_log: OnLog | None = None,
    on_change: OnChange | None = None,
    on_status: Callable[[Status], None] | None = None,
    log_level: str = "info",
    environ: Mapping[str, str] = os.environ,
) -> AsyncIterator[Client]:
    """Connect to one MCP server for the duration of the block.

    `target` is a URL, a command (a string or a list of words), servers as in other clients' files, or a configuration.
    Missing options come from the target, or from `MCP_PROTOCOL_VERSION` and `MCP_TOOL_CACHE_TTL` (milliseconds). `env`
    and `headers` are added to those of the target.

    Raises ConfigError for an invalid target, ServerAway if all connection attempts fail, and ServerLacks if tools are
    required and the server has none.
    """
    overrides: dict[str, Any] = {"env": env, "cwd": cwd, "headers": headers, "connect_tries": connect_tries}
    seconds = {"call": timeout, "capabilities": list_timeout, "connect": connect_timeout}
    overrides |= {f"{phase}_timeout_seconds": value for phase, value in seconds.items()}
    resolved, defaults = find_target(target, name, overrides, environ), read_defaults(environ)
    ttl = resolved.settings.cache_ttl_seconds if tool_cache_seconds is None else tool_cache_seconds
    client = Client(
        resolved.name,
        resolved.settings,
        Handlers(on_sampling, on_elicitation, on_roots, on_progress, on_log, on_change),
        protocol_version=protocol_version or defaults.protocol_version,
        tool_cache_seconds=defaults.tool_cache_ttl_seconds if ttl is None else ttl,
        require_tools=require_tools,
        on_status=on_status,
    )
    async with client.run(log_level):
        yield client
