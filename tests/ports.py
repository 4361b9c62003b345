"""Ports for servers that a test starts later, restarts, or wants to be absent."""

from __future__ import annotations

import random
import socket

PORTS = range(10_000, 32_768)
"""Below the ports that Linux gives to outgoing connections and to listeners without a port of their own: one of those
could take the port of a server that is being restarted."""


def find_free_port() -> int:
    """Return a port of loopback that is free at this moment."""
    while True:
        port = random.SystemRandom().choice(PORTS)  # as `random` may be seeded alike in several test runs
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
