"""Spans, if they are recorded: one for a call, and under it one for every question to something behind us.

This side knows no library. `otlp` records and sends; while it does not, a span is nothing and costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Protocol

from refdesk.calls import Call

Attributes = Mapping[str, str | int]


class CallSpan(Protocol):
    """The span of a call under way."""

    def failed(self, kind: str, code: int | None = None) -> None:
        """The call ended with an error of this type, and this code on the wire if it got there."""
        ...

    def unnamed(self) -> None:
        """What was asked for does not exist, so it is not to name a span either."""
        ...


class Spans(Protocol):
    """Where spans are recorded."""

    def call(self, call: Call) -> AbstractContextManager[CallSpan]:
        """The span around a call, under the caller's own if that is known."""
        ...

    def child(self, name: str, attributes: Attributes) -> AbstractContextManager[None]:
        """A span under the one that is open here; an exception that leaves it marks it as failed."""
        ...


_spans: ContextVar[Spans | None] = ContextVar("refdesk.spans", default=None)
"""Where the call under way is recorded, so that whoever asks something on its behalf needs nothing handed down."""

_NOTHING = nullcontext()


def child_span(dependency: str, operation: str, attributes: Attributes | None = None) -> AbstractContextManager[None]:
    """Around a question to something behind us: `with child_span("r2r", "search"):`. No values of arguments."""
    spans = _spans.get()
    if spans is None:
        return _NOTHING
    about = {"peer.service": dependency, "refdesk.operation": operation, **(attributes or {})}
    return spans.child(f"{dependency} {operation}", about)


@contextmanager
def recorded(spans: Spans) -> Iterator[None]:
    """While it is entered, `child_span` records here."""
    token = _spans.set(spans)
    try:
        yield
    finally:
        _spans.reset(token)
