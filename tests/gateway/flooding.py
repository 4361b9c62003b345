"""`python tests/gateway/flooding.py`: an MCP server on standard input and output that floods until told to stop.

Its tools: `flood` writes lines without end, to `stdout` (notifications) or `stderr`, as its argument `stream` says, and
answers when it is stopped; `sent` tells how many lines there were so far; `stop` ends the flood.
"""

from __future__ import annotations

import json
import os
import select
from dataclasses import dataclass
from typing import Any

TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("flood", "sent", "stop")]
INFO = {"name": "flooding", "version": "1"}
NOTICE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "flood " * 10}}
LINES = {"stdout": json.dumps(NOTICE).encode() + b"\n", "stderr": b"a line of the flood\n"}
FILES = {"stdout": 1, "stderr": 2}
LINES_AT_ONCE = 100


@dataclass
class Flood:
    """A flood under way."""

    id: Any
    """Of the call that it answers in the end."""
    stream: str
    sent: int = 0

    def go_on(self) -> None:
        write(FILES[self.stream], LINES[self.stream] * LINES_AT_ONCE)
        self.sent += LINES_AT_ONCE


def write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def reply(id: Any, **body: Any) -> None:
    write(1, json.dumps({"jsonrpc": "2.0", "id": id, **body}).encode() + b"\n")


def say(id: Any, text: str) -> None:
    reply(id, result={"content": [{"type": "text", "text": text}]})


def take(message: dict[str, Any], flood: Flood | None) -> Flood | None:
    """Answer a message; return the flood that is under way after it."""
    id, method, params = message.get("id"), message["method"], message.get("params") or {}
    if method == "initialize":
        version = params["protocolVersion"]
        reply(id, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": INFO})
    elif method == "tools/list":
        reply(id, result={"tools": TOOLS})
    elif method != "tools/call":
        if id is not None:
            reply(id, error={"code": -32601, "message": "Method not found"})
    elif params["name"] == "flood":
        return Flood(id, params["arguments"]["stream"])
    elif params["name"] == "sent":
        say(id, str(flood.sent if flood else 0))
    else:
        if flood is not None:
            say(flood.id, "done")
        say(id, "stopped")
        return None
    return flood


def main() -> None:
    """Until the input ends; while there is a flood, look for input between its lines."""
    rest, flood = b"", None
    while True:
        if flood is not None and not select.select([0], [], [], 0)[0]:
            flood.go_on()
            continue
        read = os.read(0, 65_536)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            flood = take(json.loads(line), flood)


if __name__ == "__main__":
    main()
