"""A desk with servers behind it, reached through its real door; and what has to hold whatever those servers do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from refdesk.config.loading import load
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.fleet import Fleet
from tests.conftest import Serve
from tests.downstream.connecting import BAD_STDIO
from tests.downstream.contract import Belongings
from tests.inbound.streaming import ACCEPT, RawSession, RawStream
from tests.servers import RunningServer, running_server
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).parents[2]
REVISION = "2025-11-25"

GATED = """
import runpy, sys
gate, program = sys.argv[1:3]
open(gate).close()
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""

TURNING = """
import os, runpy, signal, sys
sign, program = sys.argv[1:3]
if os.path.exists(sign):
    with open(sign, "r+") as file:
        mode = file.readline().strip()
        file.seek(0, os.SEEK_END)
        file.write("started\\n")
    signal.pause() if mode == "hang" else sys.exit(3)
sys.argv = [program]
runpy.run_path(program, run_name="__main__")
"""

Settings = dict[str, Any]


def bad(*modes: str, **more: Any) -> Settings:
    """The server on standard input and output that does wrong what it is asked to."""
    return {"command": sys.executable, "args": [str(BAD_STDIO), ",".join(modes)], **more}


def behind_gate(gate: Path, **more: Any) -> Settings:
    """The same, but it starts only when the gate, a named pipe, is open for writing."""
    return {"command": sys.executable, "args": ["-c", GATED, str(gate), str(BAD_STDIO)], **more}


def turning(sign: Path, **more: Any) -> Settings:
    """The same, but from when there is such a file it crashes at its start, or hangs when that is what the file says;
    each start is a line in it."""
    return {"command": sys.executable, "args": ["-c", TURNING, str(sign), str(BAD_STDIO)], **more}


def starts_of(sign: Path) -> int:
    """How often it has been started since."""
    return sign.read_text().count("started")


def talkative(era: str = "both", **more: Any) -> Settings:
    """The server that can everything, on standard input and output."""
    args = ["-m", "tests.downstream.servers.talkative", "stdio", "0", era]
    return {"command": sys.executable, "args": args, "cwd": str(ROOT), **more}


def flooding() -> Settings:
    """The server that floods until it is told to stop."""
    return {"command": sys.executable, "args": [str(Path(__file__).with_name("flooding.py"))]}


@dataclass
class Gateway:
    """A desk that is up, as its callers see it."""

    http: httpx2.AsyncClient
    fleet: Fleet | None = None
    """The servers behind it, unless it is another process."""

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"{str(self.http.base_url).rstrip('/')}/mcp"

    async def session(self) -> RawSession:
        """A session that was opened in order."""
        greeting = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting}
        opened = await self.http.post("/mcp", json=message, headers={"accept": ACCEPT})
        id = opened.headers["mcp-session-id"]
        session = RawSession(self.http, {"accept": ACCEPT, "mcp-session-id": id, "mcp-protocol-version": REVISION})
        await session.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return session

    async def ask(self, method: str, params: Any = None, *, id: int | str = 1, **headers: str) -> Any:
        """The message that answers a request; that there is one, in bearable time, is half of what is tested."""
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        async with asyncio.timeout(PATIENCE_SECONDS):
            response = await self.http.post("/mcp", json=message, headers=_names(headers))
        answer = response.json()
        assert answer["id"] == id
        assert ("result" in answer) != ("error" in answer)
        return answer

    async def call(self, tool: str, **arguments: Any) -> Any:
        """The message that answers the call of a tool."""
        return await self.ask("tools/call", {"name": tool, "arguments": arguments})

    async def text(self, tool: str, **arguments: Any) -> str:
        """What a tool says that does not fail."""
        answer = await self.call(tool, **arguments)
        assert "result" in answer, answer
        text = answer["result"]["content"][0]["text"]
        assert isinstance(text, str)
        return text

    async def failure(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The error of a call that the server behind has failed: of a known kind, in one of the codes for that."""
        return failure_of(await self.call(tool, **arguments))

    async def during(self, tool: str, **arguments: Any) -> Any:
        """How such a call is answered, while the server `good` is called all the time and answers rightly."""
        asking = asyncio.create_task(self.call(tool, **arguments))
        while not asking.done():
            await self.good_answers()
        return asking.result()

    async def good_answers(self) -> None:
        """Call the server `good`."""
        assert await self.text("good__echo", text="still here") == "still here"

    async def hanging(self, tool: str, is_under_way: Callable[[], object] | None = None, **arguments: Any) -> Any:
        """How a call is answered that never ends and is timed out; the server `good` answers before that.

        `is_under_way` says whether the server is at it, where that is more than to have the call in flight.
        """
        assert self.fleet is not None
        connection = self.fleet.servers[tool.partition("__")[0]]
        asking = asyncio.create_task(self.call(tool, **arguments))
        await eventually(is_under_way or (lambda: connection.describe()["in_flight"]))
        for _ in range(3):
            await self.good_answers()
        assert not asking.done(), asking.result()
        run_out_of_time(connection)
        return await asking

    async def tools(self) -> set[str]:
        """The names of all tools, on however many pages."""
        names: set[str] = set()
        asked: dict[str, Any] = {}
        while True:
            page = (await self.ask("tools/list", asked))["result"]
            names |= {tool["name"] for tool in page["tools"]}
            if "nextCursor" not in page:
                return names
            asked = {"cursor": page["nextCursor"]}

    async def servers(self) -> set[str]:
        """The servers that tools are offered of."""
        return {name.split("__")[0] for name in await self.tools() if "__" in name}

    async def offers(self, *servers: str) -> None:
        """Wait until tools of all these are offered."""

        async def are_there() -> bool:
            return await self.servers() >= set(servers)

        await eventually(are_there)

    async def works(self, tool: str, **arguments: Any) -> None:
        """Wait until a server that was away answers again, by itself; meanwhile it fails as it should."""

        async def does() -> bool:
            answer = await self.call(tool, **arguments)
            if "error" in answer:
                failure_of(answer)
            return "result" in answer

        await eventually(does)

    async def describe(self, server: str) -> dict[str, Any]:
        """What `/ready` says of a server."""
        described: dict[str, Any] = (await self.ready())["servers"][server]
        return described

    async def ready(self) -> dict[str, Any]:
        """What `/ready` says of all servers; a desk is ready whatever those behind it do."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await self.http.get("/ready")
        assert answer.status_code == 200, answer.text
        checks: dict[str, Any] = answer.json()["checks"]["downstream"]
        return checks

    async def until_described(self, server: str, **expected: Any) -> None:
        """Wait until it says this of a server."""

        async def does() -> bool:
            return (await self.describe(server)).items() >= expected.items()

        await eventually(does)

    async def until_away(self, *servers: str) -> dict[str, Any]:
        """Wait until it says that these servers cannot be reached; return what it says then of all.

        It says so between two tries. During a try, such a server is `Starting`.
        """
        ready: dict[str, Any] = {}

        async def are_away() -> bool:
            ready.update(await self.ready())
            return all(ready["servers"][server]["state"] == "Error" for server in servers)

        await eventually(are_away)
        assert ready["state"] == "degraded"
        assert all(server in ready["servers"][server]["message"] for server in servers)
        return ready


def _names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): text for name, text in headers.items()}


