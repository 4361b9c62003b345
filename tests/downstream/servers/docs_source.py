"""A server of documentation on standard input and output: its tool `search` answers what a file says.

`docs_source.py FILE`: the file holds `{"result": …, "error": …, "delay": seconds, "exit": true}`, and is read for each
search, so that a test can change its mind. Every query is written to FILE.asked, a line each.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

SEARCH = {
    "name": "search",
    "description": "Search the handbook.",
    "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}},
}


def answer(method: str, params: dict[str, Any], file: Path) -> dict[str, Any]:
    """The result or error that answers a request."""
    if method == "initialize":
        info = {"name": "handbook", "version": "1"}
        capabilities = {"tools": {"listChanged": True}}
        return {"result": {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": info}}
    if method == "tools/list":
        return {"result": {"tools": [SEARCH]}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "Method not found"}}
    with Path(f"{file}.asked").open("a", encoding="utf-8") as asked:
        asked.write(json.dumps(params["arguments"]) + "\n")
    script = json.loads(file.read_text("utf-8"))
    time.sleep(script.get("delay", 0))
    if script.get("exit"):
        sys.exit(1)
    return {name: script[name] for name in ("result", "error") if name in script}


def main() -> None:
    """Answer line by line."""
    file = Path(sys.argv[1])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            given = answer(message["method"], message.get("params") or {}, file)
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **given}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
