"""Policies by themselves, around handlers that do as the test needs."""

from __future__ import annotations

import asyncio
import io
import json
import os
from contextlib import closing, suppress
from pathlib import Path
from typing import BinaryIO, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from refdesk.calls import ANONYMOUS, Answer, Call, Handler, Policy, chain
from refdesk.errors import DeadlineExceeded, EngineError, RefdeskError, UnknownTool
from refdesk.policy.policies import Deadline, Observe
from refdesk.telemetry.log import Lines, Log
from refdesk.telemetry.metrics import Metrics

pytestmark = pytest.mark.anyio

CALL = Call("tools/call", {"name": "echo", "arguments": {"text": "the argument"}}, ANONYMOUS)


async def answer(call: Call) -> Answer:
    return Answer({"content": []})


async def test_the_first_policy_is_the_outermost() -> None:
    seen: list[str] = []

    def make_policy(name: str) -> Policy:
        async def policy(call: Call, proceed: Handler) -> Answer:
            seen.append(f"{name} in")
            result = await proceed(call)
            seen.append(f"{name} out")
            return result

        return policy

    await chain([make_policy("a"), make_policy("b")], answer)(CALL)
    assert seen == ["a in", "b in", "b out", "a out"]


async def test_without_a_policy_the_handler_answers() -> None:
    assert (await chain([], answer)(CALL)).result == {"content": []}


async def test_a_call_in_time_is_untouched_and_not_cancelled() -> None:
    result = await Deadline(60)(CALL, answer)
    assert result.result == {"content": []}
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_call_over_time_is_cancelled_and_named() -> None:
    cleaned_up = asyncio.Event()

    async def slow(call: Call) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()
        raise AssertionError("never reached")

    with pytest.raises(DeadlineExceeded, match=r"0\.01 s"):
        await Deadline(0.01)(CALL, slow)
    assert cleaned_up.is_set()


async def test_somebody_elses_cancellation_is_not_taken_for_the_deadline() -> None:
    started = asyncio.Event()

    async def slow(call: Call) -> Answer:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("never reached")

    task = asyncio.ensure_future(Deadline(60)(CALL, slow))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_time_out_inside_a_tool_is_not_taken_for_the_deadline() -> None:
    async def impatient(call: Call) -> Answer:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
        raise AssertionError("never reached")

    with pytest.raises(TimeoutError):
        await Deadline(60)(CALL, impatient)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    return tmp_path / "log"


async def call_and_read_log(log_file: Path, handler: Handler, call: Call = CALL) -> dict[str, object]:
    with closing(Log("info", "json", log_file)) as log, suppress(RefdeskError):
        await Observe(log, Metrics())(call, handler)
    (line,) = (await anyio.Path(log_file).read_text()).splitlines()
    entry: dict[str, object] = json.loads(line)
    return entry


async def test_every_call_is_one_line_without_its_arguments(log_file: Path) -> None:
    entry = await call_and_read_log(log_file, answer)
    assert entry["event"] == "call"
    assert entry["outcome"] == "ok"
    assert entry["target"] == "echo"
    assert entry["tenant"] == "default"
    assert len(str(entry["trace_id"])) == 32
    assert "the argument" not in json.dumps(entry)


async def test_a_line_tells_how_a_call_failed(log_file: Path) -> None:
    async def down(call: Call) -> Answer:
        raise EngineError("gone")

    assert (await call_and_read_log(log_file, down))["outcome"] == "EngineError"


async def test_a_line_stays_a_line_whatever_the_caller_calls_a_tool(log_file: Path) -> None:
    async def unknown(call: Call) -> Answer:
        raise UnknownTool("no")

    call = Call("tools/call", {"name": 'x"\n{"event":"forged"}' + "y" * 5000})
    entry = await call_and_read_log(log_file, unknown, call)
    assert entry["outcome"] == "UnknownTool"
    assert len(str(entry["target"])) == 200


def test_lines_outside_a_loop_are_written_at_once() -> None:
    stream = io.BytesIO()
    lines = Lines(stream)
    lines.msg(b"one")
    lines.msg(b"two")
    assert stream.getvalue() == b"one\ntwo\n"


async def test_lines_of_one_turn_of_the_loop_are_written_in_one_go() -> None:
    stream = io.BytesIO()
    lines = Lines(stream)
    lines.msg(b"one")
    lines.msg(b"two")
    assert stream.getvalue() == b""
    await checkpoint()
    assert stream.getvalue() == b"one\ntwo\n"


async def test_a_log_that_cannot_be_written_is_given_up_and_nothing_else(tmp_path: Path) -> None:
    class Full(io.BytesIO):
        def write(self, data: object) -> int:
            raise OSError("no space left on device")

    lines = Lines(Full())
    lines.msg(b"one")
    await checkpoint()
    lines.msg(b"two")
    lines.flush()


def test_a_log_that_nobody_reads_keeps_nobody_waiting() -> None:
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as read, open(writer, "wb", buffering=0) as written:
        lines = Lines(cast(BinaryIO, written))
        for number in range(5000):
            lines.msg(b"%06d" % number + b"x" * 1000)
        assert read.read(7) == b"000000x"
