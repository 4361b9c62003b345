"""W3C trace context: which trace a call is in, how a caller says so, and how we tell those whom we ask in turn.

It works without any tracing library; `spans` is what records. https://www.w3.org/TR/trace-context/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from random import getrandbits
from typing import Any, NamedTuple

KNOWN_FLAGS = 0x03
"""Sampled, and random trace id; what other bits mean is not settled, so they are not passed on."""

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_TRACEPARENT = re.compile(
    r"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})"
    r"-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_TRACESTATE = re.compile(r"[\x20-\x7e]{1,512}")
"""Passed on as it is, if it can stand in a header; the specification asks for no more than 512 characters."""


class Trace(NamedTuple):
    """A place in a trace: the span that whatever happens next belongs under."""

    trace_id: str
    span_id: str
    flags: str = "00"
    state: str = ""

    @property
    def traceparent(self) -> str:
        """As it stands in a header, or in MCP's `_meta`."""
        return f"00-{self.trace_id}-{self.span_id}-{int(self.flags, 16) & KNOWN_FLAGS:02x}"


_trace_id: ContextVar[str] = ContextVar("refdesk.trace_id", default="")
"""Of the call that is being answered."""

_place: ContextVar[Trace | None] = ContextVar("refdesk.trace", default=None)
"""The span of the caller, or ours under it; unknown for a call that came without one, unless spans are recorded."""


def read_trace(traceparent: Any, tracestate: Any = None) -> Trace | None:
    """What a caller says of its trace, in a header or in `_meta`; what is malformed counts as not there."""
    match = _TRACEPARENT.fullmatch(_text(traceparent))
    if match is None or (match["more"] is not None and match["version"] == "00"):
        return None
    state = _text(tracestate)
    return Trace(match["trace"], match["span"], match["flags"], state if _TRACESTATE.fullmatch(state) else "")


def is_trace_id(text: str) -> bool:
    """Whether it can be one of W3C's; other services may name their traces in other ways."""
    return _TRACE_ID.fullmatch(text) is not None


def current_trace_id() -> str:
    """The trace of the call that is being answered; nothing outside of one."""
    return _trace_id.get()


def current_place() -> Trace | None:
    """The innermost span that is known here."""
    return _place.get()


def follow(place: Trace | None) -> None:
    """From now on this task works under a span, or under none; to be called in a task that ends with the call.

    None is to be said, too: what a connection's earlier request was under may still be here.
    """
    _place.set(place)


def outgoing_headers() -> dict[str, str]:
    """Headers for a request to something behind us, so that what it does is found in the caller's trace.

    Where nothing is recorded here, the caller's own span is handed on. A trace that begins here without being recorded
    goes out as not sampled: that is the default that the specification sets for whoever leaves the decision open.
    """
    place = _place.get()
    if place is None:
        trace_id = _trace_id.get()
        if not is_trace_id(trace_id):
            return {}
        place = Trace(trace_id, new_span_id())
    headers = {"traceparent": place.traceparent}
    if place.state:
        headers["tracestate"] = place.state
    return headers


def new_span_id() -> str:
    """Sixteen hexadecimal digits, not all of them zero."""
    return f"{getrandbits(64) or 1:016x}"


enter_trace = _trace_id.set
leave_trace = _trace_id.reset
"""What is logged and asked for in between carries this trace id. The bare functions: they are on every call's path."""


@contextmanager
def placed(place: Trace) -> Iterator[None]:
    """While it is entered, this is the innermost span."""
    token = _place.set(place)
    try:
        yield
    finally:
        _place.reset(token)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return value.strip(" \t") if isinstance(value, str) else ""