def run_out_of_time(connection: Connection) -> None:
    """Let the calls in flight time out now."""
    deadlines = connection._deadlines[connection.settings.call_timeout_seconds]
    deadlines.close()
    deadlines._running = dict.fromkeys(deadlines._running, 0.0)
    deadlines._stop_overdue()


def failure_of(answer: Any) -> dict[str, Any]:
    """The error in an answer, which has to be one that says: a server behind failed."""
    error: dict[str, Any] = answer["error"]
    assert error["code"] in (-32001, -32003), error
    assert error["data"]["type"] in ("ServerAway", "ServerGone", "ServerTooSlow", "ServerTalksNonsense", "BreakerOpen")
    assert error["message"] == error["data"]["detail"]
    return error


def serving_in(folder: Path) -> Serve:
    """As the fixture `serve`, for desks that several tests share."""

    def serve(**overrides: Any) -> AbstractAsyncContextManager[RunningServer]:
        alone = {"data_dir": str(folder), "server.port": 0, "embedding.source": "none"}
        return running_server(load(None, {}, alone | overrides))

    return serve


@asynccontextmanager
async def gateway(serve: Serve, *ready: str, **servers: Settings) -> AsyncIterator[Gateway]:
    """A desk with these servers, of which those named last are there (all, when none is named); at the end there is no
    task, no open file and no process more than before."""
    # With its first pipe to a process, the loop itself opens a file that it keeps.
    await (await asyncio.create_subprocess_exec("true", stdout=asyncio.subprocess.PIPE)).communicate()
    before = Belongings.now()
    async with serve(mcpServers=servers) as running:
        gateway = Gateway(running.http, running.desk.fleet)
        await gateway.offers(*(ready or servers))
        yield gateway
    await nothing_is_left(before)


NOT_OURS = ("_shutdown_watcher", "_call_in_runner_task", "/refdesk/manual-")
"""What is there although the desk is closed: a task that `sse_starlette` has for every loop, the one that runs tests,
and open files of the manual, which another run may just have replaced."""


async def nothing_is_left(before: Belongings) -> None:
    """Wait until there is nothing that was not there before."""
    left: list[str] = []

    async def is_so() -> bool:
        now = Belongings.now()
        left[:] = (what for what in now.beside(before) if not any(known in what for known in NOT_OURS))
        if _sockets(now) <= _sockets(before):  # the loop has some of its own, and at times others
            left[:] = (what for what in left if "socket:" not in what)
        return not left

    try:
        await eventually(is_so)
    except TimeoutError:
        raise AssertionError(f"left behind: {left}") from None


def _sockets(belongings: Belongings) -> int:
    return sum(target.startswith("socket:") for target in belongings.files.values())


@asynccontextmanager
async def listening(session: RawSession) -> AsyncIterator[RawStream]:
    """The stream of what belongs to no call."""
    async with session.http.stream("GET", "/mcp", headers=session.headers) as response:
        assert response.status_code == 200
        yield RawStream(response)
