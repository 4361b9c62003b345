"""Servers on standard input and output that hang, crash, babble and lie: F1 to F12 of the table in this package."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from refdesk.downstream.session import MAX_LIST_ENTRIES
from tests.conftest import Serve
from tests.gateway.desks import Gateway, bad, failure_of, flooding, gateway, serving_in, starts_of, turning
from tests.processes import children
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_f1_a_call_that_hangs_ends_at_its_deadline_and_the_server_is_told(serve: Serve) -> None:
    async with gateway(serve, bad=bad(), good=bad()) as desk:
        assert failure_of(await desk.hanging("bad__hang"))["data"]["type"] == "ServerTooSlow"
        assert "notifications/cancelled" in json.loads(await desk.text("bad__heard"))
        assert (await desk.describe("bad"))["in_flight"] == 0


@pytest.mark.parametrize("mode", ["hang", "hanglist"])
async def test_f2_a_server_that_hangs_at_its_start_holds_nobody_up(serve: Serve, mode: str) -> None:
    slow = bad(mode, connect_timeout_seconds=0.5, capabilities_timeout_seconds=0.5)
    async with gateway(serve, "good", bad=slow, good=bad()) as desk:
        assert await desk.servers() == {"good"}
        assert await desk.text("good__echo", text="here") == "here"
        if mode == "hang":
            await desk.until_described("bad", state="Error")
            assert "within 0.5" in (await desk.describe("bad"))["message"]


async def test_f2_the_tools_of_a_server_that_hangs_when_it_starts_again_fail_in_time(
    serve: Serve, tmp_path: Path
) -> None:
    sign = tmp_path / "sign"
    async with gateway(serve, bad=turning(sign), good=bad()) as desk:
        sign.write_text("hang\n")
        assert (await desk.failure("bad__crash"))["data"]["type"] == "ServerGone"
        answer = await desk.hanging("bad__echo", lambda: starts_of(sign))
        assert failure_of(answer)["data"]["type"] == "ServerTooSlow"


@pytest.mark.parametrize("fault", ["crash", "half", "closeout"])
async def test_f3_a_server_that_ends_in_a_call_fails_it_at_once_and_is_there_for_the_next(
    serve: Serve, fault: str
) -> None:
    async with gateway(serve, bad=bad(), good=bad()) as desk:
        before = len(children())
        for number in range(3):
            assert (await desk.failure(f"bad__{fault}"))["data"]["type"] == "ServerGone"
            await desk.works("bad__echo", text=str(number))
        assert await desk.text("good__echo", text="untouched") == "untouched"
        assert (await desk.describe("good"))["restarts"] == 0
        await eventually(lambda: len(children()) == before)


async def test_f3_all_calls_in_flight_fail_at_once_when_their_server_is_killed(serve: Serve) -> None:
    async with gateway(serve, bad=bad(call_timeout_seconds=3600), good=bad()) as desk:
        calls = [asyncio.create_task(desk.call("bad__hang")) for _ in range(20)]
        await desk.until_described("bad", in_flight=20)
        os.kill((await desk.describe("bad"))["pid"], signal.SIGKILL)
        answers = await asyncio.gather(*calls)
        assert {failure_of(answer)["data"]["type"] for answer in answers} == {"ServerGone"}
        assert await desk.text("bad__echo", text="again") == "again"


async def test_f4_a_server_that_only_crashes_is_left_alone_however_often_it_is_asked_for(
    serve: Serve, tmp_path: Path
) -> None:
    sign = tmp_path / "sign"
    async with gateway(serve, bad=turning(sign), good=bad()) as desk:
        sign.write_text("crash\n")
        await desk.failure("bad__crash")
        answers = [await desk.failure("bad__echo") for _ in range(200)]
        told = [error["data"]["retry_after"] for error in answers if "retry_after" in error["data"]]
        assert len(told) > 150
        assert min(told) > 0
        assert starts_of(sign) <= 6
        assert "status 3" in (await desk.describe("bad"))["message"]
        assert await desk.text("good__echo", text="here") == "here"


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """What faults are shown with that a server outlives; nothing may be left of all of them together."""
    async with gateway(
        serving_in(tmp_path_factory.mktemp("faults")), bad=bad(), good=bad(), flooding=flooding()
    ) as desk:
        yield desk


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        pytest.param("garbage", "done", id="f5 lines that are no messages"),
        pytest.param("utf8bad", "done", id="f6 an invalid byte"),
        pytest.param("deep", "done", id="f10 a line of 100,000 brackets"),
        pytest.param("wrongid", "done", id="f11 answers that nobody asked for"),
        pytest.param("dup", "first", id="f11 an answer twice"),
        pytest.param("batch", "done", id="an answer in a list"),
        pytest.param("crlf", "done", id="other line ends"),
    ],
)
async def test_f5_f6_f10_f11_what_is_no_answer_is_passed_over(desk: Gateway, fault: str, said: str) -> None:
    first, before = await desk.text("bad__pid"), await desk.describe("bad")
    assert await desk.text(f"bad__{fault}") == said
    texts = await asyncio.gather(*(desk.text("bad__echo", text=str(number)) for number in range(20)))
    assert texts == [str(number) for number in range(20)]
    assert await desk.text("bad__pid") == first
    after = await desk.describe("bad")
    assert after["in_flight"] == 0
    assert (after["garbage"] > before["garbage"]) == (fault != "crlf")


async def test_f7_an_answer_in_drips_is_bounded_in_whole_and_not_by_each_drip(serve: Serve) -> None:
    async with gateway(serve, bad=bad(), good=bad()) as desk:
        assert failure_of(await desk.hanging("bad__drip", seconds=1))["data"]["type"] == "ServerTooSlow"


@pytest.mark.slow
async def test_f8_a_line_without_an_end_costs_its_server_and_nobody_else(serve: Serve) -> None:
    async with gateway(serve, bad=bad(), good=bad()) as desk:
        first = await desk.text("bad__pid")
        answer = await desk.during("bad__bignonl")
        assert failure_of(answer)["data"]["type"] in ("ServerTalksNonsense", "ServerGone")
        assert "16777216" in answer["error"]["message"]
        await desk.works("bad__echo", text="again")
        assert await desk.text("bad__pid") != first


@pytest.mark.slow
async def test_f9_a_result_of_ten_megabytes_is_cut_and_one_of_fifty_refused(serve: Serve) -> None:
    async with gateway(serve, bad=bad(), good=bad()) as desk:
        answer = await desk.during("bad__big", bytes=10_000_000)
        assert len(answer["result"]["content"][0]["text"]) < 1_000_000
        answer = await desk.during("bad__big", bytes=50_000_000)
        assert "16777216" in failure_of(answer)["message"]
        await desk.works("bad__echo", text="again")


@pytest.mark.parametrize("fault", ["nullresult", "noresult", "textresult"])
async def test_f10_a_result_that_is_none_fails_its_call_and_nothing_else(desk: Gateway, fault: str) -> None:
    first = await desk.text("bad__pid")
    assert (await desk.failure(f"bad__{fault}"))["data"]["type"] == "ServerTalksNonsense"
    assert await desk.text("bad__pid") == first


async def test_f11_an_answer_after_the_deadline_is_nobodys(serve: Serve) -> None:
    async with gateway(serve, bad=bad(), good=bad()) as desk:
        assert failure_of(await desk.hanging("bad__late"))["data"]["type"] == "ServerTooSlow"
        texts = [await desk.text("bad__echo", text=str(number)) for number in range(20)]
        assert texts == [str(number) for number in range(20)]
        assert (await desk.describe("bad"))["garbage"] <= 1


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_f12_a_flood_holds_up_neither_other_servers_nor_the_flooding_one(desk: Gateway, stream: str) -> None:
    asking = asyncio.create_task(desk.call("flooding__flood", stream=stream))

    async def is_flooded() -> bool:
        await desk.good_answers()
        return int(await desk.text("flooding__sent")) >= 50_000

    await eventually(is_flooded)
    for _ in range(3):
        await desk.good_answers()
    assert not asking.done()
    assert await desk.text("flooding__stop") == "stopped"
    assert (await asking)["result"]["content"][0]["text"] == "done"


@pytest.mark.parametrize("mode", ["pages", "samepage"])
async def test_a_list_that_never_ends_is_taken_as_far_as_is_bearable(serve: Serve, mode: str) -> None:
    async with gateway(serve, bad=bad(mode), good=bad()) as desk:
        listed = [name for name in await desk.tools() if name.startswith("bad__")]
        assert 0 < len(listed) <= MAX_LIST_ENTRIES
        assert await desk.text("good__echo", text="here") == "here"


async def test_entries_of_a_list_that_are_no_tools_are_left_out(serve: Serve) -> None:
    async with gateway(serve, bad=bad("badlist"), good=bad()) as desk:
        tools = (await desk.ask("tools/list"))["result"]["tools"]
        names: dict[str, list[Any]] = {
            server: sorted(
                tool["name"].removeprefix(f"{server}__") for tool in tools if tool["name"].startswith(server)
            )
            for server in ("bad", "good")
        }
        assert names["bad"] == names["good"]


RESTLESS = """
import json, pathlib, sys
asked = 0
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    if message["method"] == "initialize":
        capabilities, info = {"tools": {"listChanged": True}}, {"name": "restless", "version": "1"}
        result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}
    elif message["method"] == "tools/list":
        asked += 1
        result["tools"].append({"name": f"another_{asked}", "inputSchema": {"type": "object"}})
        pathlib.Path(sys.argv[1]).write_text(str(asked))
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))
    print('{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}', flush=True)
"""


async def test_a_server_whose_list_changes_whenever_it_is_asked_for_is_not_asked_all_the_time(
    serve: Serve, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    restless = {"command": sys.executable, "args": ["-c", RESTLESS, str(asked)]}
    async with gateway(serve, restless=restless, good=bad()) as desk:

        async def is_followed() -> bool:
            return "restless__another_4" in await desk.tools()

        await eventually(is_followed)
        for number in range(200):
            assert await desk.text("good__echo", text=str(number)) == str(number)
        assert int(asked.read_text()) < 50
