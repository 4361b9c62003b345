"""Interface for recording spans: one per call, with a child for each request to a dependency.

Independent of any tracing library. `otlp` implements it. Without an implementation, spans cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from refdesk.calls import Call

Attributes = Mapping[str, str | int]


class CallSpan(Protocol):
    """The span of a call in progress."""

    def mark_failed(self, kind: str, code: int | None = None) -> None:
        """Mark the call as failed with an error type, and with its code on the wire if it has one."""
        ...

    def clear_name(self) -> None:
        """Replace the span's name, because the method doesn't exist."""
        ...


class Spans(Protocol):
    """Span recorder."""

    def call(self, call: Call) -> AbstractContextManager[CallSpan]:
        """Record a call, as a child of the caller's span if that is known."""
        ...

    def child(self, name: str, attributes: Attributes) -> AbstractContextManager[None]:
        """Record a child of the current span. An exception marks it as failed."""
        ...


_spans: ContextVar[Spans | None] = ContextVar("refdesk.spans", default=None)
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
def record_to(spans: Spans) -> Iterator[None]:
    """Set the recorder for `child_span` in the block."""
    token = _spans.set(spans)
    try:
        yield
    finally:
        _spans.reset(token)
