"""Trace context of W3C: what is taken from a caller, and what is handed on."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.telemetry.traces import (
    Trace,
    current_trace_id,
    enter_trace,
    leave_trace,
    outgoing_headers,
    read_trace,
    set_current_span,
)

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"


@pytest.mark.parametrize("given", [PARENT, PARENT.encode(), f" {PARENT}\t"])
def test_a_traceparent_is_read_as_text_or_as_a_header(given: str | bytes) -> None:
    assert read_trace(given) == Trace(TRACE_ID, SPAN_ID, "01", "")


def test_a_later_version_may_say_more_and_the_first_may_not() -> None:
    assert read_trace(f"01-{TRACE_ID}-{SPAN_ID}-01-what-is-to-come") == Trace(TRACE_ID, SPAN_ID, "01")
    assert read_trace(f"{PARENT}-more") is None


@pytest.mark.parametrize(
    "malformed",
    [
        None, 7, [], {}, "", "00", PARENT.upper(), PARENT[:-1], PARENT + "0", PARENT + "\n", f"ff{PARENT[2:]}",
        f"00-{'0' * 32}-{SPAN_ID}-01", f"00-{TRACE_ID}-{'0' * 16}-01", PARENT.replace("-", "_"), f"{PARENT},{PARENT}",
        PARENT.replace("4", "٤"), b"\xff" * 55,
    ],
)  # fmt: skip
def test_what_is_malformed_counts_as_not_there(malformed: object) -> None:
    assert read_trace(malformed) is None


@given(st.one_of(st.text(), st.binary(), st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}.*")))
def test_whatever_is_read_can_be_handed_on_and_read_again(given: str | bytes) -> None:
    trace = read_trace(given)
    if trace is not None:
        again = read_trace(trace.traceparent)
        assert again is not None
        assert again[:2] == trace[:2]
        assert int(again.flags, 16) == int(trace.flags, 16) & 3


def test_a_tracestate_that_could_not_stand_in_a_header_is_left_out() -> None:
    kept = read_trace(PARENT, "vendor=1,other=2")
    assert kept is not None
    assert kept.state == "vendor=1,other=2"
    for bad in ("a=1\r\nx-evil: 1", "a=\x00", "x" * 513, 5, "ä=1"):
        assert read_trace(PARENT, bad) == Trace(TRACE_ID, SPAN_ID, "01", "")


def test_outside_of_a_call_nothing_goes_out() -> None:
    assert copy_context().run(outgoing_headers) == {}
    assert current_trace_id() == ""


def test_a_trace_that_begins_here_goes_out_unsampled_with_a_span_of_its_own() -> None:
    token = enter_trace(TRACE_ID)
    first, second = outgoing_headers(), outgoing_headers()
    leave_trace(token)
    for headers in (first, second):
        sent = read_trace(headers["traceparent"])
        assert sent is not None
        assert (sent.trace_id, sent.flags) == (TRACE_ID, "00")
    assert first != second
    assert outgoing_headers() == {}


def test_the_callers_span_and_state_are_handed_on_as_they_are() -> None:
    def ask() -> dict[str, str]:
        set_current_span(Trace(TRACE_ID, SPAN_ID, "01", "vendor=1"))
        return outgoing_headers()

    assert copy_context().run(ask) == {"traceparent": PARENT, "tracestate": "vendor=1"}


def test_a_trace_id_of_another_kind_does_not_become_a_header() -> None:
    token = enter_trace("trace-1\r\nx-evil: 1")
    assert outgoing_headers() == {}
    leave_trace(token)


@pytest.mark.anyio
async def test_calls_at_the_same_time_keep_their_traces_apart() -> None:
    both_in = asyncio.Barrier(50)

    async def call(trace_id: str) -> str:
        token = enter_trace(trace_id)
        await both_in.wait()
        sent = outgoing_headers()["traceparent"]
        leave_trace(token)
        return sent[3:35]

    ids = [f"{number:032x}" for number in range(1, 51)]
    assert await asyncio.gather(*map(call, ids)) == ids
