"""The ways to a server: standard input and output, Streamable HTTP, SSE, WebSocket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.transports.base import Transport, TransportListener


def open_transport(
    name: str,
    settings: McpServerConfig,
    listener: TransportListener,
    *,
    heard_stderr: Callable[[str], None] | None = None,
) -> AbstractAsyncContextManager[Transport]:
    """The way that the settings name; entering raises ServerAway when the server cannot be reached.

    What the process of a server writes on standard error is told to `heard_stderr`. Each way is imported when it is
    first used: the libraries of the others take long to load.
    """
    match settings.kind:
        case "stdio":
            from refdesk.downstream.transports.stdio import open_stdio

            return open_stdio(name, settings, listener, heard_stderr=heard_stderr)
        case "http":
            from refdesk.downstream.transports.streamable import open_streamable

            return open_streamable(name, settings, listener)
        case "sse":
            from refdesk.downstream.transports.sse import open_sse

            return open_sse(name, settings, listener)
        case "websocket":
            from refdesk.downstream.transports.websocket import open_websocket

            return open_websocket(name, settings, listener)
