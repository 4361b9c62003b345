"""The server behind every gateway that is measured: it echoes, on standard input and output or over HTTP.

`downstream.py stdio [normal|hang|crash]` uses nothing but the standard library, so that ten of them start quickly;
`downstream.py http` prints its port. A server that hangs reads and never answers; one that crashes ends at once.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ECHO = {
    "name": "echo",
    "description": "Echo the text",
    "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result or error that answers a request."""
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "result": {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[-1],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "downstream", "version": "1"},
            }
        }
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        return {"result": {"tools": [ECHO]}}
    if method == "tools/call" and params.get("name") == "echo":
        return {"result": {"content": [{"type": "text", "text": params["arguments"]["text"]}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def serve_stdio(mode: str) -> int:
    """Answer line by line."""
    if mode == "crash":
        print("this server always crashes", file=sys.stderr)
        return 1
    for line in sys.stdin.buffer:
        if mode == "hang":
            continue
        message = json.loads(line)
        if message.get("id") is not None and "method" in message:
            body = {"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], message.get("params") or {})}
            sys.stdout.buffer.write(json.dumps(body).encode() + b"\n")
            sys.stdout.buffer.flush()
    while mode == "hang":
        time.sleep(3600)
    return 0


def serve_http() -> int:
    """Answer on a free port."""
    import orjson
    from listening import serve_app

    async def application(scope: Any, receive: Any, send: Any) -> None:
        while scope["type"] == "lifespan":
            await send({"type": f"{(await receive())['type']}.complete"})
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part["body"], part["more_body"]
        message = orjson.loads(body) if body else {}
        headers = [(b"content-type", b"application/json")]
        if message.get("id") is None:
            status, given = (202 if body else 405), b""
        else:
            status, params = 200, message.get("params") or {}
            given = orjson.dumps({"jsonrpc": "2.0", "id": message["id"], **answer(message["method"], params)})
            if message["method"] == "initialize":
                headers.append((b"mcp-session-id", b"%x" % time.monotonic_ns()))
        headers.append((b"content-length", b"%d" % len(given)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": given})

    serve_app(application)
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        sys.exit(serve_stdio(sys.argv[2] if len(sys.argv) > 2 else "normal"))
    del sys.argv[1]
    sys.exit(serve_http())
