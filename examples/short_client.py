"""The same in a few lines: `refdesk.connect` to a desk that runs, `refdesk.open` for one inside this program.

python examples/short_client.py
"""

from __future__ import annotations

import asyncio

import refdesk
from own_desk import open_desk

QUESTION = {"query": "How do I require an API key?", "max_results": 1}


async def main() -> None:
    async with open_desk() as url, refdesk.connect(f"{url}/mcp") as client:
        print((await client.call("search_documentation", QUESTION)).text)

    async with refdesk.open() as desk:  # no server, no network: the desk is a part of this process
        print((await desk.call("search_documentation", QUESTION)).text)


if __name__ == "__main__":
    asyncio.run(main())
