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
    """Tasks, open files, children; and the memory, in bytes. The tasks and children by name, too."""
    gc.collect()
    tasks = sorted(repr(task.get_coro()) for task in asyncio.all_tasks())
    commands = sorted(map(_describe, children()))
    names = {"task_names": tasks, "child_commands": commands}
    return orjson.dumps({"tasks": len(tasks), "children": len(commands), **_of_the_process(), **names}).decode()


def _of_the_process() -> dict[str, int]:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    files = len(list(Path("/proc/self/fd").iterdir()))
    return {"files": files, "rss": pages * os.sysconf("SC_PAGE_SIZE")}


def _describe(pid: str) -> str:
    """State and command line of a child, such as `S: python -m ...`. A process that isn't waited for is `Z: `."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return "gone"
    return f"{state}: {command[:300]}"


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
