"""The floor: an ASGI application that parses JSON-RPC, echoes a text and dumps the answer, and does nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from listening import serve_app

Message = dict[str, Any]


async def echo(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Answer one `tools/call`, whatever tool it names."""
    request = orjson.loads(await _read(receive))
    text = request["params"]["arguments"]["text"]
    result = {"content": [{"type": "text", "text": text}]}
    body = orjson.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result})
    headers = [(b"content-length", b"%d" % len(body)), (b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _read(receive: Callable[[], Awaitable[Message]]) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    return body


async def application(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The echo, beside the lifespan messages that uvicorn sends."""
    if scope["type"] == "http":
        return await echo(scope, receive, send)
    while (await receive())["type"] != "lifespan.shutdown":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    serve_app(application)
