"""The desk that runs at an address, if one does: what it says of itself, asked over plain HTTP."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SECONDS = 3.0
"""How long a desk may take to answer; one that is busy is not to be taken for one that is not there."""

MOST_ANSWER_BYTES = 16_777_216

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses to listen on that are none to call, and what to call in their place."""


@dataclass(frozen=True, slots=True)
class RunningDesk:
    """What answers at an address."""

    name: str
    version: str
    checks: dict[str, Any]
    """How each part of it is, as `/ready` tells."""

    @property
    def is_refdesk(self) -> bool:
        """Whether it is one of us."""
        return self.name == "Refdesk"


def running_desk(url: str, seconds: float = SECONDS) -> RunningDesk | None:
    """Who answers there; None when nobody does. A server that is something else is one without a name of ours."""
    about = _get(url, "/", seconds)
    if about is None:
        return None
    ready = _get(url, "/ready", seconds) or {}
    checks = ready.get("checks")
    name, version = about.get("service"), about.get("version")
    return RunningDesk(str(name or ""), str(version or ""), checks if isinstance(checks, dict) else {})


def _get(url: str, path: str, seconds: float) -> dict[str, Any] | None:
    """A JSON object, an empty one for any other answer, None for none."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    host = EVERYWHERE.get(parts.hostname or "", parts.hostname or "")
    connection = kind(host, parts.port, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = json.loads(connection.getresponse().read(MOST_ANSWER_BYTES))
    except (ValueError, http.client.HTTPException):
        return {}
    except OSError:
        return None
    finally:
        connection.close()
    return answer if isinstance(answer, dict) else {}
