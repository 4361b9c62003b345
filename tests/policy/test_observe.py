"""Every call is counted, timed and logged, whatever it is called and however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from refdesk.calls import UPLOAD_METHOD, WINDOW_METHOD, Answer, Call, InputRequired
from refdesk.errors import EngineError, MethodNotFound, RateLimited, RefdeskError
from refdesk.inbound.mcp.revisions import METHODS as INBOUND_METHODS
from refdesk.policy.policies import CONSOLE_RULES, KNOWN_METHODS, Observe
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics
from refdesk.telemetry.traces import current_trace_id
from refdesk.tools.json_schema import Arguments
from refdesk.tools.registry import Tool

pytestmark = pytest.mark.anyio


async def echo(arguments: Arguments, call: Call) -> str:
    return ""


ECHO = Tool("echo", "Echo", "Says it again.", "docs", Arguments, echo)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(Log("info", "json", tmp_path / "log")) as log:
        yield log


def series(metrics: Metrics) -> set[tuple[str, str, str]]:
    (calls,) = [family for family in metrics.registry.collect() if family.name == "refdesk_calls"]
    return {
        (sample.labels["method"], sample.labels["tool"], sample.labels["outcome"])
        for sample in calls.samples
        if sample.name == "refdesk_calls_total"
    }


def test_the_methods_that_make_labels_are_those_that_can_be_asked_for() -> None:
    assert {*INBOUND_METHODS, WINDOW_METHOD, UPLOAD_METHOD, *CONSOLE_RULES} == KNOWN_METHODS


OUTCOMES: list[tuple[BaseException | Answer, str]] = [
    (Answer({"content": []}), "ok"),
    (Answer({"isError": True}), "tool_error"),
    (EngineError("down"), "EngineError"),
    (InputRequired({}), "input_required"),
    (asyncio.CancelledError(), "cancelled"),
    (RuntimeError("unforeseen"), "internal_error"),
]


@pytest.mark.parametrize(("end", "outcome"), OUTCOMES)
async def test_a_call_is_counted_by_its_end(log: Log, end: BaseException | Answer, outcome: str) -> None:
    metrics = Metrics()

    async def handler(call: Call) -> Answer:
        if isinstance(end, Answer):
            return end
        raise end

    with suppress(RefdeskError, InputRequired, asyncio.CancelledError, RuntimeError):
        await Observe(log, metrics)(Call("tools/call", {"name": "echo"}, tool=ECHO), handler)
    assert series(metrics) == {("tools/call", "echo", outcome)}
    assert (
        metrics.registry.get_sample_value("refdesk_call_seconds_count", {"method": "tools/call", "tool": "echo"}) == 1
    )


async def test_names_that_somebody_made_up_are_no_labels_whoever_refuses_them(log: Log) -> None:
    metrics = Metrics()
    observe = Observe(log, metrics)

    async def refuse(call: Call) -> Answer:
        raise RateLimited("too much")  # before anybody looks whether there is such a thing

    async def unknown(call: Call) -> Answer:
        raise MethodNotFound(call.method)

    for number in range(100):
        for handler in (refuse, unknown):
            with suppress(RefdeskError):
                await observe(Call(f"made/up{number}", {"name": f"tool{number}"}), handler)
            with suppress(RefdeskError):
                await observe(Call("tools/call", {"name": f"tool{number}"}), handler)
    assert {(method, tool) for method, tool, _ in series(metrics)} == {("", ""), ("tools/call", "")}


async def test_the_trace_id_is_known_inside_of_a_call_and_not_after_it(log: Log) -> None:
    inside: list[str] = []

    async def handler(call: Call) -> Answer:
        inside.append(current_trace_id())
        return Answer({})

    call = Call("tools/list")
    await Observe(log, Metrics())(call, handler)
    assert inside == [call.trace_id]
    assert current_trace_id() == ""
