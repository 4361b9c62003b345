"""A listening socket on a free loopback port, told to the benchmark on standard output, and plain uvicorn behind it."""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn

BACKLOG = 2048


def serve_app(app: Any) -> None:
    """Serve an ASGI application with one worker on uvloop and httptools, until told to stop."""
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
    announce(listener)
    config = uvicorn.Config(app, loop="uvloop", http="httptools", ws="none", access_log=False, log_level="warning")
    uvicorn.Server(config).run(sockets=[listener])


def announce(listener: socket.socket) -> None:
    """Tell whoever started this process where it listens."""
    print(listener.getsockname()[1], flush=True)
