"""HTTP probe of a running Refdesk server."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 3.0
"""Response timeout. It is generous, so that a busy server isn't taken for a stopped one."""

MAX_RESPONSE_BYTES = 16_777_216

WILDCARD_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Loopback addresses to connect to, by the wildcard address the server listens on."""


@dataclass(frozen=True, slots=True)
class RunningDesk:
    """The server that answers at an address."""

    name: str
    version: str
    checks: dict[str, Any]
    """State of each component, as reported by `/ready`."""

    @property
    def is_refdesk(self) -> bool:
        """Whether the server is Refdesk."""
        return self.name == "Refdesk"

    @property
    def server_states(self) -> dict[str, Any]:
        """State of each downstream server."""
        downstream = self.checks.get("downstream")
        states = downstream.get("servers") if isinstance(downstream, dict) else None
        return states if isinstance(states, dict) else {}


def probe_desk(url: str) -> RunningDesk | None:
    """Return the server that answers at a URL, or None. A server other than Refdesk has another name or none."""
    about = _get(url, "/")
    if about is None:
        return None
    ready = _get(url, "/ready") or {}
    checks = ready.get("checks")
    name, version = about.get("service"), about.get("version")
    return RunningDesk(str(name or ""), str(version or ""), checks if isinstance(checks, dict) else {})


def _get(url: str, path: str) -> dict[str, Any] | None:
    """Fetch a JSON object: an empty one for any other response, None if there is no connection."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    host = WILDCARD_ADDRESSES.get(parts.hostname or "", parts.hostname or "")
    connection = kind(host, parts.port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        response = json.loads(connection.getresponse().read(MAX_RESPONSE_BYTES))
    except (ValueError, http.client.HTTPException):
        return {}
    except OSError:
        return None
    finally:
        connection.close()
    return response if isinstance(response, dict) else {}
