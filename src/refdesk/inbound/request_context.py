"""Authenticated context of an HTTP request, and its trace from headers or from `_meta`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refdesk.calls import Caller
from refdesk.inbound.asgi import Headers
from refdesk.telemetry import Trace, read_trace, set_current_span


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


def read_trace_headers(headers: Headers) -> Trace | None:
    """Return the caller's span from the W3C trace headers."""
    parent = headers.get(b"traceparent")
    return read_trace(parent, headers.get(b"tracestate")) if parent else None


def enter_caller_trace(context: RequestContext, params: Mapping[str, Any]) -> RequestContext:
    """Return the context with the trace in `_meta`, which takes precedence over the headers.

    Also makes the caller's span the parent of everything the current task does.
    """
    meta = params.get("_meta")
    if isinstance(meta, dict) and "traceparent" in meta:
        trace = read_trace(meta["traceparent"], meta.get("tracestate"))
        if trace is not None:
            context = context._replace(trace_id=trace.trace_id, parent=trace)
    set_current_span(context.parent)
    return context
