"""A server that writes down what it is sent: `python recording.py FILE [CAPABILITIES] [VERSION] [QUESTION]`.

`CAPABILITIES` is what it declares, as JSON; `QUESTION` is a method that it asks its client as soon as it has been
greeted. It has no tools but one that is added by each call of `grow`. A call of a number is answered with the error of
that code, and a call of `ignore` isn't answered.
"""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = {"name": "grow", "inputSchema": {"type": "object"}}


def main(path: str, capabilities: str = '{"tools": {}}', version: str = "2025-11-25", question: str = "") -> None:
    """Until standard input ends."""
    tools: list[dict[str, Any]] = [TOOL]
    with open(path, "a", encoding="utf-8") as record:
        for line in sys.stdin:
            record.write(line)
            record.flush()
            message = json.loads(line)
            if message.get("method") == "notifications/initialized" and question:
                say({"jsonrpc": "2.0", "id": 1, "method": question, "params": {}})
            called = message["params"]["name"] if message.get("method") == "tools/call" else ""
            if called.startswith("-"):
                say({"jsonrpc": "2.0", "id": message["id"], "error": {"code": int(called), "message": "no"}})
            elif "id" in message and "method" in message and called != "ignore":
                answer = {"jsonrpc": "2.0", "id": message["id"]}
                answer |= respond(message["method"], tools, json.loads(capabilities), version)
                say(answer)


def say(message: dict[str, Any]) -> None:
    """Send it."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def respond(method: str, tools: list[dict[str, Any]], capabilities: dict[str, Any], version: str) -> dict[str, Any]:
    """The rest of an answer."""
    match method:
        case "initialize":
            info = {"name": "recording", "version": "1"}
            return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}}
        case "tools/list":
            return {"result": {"tools": tools}}
        case "tools/call":
            tools.append({"name": f"grown_{len(tools)}", "inputSchema": {"type": "object"}})
            return {"result": {"content": [{"type": "text", "text": tools[-1]["name"]}]}}
        case "ping":
            return {"result": {}}
    return {"error": {"code": -32601, "message": "Method not found"}}


if __name__ == "__main__":
    main(*sys.argv[1:])
