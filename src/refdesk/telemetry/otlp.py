"""Spans by OpenTelemetry, sent to a collector over OTLP/HTTP. Imported only where it is switched on.

The provider is the desk's own: what the rest of the process does with OpenTelemetry is left alone. Spans wait in a
bounded queue for a thread that sends them; when it is full they are dropped, and no call waits for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from threading import Thread

from anyio.to_thread import run_sync
from opentelemetry import context as otel_context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from refdesk.calls import Call
from refdesk.config import OpenTelemetryConfig
from refdesk.errors import RefdeskError
from refdesk.telemetry.spans import Attributes, recorded
from refdesk.telemetry.traces import Trace, current_place, is_trace_id, placed
from refdesk.version import __version__

PATH = "/v1/traces"
"""Where a collector takes traces, below its address."""

MAX_WAITING_SPANS = 2048
"""A few megabytes at most; at a thousand spans a second, two seconds of a collector that does not answer."""

MAX_NAME_CHARACTERS = 200


class OtlpSpans:
    """Records the spans of calls and of what they cause."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._ids = _Ids()
        self._provider = TracerProvider(resource=_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING_SPANS))
        self._tracer = self._provider.get_tracer("refdesk", __version__)

    @contextmanager
    def call(self, call: Call) -> Iterator[OtlpCallSpan]:
        """The span around a call, named and described as OpenTelemetry's conventions for MCP have it."""
        caller = current_place()
        attributes = _attributes(call)
        if caller is None and is_trace_id(call.trace_id):
            self._ids.begin(call.trace_id)
        elif caller is None or caller.trace_id != call.trace_id:
            attributes["refdesk.trace_id"] = _sendable(call.trace_id)
        span = self._tracer.start_span(
            _name(call), _context_of(caller), kind=SpanKind.SERVER, attributes=attributes, record_exception=False
        )
        with _entered(span), recorded(self):
            yield OtlpCallSpan(span)

    @contextmanager
    def child(self, name: str, attributes: Attributes) -> Iterator[None]:
        """A span under the one that is open here; of an error only its type, for its words may quote anything."""
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=dict(attributes), record_exception=False)
        with _entered(span):
            try:
                yield
            except BaseException as error:
                OtlpCallSpan(span).failed(type(error).__name__, error.code if isinstance(error, RefdeskError) else None)
                raise

    def close(self, seconds: float) -> None:
        """Send what waits, and block for so long at most: a collector that is gone must not keep us from ending."""
        closing = Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(seconds)
        if closing.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # unannotated


class OtlpCallSpan:
    """A span that can be told how it ended."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def failed(self, kind: str, code: int | None = None) -> None:
        """Mark it as failed, with the error's type and code and none of its words."""
        self._span.set_attribute("error.type", kind)
        if code is not None:
            self._span.set_attribute("rpc.response.status_code", str(code))
        self._span.set_status(Status(StatusCode.ERROR))

    def unnamed(self) -> None:
        """Take back the name that a stranger has made up."""
        self._span.update_name("unknown")
        self._span.set_attribute("mcp.method.name", "unknown")


class _Ids(RandomIdGenerator):
    """Random ids; but a trace that begins with a call has the id that the call has already."""

    def __init__(self) -> None:
        self._next: int | None = None

    def begin(self, trace_id: str) -> None:
        """The root span that is started next, at once and in this thread, is of this trace."""
        self._next = int(trace_id, 16)

    def generate_trace_id(self) -> int:
        given, self._next = self._next, None
        return super().generate_trace_id() if given is None else given


@asynccontextmanager
async def open_otlp(settings: OpenTelemetryConfig, *, closing_seconds: float) -> AsyncIterator[OtlpSpans]:
    """Spans that are sent in the background; what waits at the end is still sent."""
    spans = OtlpSpans(OTLPSpanExporter(endpoint=_endpoint(settings)))
    try:
        yield spans
    finally:
        await run_sync(spans.close, closing_seconds, abandon_on_cancel=True)


def _endpoint(settings: OpenTelemetryConfig) -> str | None:
    """The whole address; None leaves it to OpenTelemetry's own variables."""
    if settings.endpoint is None:
        return None
    address = settings.endpoint.get_secret_value().rstrip("/")
    return address if address.endswith(PATH) else f"{address}{PATH}"


def _resource() -> Resource:
    """Who we are, unless OpenTelemetry's own variables say otherwise."""
    named = Resource.create()
    ours = {SERVICE_VERSION: __version__}
    if str(named.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = "refdesk"
    return named.merge(Resource(ours))


def _name(call: Call) -> str:
    # A resource's URI would make as many names as there are resources.
    target = call.target if call.method in ("tools/call", "prompts/get") else ""
    return _sendable(f"{call.method} {target}".rstrip())


def _attributes(call: Call) -> dict[str, str]:
    """Names and no values: what was asked for, never with which arguments."""
    about = {"mcp.method.name": _sendable(call.method), "refdesk.tenant": _sendable(call.caller.tenant)}
    target = _sendable(call.target)
    if call.method == "tools/call":
        about |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": target}
    elif call.method == "prompts/get":
        about["gen_ai.prompt.name"] = target
    elif target:
        about["mcp.resource.uri"] = target
    return about


def _sendable(text: str) -> str:
    """Short, and Unicode: one text that cannot be encoded would cost the whole batch that it is sent in."""
    return text[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()


def _context_of(caller: Trace | None) -> otel_context.Context:
    """The caller's span as OpenTelemetry knows it; nothing that the process has open besides counts."""
    parent: Span = INVALID_SPAN
    if caller is not None:
        parent = NonRecordingSpan(
            SpanContext(
                int(caller.trace_id, 16),
                int(caller.span_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(int(caller.flags, 16)),
                trace_state=TraceState.from_header([caller.state]) if caller.state else None,
            )
        )
    return set_span_in_context(parent, otel_context.Context())


@contextmanager
def _entered(span: Span) -> Iterator[None]:
    """Make a span the innermost one, for OpenTelemetry and for `outgoing_headers`, and end it."""
    known = span.get_span_context()
    place = Trace(
        f"{known.trace_id:032x}", f"{known.span_id:016x}", f"{known.trace_flags:02x}", known.trace_state.to_header()
    )
    token = otel_context.attach(set_span_in_context(span))
    try:
        with placed(place):
            yield
    finally:
        otel_context.detach(token)
        span.end()
