"""Spans, as a collector on loopback gets them over OTLP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from refdesk.app import open_desk
from refdesk.calls import Answer, Call, Handler, InputRequired, chain
from refdesk.config import types
from refdesk.config.models import Config, OpenTelemetryConfig
from refdesk.errors import EngineError, MethodNotFound, RefdeskError
from refdesk.inbound.http_server import open_http
from refdesk.policy.policies import RecordSpan
from refdesk.telemetry.extras import open_spans
from refdesk.telemetry.metrics import Metrics
from refdesk.telemetry.traces import Trace, child_span, outgoing_headers, read_trace, set_current_span
from tests.telemetry.receiver import Receiver, receiving
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SEARCH = Call("tools/call", {"name": "r2r_search", "arguments": {"query": "the argument"}}, trace_id=TRACE_ID)


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def sending_to(collector: Receiver) -> OpenTelemetryConfig:
    return OpenTelemetryConfig(enabled=True, endpoint=types.Url(collector.url))


def spans_in(collector: Receiver) -> dict[str, Span]:
    """What one batch brought, by the spans' names."""
    posted = collector.next()
    assert posted.path == "/v1/traces"
    assert b"the argument" not in posted.body
    request = ExportTraceServiceRequest.FromString(posted.body)
    return {
        span.name: span for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
    }


def attributes(span: Span) -> dict[str, str]:
    return {pair.key: pair.value.string_value for pair in span.attributes}


async def record(collector: Receiver, handler: Handler, call: Call = SEARCH) -> dict[str, Span]:
    """The spans of one call, whatever becomes of it."""
    async with open_spans(sending_to(collector), closing_seconds=PATIENCE_SECONDS) as spans:
        assert spans is not None
        with suppress(RefdeskError, InputRequired, RuntimeError, asyncio.CancelledError):
            await chain([RecordSpan(spans)], handler)(call)
    return spans_in(collector)


async def answer(call: Call) -> Answer:
    return Answer({"content": []})


async def test_a_call_is_one_span_in_its_own_trace_without_its_arguments(collector: Receiver) -> None:
    spans = await record(collector, answer)
    assert list(spans) == ["tools/call r2r_search"]
    span = spans["tools/call r2r_search"]
    assert span.trace_id.hex() == TRACE_ID
    assert not span.parent_span_id
    assert span.kind == Span.SPAN_KIND_SERVER
    assert attributes(span) == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "r2r_search",
        "refdesk.tenant": "default",
    }


async def test_what_a_call_asks_for_is_below_it_and_is_told_so(collector: Receiver) -> None:
    sent: list[Trace | None] = []
    metrics = Metrics()

    async def asks(call: Call) -> Answer:
        sent.append(read_trace(outgoing_headers()["traceparent"]))
        with metrics.asking("r2r", "search"):
            sent.append(read_trace(outgoing_headers()["traceparent"]))
            with child_span("redis", "get", {"server.port": 6379}):
                sent.append(read_trace(outgoing_headers()["traceparent"]))
        return Answer({"content": []})

    spans = await record(collector, asks)
    call, r2r, redis = spans["tools/call r2r_search"], spans["r2r search"], spans["redis get"]
    assert (r2r.parent_span_id, redis.parent_span_id) == (call.span_id, r2r.span_id)
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE_ID}
    assert r2r.kind == Span.SPAN_KIND_CLIENT
    assert attributes(r2r) == {"peer.service": "r2r", "refdesk.operation": "search"}
    for found, span in zip(sent, (call, r2r, redis), strict=True):
        assert found is not None
        assert (found.trace_id, found.span_id) == (TRACE_ID, span.span_id.hex())
        assert int(found.flags, 16) & 1


async def test_a_call_is_below_its_callers_span(collector: Receiver) -> None:
    headers: dict[str, str] = {}

    async def asks(call: Call) -> Answer:
        headers.update(outgoing_headers())
        return Answer({"content": []})

    async def call_in_trace() -> dict[str, Span]:
        set_current_span(Trace(TRACE_ID, SPAN_ID, "01", "vendor=1"))
        return await record(collector, asks)

    # In a context of its own: that of a test is also that of the tests after it.
    (span,) = (await asyncio.create_task(call_in_trace(), context=copy_context())).values()
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert span.trace_state == headers["tracestate"] == "vendor=1"


async def test_a_caller_that_is_not_sampled_is_not_recorded_and_stays_so(collector: Receiver) -> None:
    async with open_spans(sending_to(collector), closing_seconds=PATIENCE_SECONDS) as spans:
        assert spans is not None

        async def asks(call: Call) -> Answer:
            return Answer({"sent": outgoing_headers()["traceparent"]})

        async def call_unsampled() -> Answer:
            set_current_span(Trace(TRACE_ID, SPAN_ID, "00"))
            return await chain([RecordSpan(spans)], asks)(SEARCH)

        first = await asyncio.create_task(call_unsampled(), context=copy_context())
        await chain([RecordSpan(spans)], asks)(Call("tools/list"))
    assert first.result["sent"].startswith(f"00-{TRACE_ID}-")
    assert first.result["sent"].endswith("-00")
    assert list(spans_in(collector)) == ["tools/list"]


