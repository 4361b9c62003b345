"""Which trace a request is in: its caller's, if it says so in a header or in the message itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refdesk.inbound.asgi import Headers
from refdesk.inbound.request_context import Visitor
from refdesk.telemetry import Trace, follow, read_trace


def trace_in(headers: Headers) -> Trace | None:
    """The caller's place in a trace, by the headers of W3C."""
    parent = headers.get(b"traceparent")
    return read_trace(parent, headers.get(b"tracestate")) if parent else None


def in_trace(visitor: Visitor, params: Mapping[str, Any]) -> Visitor:
    """The visitor in the trace that a message names in its `_meta`, which is nearer to the call than a header is.

    What this task does from now on belongs under the caller's span.
    """
    meta = params.get("_meta")
    if isinstance(meta, dict) and "traceparent" in meta:
        named = read_trace(meta["traceparent"], meta.get("tracestate"))
        if named is not None:
            visitor = visitor._replace(trace_id=named.trace_id, parent=named)
    follow(visitor.parent)
    return visitor
