"""The floor of a gateway: a relay without sessions, policies or time-outs between raw HTTP and one server.

Arguments: the file with `mcpServers`, the port.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop
from listening import serve_app

Message = dict[str, Any]
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "relay", "version": "1"},
}


class OverStdio:
    """One process, and the answers that are waited for."""

    def __init__(self, settings: Message) -> None:
        self._settings = settings
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    async def open(self) -> None:
        command = [self._settings["command"], *self._settings["args"]]
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        self._reading = asyncio.create_task(self._read())
        await self.ask("initialize", INITIALIZE)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            message = orjson.loads(line)
            self._waiting.pop(message["id"]).set_result(message)

    async def ask(self, method: str, params: Message) -> Message:
        assert self._process.stdin is not None
        id = next(self._ids)
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(
            orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"
        )
        message: Message = await answer
        return message


class OverHttp:
    """One pool of connections."""

    def __init__(self, settings: Message) -> None:
        self._url = settings["url"]
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}

    async def open(self) -> None:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        await self.ask("initialize", INITIALIZE)

    async def ask(self, method: str, params: Message) -> Message:
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        async with self._http.post(self._url, data=body, headers=self._headers) as response:
            message: Message = orjson.loads(await response.read())
            return message


def relay(settings: Message) -> Callable[..., Awaitable[None]]:
    """The application."""
    behind = OverStdio(settings) if "command" in settings else OverHttp(settings)

    async def application(scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await behind.open()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        part = await receive()
        body = part["body"]
        while part.get("more_body"):
            part = await receive()
            body += part["body"]
        message = orjson.loads(body) if body else {}
        headers = [(b"content-type", b"application/json")]
        status, given = 202, b""
        if message.get("id") is not None:
            answer = await behind.ask(message["method"], message.get("params") or {})
            status, given = 200, orjson.dumps({**answer, "id": message["id"]})
            if message["method"] == "initialize":
                headers.append((b"mcp-session-id", b"relay"))
        headers.append((b"content-length", b"%d" % len(given)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": given})

    return application


if __name__ == "__main__":
    (settings,) = json.loads(Path(sys.argv.pop(1)).read_text("utf-8"))["mcpServers"].values()
    uvloop.install()
    serve_app(relay(settings))
