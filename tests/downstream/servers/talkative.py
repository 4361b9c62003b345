"""An MCP server without any library for it, that can everything: `python -m tests.downstream.servers.talkative`.

    stdio                     on standard input and output
    http PORT                 Streamable HTTP on /mcp, the older SSE on /sse, WebSocket on /ws; the port is printed

A third word `legacy` or `modern` keeps it to the revisions before 2026-07-28, or to that one; else it speaks both.
"""

from __future__ import annotations

import asyncio
import sys

from tests.downstream.servers.talkative_brain import Client, Message, World, converse, encode


async def serve_stdio(world: World) -> None:
    """Until standard input ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2**28)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def say(message: Message | str | bytes) -> None:
        line = encode(message)
        sys.stdout.buffer.write((line if isinstance(line, bytes) else line.encode()) + b"\n")
        sys.stdout.buffer.flush()

    await converse(Client(world, say), reader, {})


def main(door: str, port: str = "0", era: str = "both") -> None:
    """Serve until ended."""
    if door == "stdio":
        asyncio.run(serve_stdio(World(era)))
    else:
        from tests.downstream.servers.talkative_doors import serve_network

        asyncio.run(serve_network(World(era), int(port)))


if __name__ == "__main__":
    main(*sys.argv[1:])
