"""Transports: stdio, Streamable HTTP, SSE and WebSocket."""

from __future__ import annotations

from collections.abc import Callable

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Transport, TransportListener


def open_transport(
    name: str,
    settings: McpServerConfig,
    listener: TransportListener,
    *,
    on_stderr_line: Callable[[str], None] | None = None,
) -> Transport:
    """Return the transport that the settings select. Creating it starts a server process, which closing it ends.

    `on_stderr_line` receives each line that a server process writes to stderr. Transports are imported on first use
    because their libraries are slow to load.
    """
    match settings.kind:
        case "stdio":
            from refdesk.downstream.transports.stdio import StdioTransport

            return StdioTransport(name, settings, listener, on_stderr_line=on_stderr_line)
        case "http":
            from refdesk.downstream.transports.streamable import StreamableHttpTransport

            return StreamableHttpTransport(name, settings, listener)
        case "sse":
            from refdesk.downstream.transports.sse import SseTransport

            return SseTransport(name, settings, listener)
        case "websocket":
            from refdesk.downstream.transports.websocket import WebSocketTransport

            return WebSocketTransport(name, settings, listener)
