"""Connections to real processes and real sockets, with everything that goes wrong there."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
from functools import partial

import pytest

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.transports.stdio import StdioTransport
from refdesk.errors import BreakerOpen, ServerAway, ServerGone, ServerTalksNonsense, ServerTooSlow
from tests.downstream.connecting import bad_stdio, call, is_alive, run_connection
from tests.downstream.transports.stdio_rig import BRISK
from tests.processes import children
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

OPEN_BRISKLY = partial(StdioTransport, end_timeouts=BRISK)
"""For servers that only SIGKILL ends."""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def pid_of(connection: Connection) -> int:
    return int(await call(connection, "pid"))


async def test_a_hanging_call_ends_in_time_and_the_server_is_told() -> None:
    async with run_connection(bad_stdio()) as (connection, _):
        await call(connection, "echo", text="warm")
        with pytest.raises(ServerTooSlow):
            await connection.request("tools/call", {"name": "hang"}, seconds=0.2)

        async def is_told() -> bool:
            return "notifications/cancelled" in await call(connection, "heard")

        await eventually(is_told)


async def test_a_server_that_hangs_in_its_greeting_is_killed() -> None:
    before = children()
    async with run_connection(bad_stdio("hang", connect_timeout_seconds=1)) as (connection, watcher):
        with pytest.raises(ServerAway, match=r"did not answer the handshake within 1 s"):
            await connection.request("tools/list")
        await watcher.until(lambda: "Error" in watcher.states)
    await eventually(lambda: children() <= before)


async def test_a_list_that_hangs_ends_in_time_and_the_calls_go_on() -> None:
    async with run_connection(bad_stdio("hanglist", capabilities_timeout_seconds=0.2)) as (connection, _):
        await call(connection, "echo", text="warm")
        with pytest.raises(ServerTooSlow):
            await connection.list_all("tools")
        assert await call(connection, "echo", text="still here") == "still here"


@pytest.mark.parametrize("mode", ["pages", "samepage", "badlist"])
async def test_lists_that_are_wrong_are_taken_as_far_as_they_go(mode: str) -> None:
    async with run_connection(bad_stdio(mode)) as (connection, _):
        tools = await connection.list_all("tools")
        assert tools
        assert all(isinstance(tool["name"], str) for tool in tools)
        assert await call(connection, "echo", text="still here") == "still here"


@pytest.mark.parametrize("tool", ["crash", "half"])
async def test_a_crash_in_a_call_is_an_error_at_once_and_the_next_call_works(tool: str) -> None:
    async with run_connection(bad_stdio()) as (connection, watcher):
        first = await pid_of(connection)
        with pytest.raises(ServerGone):
            await call(connection, tool)
        assert await pid_of(connection) != first
        assert watcher.states == ["Starting", "Running", "Starting", "Running"]
        await eventually(lambda: not is_alive(first))


async def test_a_server_that_is_killed_is_replaced_for_the_same_connection() -> None:
    async with run_connection(bad_stdio()) as (connection, watcher):
        first = await pid_of(connection)
        os.kill(first, signal.SIGKILL)
        await watcher.until(lambda: watcher.states[-2:] == ["Starting", "Running"] and len(watcher.states) == 4)
        assert await pid_of(connection) not in (0, first)


async def test_a_server_that_crashes_at_its_start_says_why_and_costs_few_processes() -> None:
    before, heard = children(), list[str]()
    async with run_connection(bad_stdio("exit"), pause=_never, on_stderr_line=heard.append) as (connection, watcher):
        await watcher.until(lambda: connection.status.state == "Error")
        assert "exit status 3" in connection.status.message
        errors = await asyncio.gather(*(connection.request("tools/list") for _ in range(50)), return_exceptions=True)
        assert {type(error) for error in errors} <= {ServerAway, BreakerOpen}
        assert heard
        assert watcher.states.count("Starting") <= 2
    await eventually(lambda: children() <= before)


async def _never(seconds: float) -> None:
    await asyncio.Event().wait()


async def test_many_crashes_leave_nothing_behind() -> None:
    before = children()
    async with run_connection(bad_stdio()) as (connection, _):
        await call(connection, "echo", text="warm")
        files = open_files()
        for _ in range(4):
            with pytest.raises(ServerGone):
                await call(connection, "crash")
            assert await call(connection, "echo", text="again") == "again"
        await eventually(lambda: len(children() - before) <= 2 and open_files() <= files)
    await eventually(lambda: children() <= before)


@pytest.mark.parametrize("tool", ["garbage", "utf8bad", "wrongid", "dup", "crlf"])
async def test_garbage_between_messages_costs_nobody_his_answer(tool: str) -> None:
    async with run_connection(bad_stdio()) as (connection, watcher):
        assert await connection.request("tools/call", {"name": tool, "arguments": {}})
        assert await call(connection, "echo", text="after") == "after"
        assert watcher.states == ["Starting", "Running"]


@pytest.mark.parametrize("tool", ["nullresult", "noresult", "textresult"])
async def test_an_answer_without_a_result_is_nonsense_and_the_session_lives(tool: str) -> None:
    async with run_connection(bad_stdio()) as (connection, watcher):
        with pytest.raises(ServerTalksNonsense):
            await connection.request("tools/call", {"name": tool, "arguments": {}})
        assert await call(connection, "echo", text="after") == "after"
        assert watcher.states == ["Starting", "Running", "Error", "Running"]


async def test_a_line_without_an_end_costs_the_server_its_life_and_nobody_else() -> None:
    async with run_connection(bad_stdio(max_message_bytes=100_000)) as (connection, _):
        with pytest.raises(ServerTalksNonsense):
            await connection.request("tools/call", {"name": "bignonl", "arguments": {"bytes": 4_000_000}})
        assert await call(connection, "echo", text="after") == "after"


async def test_a_server_that_will_not_end_is_ended() -> None:
    before = children()
    async with run_connection(bad_stdio("ignoreterm"), open_transport=OPEN_BRISKLY) as (connection, _):
        pid = await pid_of(connection)
    await eventually(lambda: not is_alive(pid) and children() <= before)


async def test_a_command_that_is_not_there_is_an_error_that_names_it() -> None:
    settings = bad_stdio().model_copy(update={"command": "/no/such/program", "connect_tries": 1})
    async with run_connection(settings, pause=_never) as (connection, watcher):
        await watcher.until(lambda: connection.status.state == "Error")
        assert "/no/such/program" in connection.status.message


async def test_a_restart_is_another_process() -> None:
    async with run_connection(bad_stdio()) as (connection, _):
        first = await pid_of(connection)
        assert connection.describe()["pid"] == first
        await connection.restart()
        assert connection.status.state == "Running"
        assert await pid_of(connection) != first
        assert not is_alive(first)


async def test_secrets_are_nowhere_to_be_seen(caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-hunter2"
    heard: list[str] = []
    settings = bad_stdio(env={"API_KEY": secret})
    async with run_connection(settings, on_stderr_line=heard.append) as (connection, _):
        await connection.request("tools/call", {"name": "secret", "arguments": {}})
        await eventually(lambda: bool(heard))
        shown = [*heard, str(connection.describe()), repr(connection), caplog.text]
        assert not any(secret in text for text in shown)


@pytest.mark.slow
async def test_a_hundred_short_sessions_leave_nothing_behind() -> None:
    before = children()
    async with run_connection(bad_stdio(session="short")) as (connection, _):
        await call(connection, "echo", text="warm")
        await eventually(lambda: connection.status.state == "Stopped")
        gc.collect()
        files, tasks = open_files(), len(asyncio.all_tasks())
        for part in range(10):
            texts = await asyncio.gather(*(call(connection, "echo", text=f"{part} {n}") for n in range(10)))
            assert texts == [f"{part} {n}" for n in range(10)]
        await eventually(lambda: connection.status.state == "Stopped")
        assert connection.describe()["sessions"] == 101
        await eventually(lambda: children() <= before and open_files() <= files)
        assert len(asyncio.all_tasks()) <= tasks
