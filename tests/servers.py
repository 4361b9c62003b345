"""A real server for tests: our own app on a real socket, in this process's loop, with a few tools that show faults."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import httpx2
from pydantic import Field

from refdesk.app import Desk, open_desk
from refdesk.calls import Annotations, Call
from refdesk.config.models import Config
from refdesk.errors import DocumentNotFound, EngineError
from refdesk.inbound.http_app import HttpApp
from refdesk.inbound.http_server import HttpServer, bind, open_http, url_of
from refdesk.tools.json_schema import Arguments, Result
from refdesk.tools.registry import Tool
from tests.waiting import PATIENCE_SECONDS


class EchoArguments(Arguments):
    text: Annotated[str, Field(max_length=100)]
    times: Annotated[int, Field(ge=1, le=9)] = 1
    loud: bool = False


class Echo(Result):
    echoed: str
    length: int

    def readable(self) -> str:
        return self.echoed


class NoArguments(Arguments):
    pass


@dataclass
class Probe:
    """What the fault tools have seen."""

    started: asyncio.Event
    cancelled: asyncio.Event


async def echo(arguments: EchoArguments, call: Call) -> Result:
    text = arguments.text * arguments.times
    return Echo(echoed=text.upper() if arguments.loud else text, length=len(text))


async def whoami(arguments: NoArguments, call: Call) -> str:
    return f"{call.caller.tenant}/{call.caller.user}"


async def missing(arguments: NoArguments, call: Call) -> str:
    raise DocumentNotFound("There is no such document. Search for it.")


async def broken(arguments: NoArguments, call: Call) -> str:
    raise RuntimeError("secret detail of the inside")


async def down(arguments: NoArguments, call: Call) -> str:
    raise EngineError("the engine does not answer", retry_after=2.0)


async def report(arguments: NoArguments, call: Call) -> str:
    for done in (1, 2, 3):
        await call.client.progress(done, 3, f"step {done}")
    await call.client.log("warning", "almost done", "report")
    return "reported"


async def chatter(arguments: NoArguments, call: Call) -> str:
    print("this belongs to the log", flush=True)  # noqa: T201 - what a careless tool would do
    os.write(1, b"and so does this\n")
    return "printed"


async def ask_name(arguments: NoArguments, call: Call) -> str:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    answer = await call.client.ask("name", "elicitation/create", {"message": "Who?", "requestedSchema": schema})
    return f"Hello {answer['content']['name']}"


def register_test_tools(desk: Desk) -> Probe:
    """Tools whose behaviour the tests know."""
    probe = Probe(asyncio.Event(), asyncio.Event())

    async def hang(arguments: NoArguments, call: Call) -> str:
        probe.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            probe.cancelled.set()
        return "never"

    read_only = Annotations()
    tools: list[Tool[Any]] = [
        Tool("echo", "Echo", "Say it again.", "docs", EchoArguments, echo, result=Echo, annotations=read_only),
        Tool("whoami", "Who am I", "Tells the caller.", "docs", NoArguments, whoami),
        Tool("missing", "Missing", "Finds nothing.", "docs", NoArguments, missing),
        Tool("broken", "Broken", "Fails unforeseen.", "docs", NoArguments, broken),
        Tool("down", "Down", "Its engine is down.", "docs", NoArguments, down),
        Tool("hang", "Hang", "Never ends.", "docs", NoArguments, hang),
        Tool("chatter", "Chatter", "Prints.", "docs", NoArguments, chatter),
        Tool("report", "Report", "Reports progress.", "docs", NoArguments, report),
        Tool("ask_name", "Ask", "Asks the client.", "docs", NoArguments, ask_name),
    ]
    for tool in tools:
        desk.registry.add_tool(tool)
    return probe


@dataclass
class RunningServer:
    """A server that is up, and a client for raw requests."""

    url: str
    port: int
    desk: Desk
    app: HttpApp
    probe: Probe
    http: httpx2.AsyncClient
    server: HttpServer

    async def post(self, message: Any, **headers: str) -> httpx2.Response:
        """A bare JSON-RPC request, with only its Content-Type."""
        body = message if isinstance(message, bytes) else None
        more = {name.replace("_", "-"): text for name, text in headers.items()}
        return await self.http.post(
            "/mcp",
            content=body,
            json=None if body is not None else message,
            headers={"content-type": "application/json"} | more,
        )

    async def call(self, method: str, params: Any = None, **headers: str) -> Any:
        """The JSON of a bare request's answer."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method} | ({"params": params} if params is not None else {})
        return (await self.post(message, **headers)).json()


@asynccontextmanager
async def running_server(config: Config) -> AsyncIterator[RunningServer]:
    """Our server on a real socket, with the test tools; stopped in order at the end."""
    listener = bind(config.server)
    port = listener.getsockname()[1]
    async with open_desk(config) as desk, open_http(desk, config, port) as app:
        probe = register_test_tools(desk)
        ready = asyncio.Event()
        server = HttpServer(app, config.server, ready.set)
        running = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await ready.wait()
            url = url_of(listener)
            async with httpx2.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, verify=False) as http:
                yield RunningServer(url, port, desk, app, probe, http, server)
        finally:
            server.should_exit = True
            await running