async def test_a_trace_id_of_another_kind_is_an_attribute(collector: Receiver) -> None:
    (span,) = (await record(collector, answer, Call("tools/list", trace_id="their-trace-7"))).values()
    assert attributes(span)["refdesk.trace_id"] == "their-trace-7"
    assert len(span.trace_id) == 16


FAILURES: list[tuple[BaseException, str, str | None]] = [
    (EngineError("the words of the error"), "EngineError", "-32001"),
    (RuntimeError("the words of the error"), "RuntimeError", None),
    (asyncio.CancelledError("the words of the error"), "CancelledError", None),
]


@pytest.mark.parametrize(("error", "kind", "code"), FAILURES)
async def test_a_failure_is_marked_with_its_type_and_none_of_its_words(
    collector: Receiver, error: BaseException, kind: str, code: str | None
) -> None:
    async def fails(call: Call) -> Answer:
        with child_span("r2r", "search"):
            raise error

    spans = await record(collector, fails)
    for span in spans.values():
        assert span.status.code == 2
        assert attributes(span)["error.type"] == kind
        assert attributes(span).get("rpc.response.status_code") == code
        assert b"the words of the error" not in span.SerializeToString()
    assert len(spans) == 2


async def test_a_tool_that_says_it_failed_is_marked_and_a_question_to_the_client_is_not(collector: Receiver) -> None:
    async def tells(call: Call) -> Answer:
        return Answer({"isError": True})

    async def asks(call: Call) -> Answer:
        raise InputRequired({"name": {}})

    (told,) = (await record(collector, tells)).values()
    assert (told.status.code, attributes(told)["error.type"]) == (2, "tool_error")
    (asked,) = (await record(collector, asks)).values()
    assert asked.status.code == 0
    assert "error.type" not in attributes(asked)


async def test_a_method_that_somebody_made_up_names_no_span(collector: Receiver) -> None:
    async def unknown(call: Call) -> Answer:
        raise MethodNotFound(call.method)

    (span,) = (await record(collector, unknown, Call("made/up"))).values()
    assert span.name == "unknown"
    assert b"made/up" not in span.SerializeToString()


async def test_resources_and_prompts_have_the_names_of_the_conventions(collector: Receiver) -> None:
    prompt = await record(collector, answer, Call("prompts/get", {"name": "summarise"}))
    assert attributes(prompt["prompts/get summarise"])["gen_ai.prompt.name"] == "summarise"
    resource = await record(collector, answer, Call("resources/read", {"uri": "docs://a/b"}))
    assert attributes(resource["resources/read"])["mcp.resource.uri"] == "docs://a/b"


async def test_a_collector_that_does_not_answer_holds_up_neither_calls_nor_the_end(collector: Receiver) -> None:
    collector.open.clear()
    answered = 0
    async with open_spans(sending_to(collector), closing_seconds=0.2) as spans:
        assert spans is not None
        handle = chain([RecordSpan(spans)], answer)
        for _ in range(5000):  # more than the queue holds, and more than one batch
            await handle(SEARCH)
            answered += 1
        waiting: Any = spans
        assert len(waiting._provider._active_span_processor._span_processors[0]._batch_processor._queue) <= 2048
    assert answered == 5000
    assert not collector.open.is_set(), "it is closed although nothing was ever answered"


async def test_a_collector_that_fails_fails_no_call(collector: Receiver) -> None:
    collector.status = 400
    assert list(await record(collector, answer)) == ["tools/call r2r_search"]


async def test_without_a_collector_a_span_is_nothing() -> None:
    with child_span("r2r", "search") as nothing:
        assert nothing is None
        assert outgoing_headers() == {}


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
async def test_a_request_at_the_door_is_a_span_below_its_callers(
    collector: Receiver, settings: Callable[..., Config], accept: str
) -> None:
    meta = {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01"}
    params = {"name": "search_documentation", "arguments": {"query": "the argument"}, "_meta": meta}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    config = settings(embedding__source="none")
    async with (
        open_spans(sending_to(collector), closing_seconds=PATIENCE_SECONDS) as spans,
        open_desk(config) as desk,
    ):
        assert spans is not None
        desk.handle = chain([RecordSpan(spans)], desk.handle)
        async with (
            open_http(desk, config, 80) as app,
            httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as http,
        ):
            # The transport calls the application in this very task, which is also that of the tests after it.
            posted = http.post("/mcp", json=asked, headers={"accept": accept})
            answer = await asyncio.create_task(posted, context=copy_context())
        assert "result" in answer.json()
    span = spans_in(collector)["tools/call search_documentation"]
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert span.status.code == 0
