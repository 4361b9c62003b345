"""OpenTelemetry spans, exported over OTLP/HTTP. Only imported if enabled.

Uses its own provider, so the rest of the process can use OpenTelemetry independently. A thread exports the spans from a
bounded queue. When it's full, spans are dropped, and no call waits.
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
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from refdesk.calls import Call, InputRequired
from refdesk.config.models import OpenTelemetryConfig
from refdesk.errors import MethodNotFound, RefdeskError
from refdesk.telemetry.traces import Attributes, Trace, current_span, is_trace_id, use_span
from refdesk.version import __version__

PATH = "/v1/traces"
"""Path of a collector's traces endpoint."""

MAX_WAITING_SPANS = 2048
"""A few megabytes at most. At a thousand spans per second, it bridges two seconds without the collector."""

MAX_NAME_CHARACTERS = 200


class OtlpSpans:
    """Records the spans of calls and of their requests to dependencies."""

    def __init__(self, exporter: OTLPSpanExporter) -> None:
        self._exporter = exporter
        self._ids = _TraceIdGenerator()
        self._provider = TracerProvider(resource=_build_resource(), id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=MAX_WAITING_SPANS))
        self._tracer = self._provider.get_tracer("refdesk", __version__)

    @contextmanager
    def call(self, call: Call) -> Iterator[Span]:
        """Record a call with name and attributes of OpenTelemetry's conventions for MCP."""
        caller = current_span()
        # Names, never argument values.
        attributes = {"mcp.method.name": _truncate(call.method), "refdesk.tenant": _truncate(call.caller.tenant)}
        name, target = call.method, _truncate(call.target)
        if call.method == "tools/call":
            attributes |= {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": target}
        elif call.method == "prompts/get":
            attributes["gen_ai.prompt.name"] = target
        elif target:
            attributes["mcp.resource.uri"] = target
        if call.method in ("tools/call", "prompts/get"):
            # Resource URIs would make too many different span names.
            name = f"{name} {call.target}".rstrip()
        if caller is None and is_trace_id(call.trace_id):
            self._ids.next_trace_id = int(call.trace_id, 16)
        elif caller is None or caller.trace_id != call.trace_id:
            attributes["refdesk.trace_id"] = _truncate(call.trace_id)
        span = self._tracer.start_span(
            _truncate(name), _build_context(caller), SpanKind.SERVER, attributes=attributes, record_exception=False
        )
        with self._enter(span):
            try:
                yield span
            except InputRequired:
                raise
            except BaseException as error:
                if isinstance(error, MethodNotFound):
                    # The name is derived from the unknown method.
                    span.update_name("unknown")
                    span.set_attribute("mcp.method.name", "unknown")
                self._mark_error(span, error)
                raise

    @contextmanager
    def child(self, name: str, attributes: Attributes) -> Iterator[None]:
        """Record a child of the current span.

        Of an error only the type is recorded, since its message may quote arguments.
        """
        span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=dict(attributes), record_exception=False)
        with self._enter(span):
            try:
                yield
            except BaseException as error:
                self._mark_error(span, error)
                raise

    @contextmanager
    def _enter(self, span: Span) -> Iterator[None]:
        """Make a span the current one, for OpenTelemetry and for `outgoing_headers`, and end it."""
        span_context = span.get_span_context()
        current = Trace(
            f"{span_context.trace_id:032x}",
            f"{span_context.span_id:016x}",
            f"{span_context.trace_flags:02x}",
            span_context.trace_state.to_header(),
        )
        token = otel_context.attach(set_span_in_context(span))
        try:
            with use_span(current, self):
                yield
        finally:
            otel_context.detach(token)
            span.end()

    def mark_failed(self, span: Span, kind: str, code: int | None = None) -> None:
        """Mark a span as failed, with the error's type and code but not its message."""
        span.set_attribute("error.type", kind)
        if code is not None:
            span.set_attribute("rpc.response.status_code", str(code))
        span.set_status(Status(StatusCode.ERROR))

    def _mark_error(self, span: Span, error: BaseException) -> None:
        self.mark_failed(span, type(error).__name__, error.code if isinstance(error, RefdeskError) else None)

    def close(self, seconds: float) -> None:
        """Export what is queued, and block for `seconds` at most, even if the collector is gone."""
        closing = Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(seconds)
        if closing.is_alive():
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # unannotated


class _TraceIdGenerator(RandomIdGenerator):
    """Random id generator that reuses the trace id of a call for its root span."""

    def __init__(self) -> None:
        self.next_trace_id: int | None = None
        """Trace id of the next root span, which must be started at once in this thread."""

    def generate_trace_id(self) -> int:
        given, self.next_trace_id = self.next_trace_id, None
        return super().generate_trace_id() if given is None else given


@asynccontextmanager
async def open_otlp(settings: OpenTelemetryConfig, *, closing_seconds: float) -> AsyncIterator[OtlpSpans]:
    """Open an exporter that runs in the background and flushes at the end."""
    endpoint = None  # left to OpenTelemetry's environment variables
    if settings.endpoint is not None:
        endpoint = settings.endpoint.get_secret_value().rstrip("/").removesuffix(PATH) + PATH
    spans = OtlpSpans(OTLPSpanExporter(endpoint=endpoint))
    try:
        yield spans
    finally:
        await run_sync(spans.close, closing_seconds, abandon_on_cancel=True)


def _build_resource() -> Resource:
    """Return the service name and version, unless OpenTelemetry's environment variables set them."""
    resource = Resource.create()
    defaults = {SERVICE_VERSION: __version__}
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        defaults[SERVICE_NAME] = "refdesk"
    return resource.merge(Resource(defaults))


def _truncate(text: str) -> str:
    """Truncate a text and make it valid Unicode. Invalid text would fail the whole batch."""
    return text[:MAX_NAME_CHARACTERS].encode("utf-8", "replace").decode()


def _build_context(caller: Trace | None) -> otel_context.Context:
    """Return a context with the caller's span as parent, ignoring other spans of the process."""
    headers = {"traceparent": caller.traceparent, "tracestate": caller.state} if caller is not None else {}
    return TraceContextTextMapPropagator().extract(headers, otel_context.Context())
