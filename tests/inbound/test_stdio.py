"""Standard input and output, by raw lines to a real process."""

from __future__ import annotations

import asyncio
import io
import json
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from refdesk.inbound.stdio import LineWriter
from refdesk.policy.policies import CONSOLE_RULES
from tests.processes import BY_WORDS, REFDESK, environment
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "init",
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
ECHO = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}}


class Session:
    """A server process, written to and read from line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.stdin, self.stdout = process.stdin, process.stdout

    def send(self, *messages: Any) -> None:
        for message in messages:
            line = message if isinstance(message, bytes) else json.dumps(message).encode()
            self.stdin.write(line + b"\n")

    async def receive(self) -> dict[str, Any]:
        """The next answer; what the server tells unasked, such as that its lists have changed, comes at any time."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "method" in (message := json.loads(await self.stdout.readline())):
                continue
        answer: dict[str, Any] = message
        return answer


@asynccontextmanager
async def session(tmp_path: Path) -> AsyncIterator[Session]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.stdio_server", str(tmp_path), cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
    )  # fmt: skip
    opened = Session(process)
    try:
        opened.send(INITIALIZE, INITIALIZED)
        assert (await opened.receive())["id"] == "init"
        yield opened
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.fixture(scope="module")
async def shared_session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """One process for all tests that leave it as it was."""
    async with session(tmp_path_factory.mktemp("shared")) as shared:
        yield shared


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"garbage", -32700),
        (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', -32700),
        (b"[]", -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 100 + b"1" + b"}" * 101, -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"' + b"y" * 4_300_000 + b'"}}', -32600),
    ],
)
async def test_a_bad_line_is_answered_and_costs_only_itself(shared_session: Session, line: bytes, code: int) -> None:
    shared_session.send(line, b"", b"   ", ECHO)
    refused = await shared_session.receive()
    assert refused["error"]["code"] == code
    assert set(refused["error"]["data"]) >= {"type", "detail", "retryable"}
    assert (await shared_session.receive())["result"]["structuredContent"]["echoed"] == "hi"


async def test_console_methods_are_unknown(shared_session: Session) -> None:
    for method in CONSOLE_RULES:
        shared_session.send({"jsonrpc": "2.0", "id": method, "method": method, "params": {"name": "x"}})
        refused = await shared_session.receive()
        assert (refused["id"], refused["error"]["code"]) == (method, -32601)


async def test_a_second_call_of_an_id_in_flight_is_refused_and_a_cancelled_id_is_free_again(
    shared_session: Session,
) -> None:
    hang = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "hang", "arguments": {}}}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    shared_session.send(hang, {"jsonrpc": "2.0", "id": 7, "method": "ping"})
    refused = await shared_session.receive()
    assert (refused["id"], refused["error"]["code"]) == (7, -32600)
    shared_session.send(cancel, {"jsonrpc": "2.0", "id": 8, "method": "ping"})
    while (answer := await shared_session.receive())["id"] != 8:
        assert answer["id"] == 7
    shared_session.send({"jsonrpc": "2.0", "id": 7, "method": "ping"})
    assert (await shared_session.receive())["result"] == {}


async def test_pending_answers_are_written_before_the_process_ends(tmp_path: Path) -> None:
    async with session(tmp_path) as opened:
        opened.send(*({**ECHO, "id": number} for number in range(20)))
        opened.stdin.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            output = await opened.stdout.read()
            assert await opened.process.wait() == 0
        messages = [json.loads(line) for line in output.splitlines()]
        assert sorted(message["id"] for message in messages if "id" in message) == list(range(20))
        # The manual may be indexed meanwhile, which changes the lists.
        others = {message["method"] for message in messages if "id" not in message}
        assert others <= {"notifications/tools/list_changed", "notifications/resources/list_changed"}


async def test_writer_that_is_closed_with_lines_in_its_queue_returns_after_the_last_one() -> None:
    file = io.BytesIO()
    writer = LineWriter(file)
    writer.put(b"one\n")
    writer.close()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await writer.run()
    assert file.getvalue() == b"one\n"


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_it_at_once_though_nobody_closed_its_input(tmp_path: Path, which: signal.Signals) -> None:
    process = await asyncio.create_subprocess_exec(
        *REFDESK, "serve", "--stdio", "--data", str(tmp_path), cwd=tmp_path, env=environment(tmp_path, **BY_WORDS),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    opened = Session(process)
    opened.send(INITIALIZE)
    assert (await opened.receive())["id"] == "init"
    await ends_at(process, which)


async def ends_at(process: asyncio.subprocess.Process, which: signal.Signals) -> None:
    """A signal has to end it, in order and in time."""
    process.send_signal(which)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_what_a_tool_prints_does_not_reach_the_protocol(shared_session: Session) -> None:
    shared_session.send(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "chatter", "arguments": {}}}
    )
    assert (await shared_session.receive())["result"]["content"][0]["text"] == "printed"


@pytest.mark.parametrize("request_id", [[1], {}, None, 1.5])
async def test_cancelling_nothing_that_could_be_an_id_is_ignored(shared_session: Session, request_id: Any) -> None:
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request_id}}
    shared_session.send(cancel, ECHO)
    assert (await shared_session.receive())["result"]["structuredContent"]["echoed"] == "hi"


async def test_a_client_that_reads_nothing_can_still_stop_it(tmp_path: Path) -> None:
    search = {"name": "search_documentation", "arguments": {"query": "server", "max_results": 20}}
    calls = ({"jsonrpc": "2.0", "id": n, "method": "tools/call", "params": search} for n in range(300))
    lines = b"".join(json.dumps(message).encode() + b"\n" for message in (INITIALIZE, INITIALIZED, *calls))
    command = [*REFDESK, "serve", "--stdio", "--data", str(tmp_path)]
    with unread_pipe() as output, unread_pipe() as errors:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, env=environment(tmp_path, MCP_LOG_LEVEL="info", **BY_WORDS),
            stdin=asyncio.subprocess.PIPE, stdout=output, stderr=errors,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(lines)
        await eventually(lambda: is_full(output))
        await ends_at(process, signal.SIGTERM)


@contextmanager
def unread_pipe() -> Iterator[int]:
    """The end to write to of a pipe that is open and that nobody reads."""
    reader, writer = os.pipe()
    try:
        yield writer
    finally:
        os.close(reader)
        os.close(writer)


def is_full(pipe: int) -> bool:
    """Whether nothing more can be written to a pipe for now."""
    return not select.select([], [pipe], [], 0)[1]
