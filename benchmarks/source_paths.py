"""Lists the source files that a search, a forwarded call and an ingested document pass through.

    python benchmarks/source_paths.py

Starts a server in this process, makes each call twice, and traces the second time.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp

from refdesk.app import open_desk
from refdesk.config.loading import load
from refdesk.inbound.http_server import HttpServer, bind, open_http, url_of

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "refdesk"
SERVERS = ROOT / "benchmarks" / "servers"

HANDBOOK = "# Deploy\n\n## Roll back a release\n\nRun `deploy rollback v41`. A rollback takes two minutes.\n"


class Tracer:
    """Notes the files of Refdesk in the order in which a function of theirs is first called."""

    def __init__(self) -> None:
        self.files: dict[str, None] = {}
        self.is_recording = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if self.is_recording and event == "call" and path.startswith(str(SOURCE)):
            self.files.setdefault(path.removeprefix(f"{SOURCE}/"))


@asynccontextmanager
async def run_server(folder: Path) -> AsyncIterator[str]:
    """Serve a desk with one downstream server; yield its URL."""
    servers = {"echo": {"command": sys.executable, "args": [str(SERVERS / "downstream.py"), "stdio"]}}
    config = load(None, {}, {"data_dir": str(folder), "server.port": 0, "mcpServers": servers})
    listener, ready = bind(config.server), asyncio.Event()
    async with open_desk(config) as desk, open_http(desk, config, listener.getsockname()[1]) as app:
        server = HttpServer(app, config.server, ready.set)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await ready.wait()
            # Embedding the manual would add the files of that to the first calls.
            while any((await desk.engine.waiting()).values()):  # noqa: ASYNC110  the engine counts, and emits no event
                await asyncio.sleep(0.1)
            yield url_of(listener)
        finally:
            server.should_exit = True
            await serving


async def call(http: aiohttp.ClientSession, tool: str, arguments: Mapping[str, Any]) -> None:
    """Call a tool over MCP and raise if that fails."""
    params = {"name": tool, "arguments": arguments}
    async with http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) as answer:
        result = (await answer.json()).get("result", {})
        if "content" not in result or result.get("isError"):
            raise RuntimeError(f"{tool} failed: {await answer.text()}")


async def main() -> None:
    """Trace each call and print the files it passes through."""
    tracer = Tracer()
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    text = "# Deploy\n\n## Roll back a release\n\nRun `deploy rollback`. It takes two minutes.\n"
    calls: dict[str, tuple[str, dict[str, Any]]] = {
        "a search": ("search_documentation", {"query": "How do I roll back?"}),
        "a forwarded call": ("echo__echo", {"text": "hello"}),
        # Last, because the ingest worker goes on in the background.
        "an ingested document": ("r2r_ingest_document", {"title": "Deploy", "text": text, "run_async": False}),
    }
    with tempfile.TemporaryDirectory() as folder:
        async with run_server(Path(folder)) as url, aiohttp.ClientSession(url) as http:
            for name, (tool, arguments) in calls.items():
                for round in range(2):
                    # Other arguments each time: a cached answer would take a shorter path.
                    varied = {
                        key: f"{value} {round}" if key != "run_async" else value for key, value in arguments.items()
                    }
                    tracer.files.clear()
                    tracer.is_recording = bool(round)
                    await call(http, tool, varied)
                    tracer.is_recording = False
                print(f"{name}: {len(tracer.files)} files", *tracer.files, sep="\n  ")


if __name__ == "__main__":
    asyncio.run(main())
