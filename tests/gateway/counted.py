"""`python -m tests.gateway.counted CONFIG DATA`: our server, with a tool that counts what the process has."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import orjson
import uvloop

from refdesk.calls import Call
from refdesk.config.loading import load
from refdesk.tools.registry import Tool
from tests.processes import children
from tests.servers import NoArguments, running_server


async def count(arguments: NoArguments, call: Call) -> str:
    """Tasks, open files, children; and the memory, in bytes."""
    gc.collect()
    return orjson.dumps({"tasks": len(asyncio.all_tasks()), **_of_the_process()}).decode()


def _of_the_process() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return {"files": files, "children": len(children()), "rss": pages * os.sysconf("SC_PAGE_SIZE")}


async def main(config: str, data: str) -> None:
    """Until killed; the address is printed."""
    settings = load(Path(config), {}, {"data_dir": data, "server.port": 0})
    async with running_server(settings) as server:
        server.desk.registry.add_tool(Tool("count", "Count", "Counts.", "docs", NoArguments, count))
        sys.stdout.write(f"{server.url}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
