"""However a connection ends, nothing of the server's process is left."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from anyio.lowlevel import checkpoint

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.jsonrpc import Peer
from refdesk.downstream.transports.process import EndTimeouts, ServerProcess
from refdesk.downstream.transports.stdio import StdioTransport
from refdesk.errors import ServerAway, ServerGone, ServerTalksNonsense
from tests.downstream.transports.stdio_rig import BRISK, PATIENT, Owner, bad, descriptors, talk, wait_gone
from tests.processes import children
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
async def _a_loop_that_has_had_a_pipe() -> None:
    """The first one that a loop gets makes it open a file for itself, which it keeps."""
    async with StdioTransport("first", McpServerConfig(command="cat"), Peer("first", Owner())):
        pass


@pytest.mark.parametrize("tool", ["crash", "half"])
async def test_whoever_waits_is_told_at_once_when_a_server_dies(tool: str) -> None:
    before = children()
    async with talk(bad()) as conversation:
        waiting = asyncio.create_task(conversation.call("hang"))
        with pytest.raises(ServerGone, match="'bad' ended with exit status 1"):
            await conversation.call(tool)
        with pytest.raises(ServerGone):
            await waiting
        with pytest.raises(ServerGone):
            await conversation.call("echo")
    assert len(conversation.owner.losses) == 1
    assert children() == before


async def test_what_a_server_says_right_before_it_ends_is_heard() -> None:
    line = '{"jsonrpc":"2.0","method":"notifications/last"}'
    script = f"import sys; print('{line}' * 1, flush=True); print('why', file=sys.stderr); sys.exit(7)"
    for _ in range(20):
        owner = Owner()
        config = McpServerConfig(command=sys.executable, args=("-I", "-S", "-c", script))
        async with StdioTransport("last", config, Peer("last", owner), exit_grace_seconds=PATIENCE_SECONDS):
            await asyncio.wait_for(owner.is_lost.wait(), PATIENCE_SECONDS)
        assert owner.noticed_methods == ["notifications/last"]
        assert owner.losses[0].detail == "The server 'last' ended with exit status 7; its last stderr line: why"


async def test_a_server_that_exits_at_its_start_is_quoted_without_its_secrets() -> None:
    async with talk(bad("exit"), initialize=False) as conversation:
        error = await conversation.loss()
    assert error.detail == (
        "The server 'bad' ended with exit status 3; "
        "its last stderr line: boom: this server always crashes at start; api_key=********"
    )


async def test_a_server_that_is_killed_is_said_to_be() -> None:
    async with talk(bad()) as conversation:
        os.kill(conversation.transport.pid, signal.SIGKILL)
        assert (await conversation.loss()).detail == "The server 'bad' was ended by SIGKILL"


async def test_a_server_that_closes_its_output_is_lost_although_it_lives() -> None:
    async with talk(bad(), exit_grace_seconds=0.1) as conversation:
        with pytest.raises(ServerGone, match="has closed its output"):
            await conversation.call("closeout")
        pid = conversation.transport.pid
    await wait_gone(pid)


async def test_leaving_tells_whoever_waits_and_ends_the_server_by_its_input() -> None:
    async with talk(bad()) as conversation:
        waiting = asyncio.create_task(conversation.call("hang"))
        await conversation.call("echo")
    with pytest.raises(ServerGone, match="was closed"):
        await waiting
    assert conversation.transport._process.status == 0
    assert len(conversation.owner.losses) == 1


async def test_a_server_may_take_a_moment_to_end() -> None:
    """SIGTERM would be seen in its exit status."""
    async with talk(bad("slowexit=0.1")) as conversation:
        pass
    assert conversation.transport._process.status == 0


@pytest.mark.parametrize("modes", ["ignoreterm", "fork", "ignoreterm,fork"])
async def test_what_will_not_end_is_killed_with_all_it_has_started(modes: str) -> None:
    before, files = children(), descriptors()
    ignores_term = "ignoreterm" in modes
    async with talk(bad(modes), end_timeouts=BRISK if ignores_term else PATIENT) as conversation:
        pids = [int(await conversation.call("pid")), int(await conversation.call("forked"))]
    await wait_gone(*pids)
    assert conversation.transport._process.status == (-signal.SIGKILL if ignores_term else 0)
    assert (children(), descriptors()) == (before, files)


async def test_what_a_crashed_server_has_started_goes_with_it() -> None:
    async with talk(bad("fork")) as conversation:
        child = int(await conversation.call("forked"))
        with pytest.raises(ServerGone):
            await conversation.call("crash")
        await wait_gone(child)


async def test_a_server_that_sends_too_much_is_killed_with_all_it_has_started() -> None:
    async with talk(bad("ignoreterm,fork", max_message_bytes=100_000)) as conversation:
        pids = [conversation.transport.pid, int(await conversation.call("forked"))]
        with pytest.raises(ServerTalksNonsense):
            await conversation.call("big")
        await wait_gone(*pids)


async def test_the_longest_ending_takes_less_than_three_seconds() -> None:
    """Of the bounds, not of this machine: what it adds to them is the kernel's."""
    bounds = EndTimeouts()
    assert bounds.input_end + bounds.term + bounds.kill <= 2.5


