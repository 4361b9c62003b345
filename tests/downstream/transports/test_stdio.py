"""Messages to and from a server's process, and every fault that a server's output can have."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from types import MappingProxyType

import pytest
from anyio import wait_all_tasks_blocked

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Peer
from refdesk.downstream.transports.stdio import MAX_LINES_PER_TURN, StdioTransport, _Output
from refdesk.errors import InvalidCall, ServerAway, ServerGone, ServerRefused, ServerTalksNonsense
from tests.downstream.transports.stdio_rig import Owner, bad, talk
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


async def test_calls_in_flight_at_once_each_get_their_own_answer() -> None:
    async with talk(bad()) as conversation:
        texts = [f"text {number} é€😀" for number in range(200)]
        assert await asyncio.gather(*(conversation.call("echo", text=text) for text in texts)) == texts
        assert conversation.peer.garbage == 0


async def test_plain_asyncio_serves_as_well() -> None:
    async def main() -> list[str]:
        async with talk(bad()) as conversation:
            answers = [await conversation.call(tool) for tool in ("garbage", "batch", "crlf")]
            assert len(await conversation.call("big", bytes=3_000_000)) == 3_000_000
            assert len(await conversation.call("echo", text="x" * 3_000_000)) == 3_000_000
            with pytest.raises(ServerGone, match="exit status 4"):
                await conversation.call("crash", status=4)
            return answers

    assert await asyncio.to_thread(asyncio.run, main()) == ["done"] * 3


async def test_a_server_sees_little_of_our_environment_and_what_is_set_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFDESK_SECRET", "ours alone")
    monkeypatch.setenv("LC_TIME", "C")
    monkeypatch.setenv("SHELL", "() { :; }")
    async with talk(bad(env={"MINE": "yes"}, cwd=tmp_path)) as conversation:
        seen = json.loads(await conversation.call("environ"))
        assert await conversation.call("cwd") == str(tmp_path)
    assert seen["MINE"] == "yes"
    assert seen["PATH"] == os.environ["PATH"]
    assert seen["LC_TIME"] == "C"
    assert not {"REFDESK_SECRET", "SHELL"} & set(seen)


async def test_arguments_reach_the_program_as_they_are() -> None:
    script = "import sys, json; print(json.dumps({'method': sys.argv[1]}), flush=True); sys.stdin.read()"
    owner = Owner()
    arguments = ("-c", script, "$(id); `id` && | > \" '")
    async with StdioTransport("argv", McpServerConfig(command=sys.executable, args=arguments), Peer("argv", owner)):
        await asyncio.wait_for(owner.has_noticed.wait(), PATIENCE_SECONDS)
    assert owner.noticed_methods == [arguments[2]]


async def test_mappings_of_any_kind_can_be_sent() -> None:
    async with talk(bad()) as conversation:
        params = MappingProxyType({"name": "echo", "arguments": MappingProxyType({"text": "frozen"})})
        assert (await conversation.peer.request("tools/call", params))["content"][0]["text"] == "frozen"


async def test_what_is_no_json_is_refused_and_the_connection_goes_on() -> None:
    async with talk(bad()) as conversation:
        with pytest.raises(InvalidCall, match="as JSON"):
            await conversation.call("echo", text=object())
        assert await conversation.call("echo", text="still here") == "still here"


@pytest.mark.parametrize("tool", ["garbage", "utf8bad", "deep", "batch", "crlf"])
async def test_a_bad_line_costs_that_line(tool: str) -> None:
    async with talk(bad()) as conversation:
        assert await conversation.call(tool) == "done"
        assert await conversation.call("echo", text="after it") == "after it"
        assert conversation.owner.losses == []
        counted = {"garbage": 8, "utf8bad": 1, "deep": 1, "batch": 1, "crlf": 0}
        assert conversation.peer.garbage == counted[tool]
        assert conversation.owner.noticed_methods == (["notifications/message"] if tool == "batch" else [])


async def test_a_banner_before_the_first_message_does_no_harm() -> None:
    async with talk(bad("garbagefirst")) as conversation:
        assert await conversation.call("echo", text="hello") == "hello"
        assert conversation.peer.garbage == 3


@pytest.mark.parametrize("tool", ["nullresult", "noresult", "textresult"])
async def test_an_answer_without_a_result_fails_its_own_call(tool: str) -> None:
    async with talk(bad()) as conversation:
        with pytest.raises(ServerTalksNonsense):
            await conversation.call(tool)
        assert await conversation.call("echo", text="after it") == "after it"


@pytest.mark.parametrize(("tool", "answer", "garbage"), [("wrongid", "done", 5), ("dup", "first", 1)])
async def test_answers_to_nothing_are_ignored(tool: str, answer: str, garbage: int) -> None:
    async with talk(bad()) as conversation:
        assert await conversation.call(tool) == answer
        assert await conversation.call("echo", text="after it") == "after it"
        assert conversation.peer.garbage == garbage


async def test_an_answer_after_cancelling_is_ignored() -> None:
    async with talk(bad()) as conversation:
        call = asyncio.create_task(conversation.call("late"))
        await conversation.call("echo")  # the server has got the call before it by now
        call.cancel()
        await asyncio.wait([call])
        async with asyncio.timeout(PATIENCE_SECONDS):
            while conversation.peer.garbage == 0:
                assert await conversation.call("echo", text="meanwhile") == "meanwhile"
        assert "notifications/cancelled" in json.loads(await conversation.call("heard"))


async def test_errors_of_the_server_keep_their_code_and_data() -> None:
    async with talk(bad()) as conversation:
        with pytest.raises(ServerRefused) as caught:
            await conversation.call("rpcerror")
        assert (caught.value.code, caught.value.given) == (-32042, {"why": "because"})


async def test_an_answer_that_comes_by_the_byte_holds_nobody_up() -> None:
    async with talk(bad()) as other, talk(bad()) as conversation:
        dripping = asyncio.create_task(conversation.call("drip", seconds=None))
        await eventually(lambda: conversation.transport._stdout._partial.endswith(b"}"))
        assert await other.call("echo", text="meanwhile") == "meanwhile"
        assert not dripping.done()
        await conversation.peer.notify("notifications/enough")
        assert await dripping == "drop by drop"


async def test_a_message_as_large_as_is_taken_is_taken_and_one_larger_ends_the_server() -> None:
    async with talk(bad(max_message_bytes=1_000_000)) as conversation:
        waiting = asyncio.create_task(conversation.call("hang"))
        assert len(await conversation.call("big", bytes=999_000)) == 999_000
        with pytest.raises(ServerTalksNonsense, match="more than 1000000 bytes"):
            await conversation.call("big", bytes=1_000_000)
        with pytest.raises(ServerTalksNonsense):
            await waiting
        with pytest.raises(ServerTalksNonsense):
            await conversation.call("echo")
    assert len(conversation.owner.losses) == 1


async def test_a_line_without_an_end_costs_no_more_memory_than_a_message_may() -> None:
    async with talk(bad()) as other, talk(bad()) as conversation:
        before = _peak_bytes()
        with pytest.raises(ServerTalksNonsense, match="more than 16777216 bytes"):
            await conversation.call("bignonl", bytes=200_000_000)
        assert _peak_bytes() - before < 16_777_216 + 20_000_000
        assert await other.call("echo", text="not concerned") == "not concerned"


async def test_a_message_of_too_many_parts_is_dropped_unread() -> None:
    async with talk(bad()) as conversation:
        line = b'{"a":[' + b"[]," * 400_000 + b"1]}"
        conversation.transport._stdout.data_received(line + b"\n")
        assert conversation.peer.garbage == 1
        assert await conversation.call("echo", text="after it") == "after it"


async def test_a_line_in_many_pieces_is_put_together_in_linear_time() -> None:
    """Copying what is held for each piece would take minutes for this."""
    async with talk(bad()) as conversation:
        output = conversation.transport._stdout
        for _ in range(400_000):
            output.data_received(b" " * 40)
        output.data_received(b'{"method":"notifications/x"}\n')
        assert conversation.owner.noticed_methods == ["notifications/x"]


async def test_a_flood_of_notifications_lets_other_calls_through() -> None:
    async with talk(bad()) as other, talk(bad()) as conversation:
        flood = asyncio.create_task(conversation.call("notifyflood", count=0))
        await conversation.owner.has_noticed.wait()
        for _ in range(20):
            assert await other.call("echo", text="meanwhile") == "meanwhile"
            assert await conversation.call("echo", text="among it") == "among it"
        assert not flood.done()
        await conversation.peer.notify("notifications/enough")
        count = int(await flood)
        assert len(conversation.owner.noticed_methods) == count


async def test_many_lines_at_once_are_followed_by_a_turn_for_others() -> None:
    pauses: list[str] = []

    class Reading(asyncio.ReadTransport):
        def is_closing(self) -> bool:
            return False

        def pause_reading(self) -> None:
            pauses.append("paused")

        def resume_reading(self) -> None:
            pauses.append("resumed")

    output = _Output(Peer("it", Owner()), 1000, bytes.decode, pytest.fail, lambda: None)
    output.connection_made(Reading())
    output.data_received(b"{}\n" * (MAX_LINES_PER_TURN + 1))
    assert pauses == ["paused"]
    await wait_all_tasks_blocked()
    assert pauses == ["paused", "resumed"]


async def test_a_flood_on_stderr_lets_other_calls_through() -> None:
    async with talk(bad()) as conversation:
        flood = asyncio.create_task(conversation.call("stderrflood", count=0))
        await eventually(lambda: len(conversation.transport._stderr.lines) == 200)
        for _ in range(20):
            assert await conversation.call("echo", text="meanwhile") == "meanwhile"
        assert not flood.done()
        await conversation.peer.notify("notifications/enough")
        assert int(await flood) >= 200
        assert len(conversation.transport._stderr.lines) == 200


async def test_a_server_that_stops_to_read_holds_up_only_who_writes_to_it() -> None:
    async with talk(bad()) as conversation:
        await conversation.call("deaf")
        large = "x" * 200_000
        calls = [asyncio.create_task(conversation.result("echo", text=large)) for _ in range(50)]
        await wait_all_tasks_blocked()
        held = conversation.transport._stdin._transport
        assert held is not None
        assert held.get_write_buffer_size() < 3 * 200_000
        for call in calls[:10]:
            call.cancel()
        conversation.transport._process.kill()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes[:10]} == {asyncio.CancelledError}
        assert {type(outcome) for outcome in outcomes[10:]} == {ServerGone}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"command": "no-such-program"}, "there is no program 'no-such-program'; install it"),
        ({"command": "/etc/passwd"}, "'/etc/passwd' may not be executed; make it executable"),
        ({"command": "cat", "cwd": "/no/such/folder"}, "the folder '/no/such/folder' is not there; create it"),
    ],
)
async def test_a_server_that_cannot_be_started_says_what_to_do(settings: dict[str, object], sentence: str) -> None:
    owner = Owner()
    config = McpServerConfig.model_validate(settings | {"env": {"API_KEY": "sesame-open"}})
    with pytest.raises(ServerAway, match=sentence) as caught:
        async with StdioTransport("away", config, Peer("away", owner)):
            raise AssertionError("it was started")
    assert "sesame" not in caught.value.detail


def _peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
