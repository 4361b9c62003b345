"""`python -m tests.stdio_server DATA`: our server with the test tools on standard input and output."""

from __future__ import annotations

import sys

import uvloop

from refdesk.app import open_desk
from refdesk.config.loading import load
from refdesk.inbound.stdio import serve_stdio
from tests.servers import register_test_tools


async def main(data: str) -> None:
    config = load(None, {}, {"data_dir": data})
    async with open_desk(config) as desk:
        register_test_tools(desk)
        await serve_stdio(desk, config.server)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
