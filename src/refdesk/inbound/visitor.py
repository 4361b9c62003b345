"""Who is at the door, and what they asked for in the address."""

from __future__ import annotations

from typing import NamedTuple

from refdesk.calls import Caller
from refdesk.telemetry import Trace


class Visitor(NamedTuple):
    """What the door has found out about a request. A tuple: one is made for every request."""

    caller: Caller
    trace_id: str
    toolsets: frozenset[str] | None = None
    parent: Trace | None = None
    """The caller's own span, if it came with a `traceparent`."""


VISITOR = "refdesk.visitor"
"""Where it stands in the ASGI scope of a request that the SDK answers."""
