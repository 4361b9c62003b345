"""W3C trace context, read from callers and passed to dependencies, and the current span recorder.

Works without a tracing library, which only the recorder in `otlp` needs. https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from random import getrandbits
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from refdesk.telemetry.otlp import OtlpSpans

KNOWN_FLAGS = 0x03
"""Sampled, and random trace id. Other bits are undefined and aren't propagated."""

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
"""Propagated unchanged if it's valid in a header. The specification limits it to 512 characters."""


class Trace(NamedTuple):
    """A span in a trace: the parent of what happens next."""

    trace_id: str
    span_id: str
    flags: str = "00"
    state: str = ""

    @property
    def traceparent(self) -> str:
        """The value of the header, and of the field in MCP's `_meta`."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.flags, 16) & KNOWN_FLAGS:02x}"


_trace_id: ContextVar[str] = ContextVar("refdesk.trace_id", default="")
"""Trace id of the current call."""

_current_span: ContextVar[Trace | None] = ContextVar("refdesk.trace", default=None)
"""The current span: the caller's, or ours below it. None for a call without one, unless spans are recorded."""


def read_trace(traceparent: Any, tracestate: Any = None) -> Trace | None:
    """Parse the trace context of a header or of `_meta`. Malformed values are ignored."""
    match = _TRACEPARENT.fullmatch(_to_text(traceparent))
    if match is None or (match["more"] is not None and match["version"] == "00"):
        return None
    state = _to_text(tracestate)
    return Trace(match["trace"], match["span"], match["flags"], state if _TRACESTATE.fullmatch(state) else "")


def is_trace_id(text: str) -> bool:
    """Return whether a text is a W3C trace id. Other services may use other formats."""
    return _TRACE_ID.fullmatch(text) is not None


current_trace_id = _trace_id.get
"""Return the trace id of the current call, empty outside of a call."""

current_span = _current_span.get


set_current_span = _current_span.set
"""Set the current span of this task, which must end with the call.

None must be set too, because the span of the connection's previous request may still be there.
"""


def outgoing_headers() -> dict[str, str]:
    """Return trace headers for a request to a dependency.

    If nothing is recorded here, the caller's span is propagated. A trace that starts here without being recorded is
    sent as not sampled, the specification's default for leaving the decision open.
    """
    span = _current_span.get()
    if span is None:
        trace_id = _trace_id.get()
        if not is_trace_id(trace_id):
            return {}
        # An id of zeros would be invalid.
        span = Trace(trace_id, f"{getrandbits(64) or 1:016x}")
    headers = {"traceparent": span.traceparent}
    if span.state:
        headers["tracestate"] = span.state
    return headers


enter_trace = _trace_id.set
leave_trace = _trace_id.reset
"""Set and reset the trace id for logs and outgoing requests. Bound methods, because they run for every call."""


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return value.strip(" \t") if isinstance(value, str) else ""


# Recording

Attributes = Mapping[str, str | int]


_spans: ContextVar[OtlpSpans | None] = ContextVar("refdesk.spans", default=None)
"""The recorder of the current call, so that it needn't be passed down."""

_NULL_SPAN = nullcontext()


def child_span(dependency: str, operation: str, attributes: Attributes | None = None) -> AbstractContextManager[None]:
    """Record a request to a dependency: `with child_span("r2r", "search"):`. Must not include argument values."""
    spans = _spans.get()
    if spans is None:
        return _NULL_SPAN
    span_attributes = {"peer.service": dependency, "refdesk.operation": operation, **(attributes or {})}
    return spans.child(f"{dependency} {operation}", span_attributes)


@contextmanager
def use_span(span: Trace, spans: OtlpSpans) -> Iterator[None]:
    """Make a span the current one in the block, and record its children with `spans`."""
    span_token, spans_token = _current_span.set(span), _spans.set(spans)
    try:
        yield
    finally:
        _spans.reset(spans_token)
        _current_span.reset(span_token)