async def test_an_owner_that_is_cancelled_again_and_again_leaves_nothing() -> None:
    before, files, pids = children(), descriptors(), list[int]()
    is_open = asyncio.Event()

    async def own() -> None:
        async with talk(bad("ignoreterm,fork"), end_timeouts=BRISK) as conversation:
            pids.extend([conversation.transport.pid, int(await conversation.call("forked"))])
            is_open.set()
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await asyncio.wait_for(is_open.wait(), PATIENCE_SECONDS)
    await eventually(lambda: not owner.cancel())  # which is of no effect once it is done
    assert owner.cancelled()
    await wait_gone(*pids)
    assert (children(), descriptors()) == (before, files)


@pytest.mark.parametrize("turns", range(6))
async def test_an_owner_that_is_cancelled_while_it_starts_leaves_nothing(turns: int) -> None:
    before, files = children(), descriptors()

    async def own() -> None:
        async with talk(bad()):
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    for _ in range(turns):
        await checkpoint()
    owner.cancel()
    await asyncio.wait([owner])
    assert (children(), descriptors()) == (before, files)


async def test_an_error_in_the_owner_comes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        async with talk(bad()):
            _ = 1 / 0


@pytest.mark.slow
async def test_two_hundred_connections_leave_no_process_and_no_descriptor() -> None:
    async def once(number: int) -> None:
        command = "cat" if number % 2 else "false"
        async with StdioTransport("short", McpServerConfig(command=command), Peer("short", Owner())):
            await checkpoint()

    before, files, tasks = children(), descriptors(), len(asyncio.all_tasks())
    for number in range(200):
        await once(number)
    assert (children(), descriptors(), len(asyncio.all_tasks())) == (before, files, tasks)


@pytest.mark.parametrize("room", range(0, 16, 2))
async def test_without_room_for_more_descriptors_a_server_is_away_and_nothing_is_left(room: int) -> None:
    before, files = children(), descriptors()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    next_one = os.dup(0)
    os.close(next_one)
    outcome = "open"
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one + room, limits[1]))
        async with StdioTransport("many", McpServerConfig(command="cat"), Peer("many", Owner())):
            pass
    except ServerAway as error:
        outcome = error.detail
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (children(), descriptors()) == (before, files)
    assert outcome == "open" or "Too many open files" in outcome
    assert room > 0 or outcome != "open"


async def test_where_the_system_does_not_tell_of_an_end_it_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    async with talk(bad()) as conversation:
        with pytest.raises(ServerGone, match="exit status 9"):
            await conversation.call("crash", status=9)


async def test_a_server_is_started_although_there_is_no_guard(caplog: pytest.LogCaptureFixture) -> None:
    before, files, ended = children(), descriptors(), asyncio.Event()
    process = ServerProcess("cat", ["cat"], {}, None, ended.set, timeouts=PATIENT, guard=("/no/such/shell",))
    stdin, stdout, stderr = process.pipes
    with stdin, stdout, stderr:
        stdin.write(b"unguarded")
        assert await asyncio.to_thread(stdout.read, 100) == b"unguarded"
        stdin.close()
        await process.end()
    assert (process.status, ended.is_set()) == (0, True)
    assert [(record.message, record.levelno) for record in caplog.records] == [
        ("downstream.unguarded", logging.WARNING)
    ]
    assert (children(), descriptors()) == (before, files)


OWNER = """
import asyncio, sys
from tests.downstream.transports.stdio_rig import bad, talk
async def main():
    async with talk(bad("ignoreterm,fork")) as one, talk(bad("ignoreterm")) as two:
        print(one.transport.pid, await one.call("forked"), two.transport.pid, flush=True)
        await asyncio.Event().wait()
if sys.argv[1] == "uvloop":
    import uvloop
    uvloop.run(main())
else:
    asyncio.run(main())
"""
"""A gateway with two servers that nothing but SIGKILL ends, one of them with a child like that."""


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_when_we_are_killed_the_servers_are_gone_with_all_they_have_started(loop: str) -> None:
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, loop, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3], env=_environment()
    )
    assert gateway.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        pids = [int(pid) for pid in (await gateway.stdout.readline()).split()]
    assert len(pids) == 3
    gateway.kill()
    await gateway.wait()
    await wait_gone(*pids)


def _environment() -> dict[str, Any]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
