"""Authenticated context of an HTTP request."""

from __future__ import annotations

from typing import NamedTuple

from refdesk.calls import Caller
from refdesk.telemetry import Trace


class RequestContext(NamedTuple):
    """Caller, trace and toolsets of a request. A named tuple, because one is created per request."""

    caller: Caller
    trace_id: str
    toolsets: frozenset[str] | None = None
    parent: Trace | None = None
    """The caller's span, if it sent a `traceparent`."""
    credential: str | None = None
    """The key or token of the request."""

    def __repr__(self) -> str:
        """Leave out the credential."""
        return f"RequestContext({self.caller!r}, trace_id={self.trace_id!r}, toolsets={self.toolsets!r})"
