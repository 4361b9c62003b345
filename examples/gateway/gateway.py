"""Two MCP servers behind one desk: all their tools in one place, one search over all, and what a crash does.

python examples/gateway/gateway.py
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import refdesk  # noqa: E402
from own_desk import PATIENCE_SECONDS, free_port, open_desk  # noqa: E402
from refdesk.errors import RefdeskError  # noqa: E402


async def start_tickets(port: int) -> asyncio.subprocess.Process:
    """The server over HTTP is a process of its own; the desk starts the other one itself."""
    return await asyncio.create_subprocess_exec(sys.executable, str(HERE / "tickets_server.py"), str(port))


async def main() -> None:
    port = free_port()
    tickets = await start_tickets(port)
    settings = {
        "mcpServers": {
            # `docs` says that search_documentation asks their `search` too.
            "notes": {"command": sys.executable, "args": [str(HERE / "notes_server.py")], "docs": True},
            "tickets": {"url": f"http://127.0.0.1:{port}/mcp", "docs": True},
        }
    }
    try:
        async with open_desk(settings) as url, refdesk.connect(f"{url}/mcp", tool_cache_seconds=0) as client:
            # The tools of both servers are the desk's own to whoever connects.
            names = await until_offered(client, "notes__search", "tickets__count")
            print("tools:", ", ".join(name for name in names if "__" in name))
            print("tickets:", (await client.call("tickets__count")).text)

            # One question, asked of the desk's own documents and of both servers at once.
            await show_search(client, "nightly backups")

            # One of them crashes. The desk says so, and goes on with the other.
            tickets.kill()
            await tickets.wait()
            try:
                await client.call("tickets__count")
            except RefdeskError as failure:
                print("\ntickets is down:", failure)
            await show_search(client, "backups kept for days")

            # It comes back, and nobody has to do anything.
            tickets = await start_tickets(port)
            print("\ntickets is back:", await until_it_answers(client))
    finally:
        if tickets.returncode is None:
            tickets.kill()
        await tickets.wait()


async def show_search(client: refdesk.Client, question: str) -> None:
    found = await client.call("search_documentation", {"query": question})
    print(f"\n{question}:")
    for item in found.content:
        print("-", item["text"].splitlines()[0].strip("# "), "|", item["_meta"]["metadata"]["source"])
    print(found.text.splitlines()[-1])


async def until_offered(client: refdesk.Client, *wanted: str) -> list[str]:
    """Servers behind a desk are connected to while it already answers; wait for these."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            names = [tool["name"] for tool in await client.tools()]
            if set(wanted) <= set(names):
                return names
            await asyncio.sleep(0.2)


async def until_it_answers(client: refdesk.Client) -> str:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return (await client.call("tickets__count")).text
            except RefdeskError:
                await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main())
