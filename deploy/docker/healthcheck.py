"""Whether the desk in this container answers: exit code 0 or 1. Only Python itself is needed, so it starts quickly."""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection, HTTPException

SECONDS = 4
"""Less than the five after which the container's own clock would end the check without a word."""


def complaint(port: int, *, seconds: float = SECONDS) -> str | None:
    """What is wrong with the desk on this port of loopback; None while it answers."""
    connection = HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"no answer on port {port}: {error}"
    finally:
        connection.close()
    return None if status == 200 else f"/health answers {status}"


if __name__ == "__main__":
    sys.exit(complaint(int(os.environ.get("MCP_SERVER_PORT") or 8001)))
