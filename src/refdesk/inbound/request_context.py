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
    credential: str | None = None
    """The key or token that was presented."""

    def __repr__(self) -> str:
        """Without the credential, which is nobody's to read."""
        return f"Visitor({self.caller!r}, trace_id={self.trace_id!r}, toolsets={self.toolsets!r})"


VISITOR = "refdesk.visitor"
"""Where it stands in the ASGI scope of a request that the SDK answers."""
