"""`python -m tests.gateway.late_echo stdio|http`: a server whose one tool says what it is told after a while, so that
its answers come in another order than the calls; only as much of MCP as that takes."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

TOOL = {"name": "echo", "inputSchema": {"type": "object"}}
INFO = {"name": "late", "version": "1"}


async def answer_to(message: dict[str, Any]) -> dict[str, Any] | None:
    """The answer, in its time."""
    if "id" not in message:
        return None
    params = message.get("params") or {}
    match message["method"]:
        case "initialize":
            version = params["protocolVersion"]
            result: dict[str, Any] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": INFO}
        case "tools/list":
            result = {"tools": [TOOL]}
        case "tools/call":
            await asyncio.sleep(params["arguments"]["ms"] / 1000)
            result = {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
        case _:
            result = {}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


async def serve_stdio() -> None:
    """Until the input ends."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

    async def respond(line: bytes) -> None:
        answer = await answer_to(json.loads(line))
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()

    async with asyncio.TaskGroup() as tasks:
        async for line in reader:
            tasks.create_task(respond(line))


async def serve_http() -> None:
    """Until ended; the port is printed."""
    from aiohttp import web

    async def post(request: web.Request) -> web.Response:
        answer = await answer_to(await request.json())
        return web.Response(status=202) if answer is None else web.json_response(answer)

    app = web.Application()
    app.add_routes([web.post("/mcp", post)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve_stdio() if sys.argv[1] == "stdio" else serve_http())
