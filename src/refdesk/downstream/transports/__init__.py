"""Transports: stdio, Streamable HTTP, SSE and WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Transport, TransportListener


def open_transport(
    name: str,
    settings: McpServerConfig,
    listener: TransportListener,
    *,
    on_stderr_line: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[Transport]:
    """Open the transport that the settings select. Entering it raises ServerAway if the server is unreachable.

    `on_stderr_line` receives each line that a server process writes to stderr. Transports are imported on first use
    because their libraries are slow to load.
    """
    match settings.kind:
        case "stdio":
            from refdesk.downstream.transports.stdio import open_stdio

            return open_stdio(name, settings, listener, on_stderr_line=on_stderr_line)
        case "http":
            from refdesk.downstream.transports.streamable import open_streamable

            return open_streamable(name, settings, listener)
        case "sse":
            from refdesk.downstream.transports.sse import open_sse

            return open_sse(name, settings, listener)
        case "websocket":
            from refdesk.downstream.transports.websocket import open_websocket

            return open_websocket(name, settings, listener)
