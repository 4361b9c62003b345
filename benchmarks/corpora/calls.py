"""Tool calls to a running server, as `curl` makes them: bare JSON-RPC on connections that stay open."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from corpora.measuring import Times, shared_times
from processes import Server, cpu_seconds

CALL_SECONDS = 60.0
Message = Mapping[str, Any]
PING: Message = {"method": "ping"}


class WrongAnswer(Exception):
    """The server did not answer as it should."""


def tool_call(name: str, **arguments: Any) -> Message:
    """A call of a tool."""
    return {"method": "tools/call", "params": {"name": name, "arguments": arguments}}


def call_all(server: Server, messages: Sequence[Message], clients: int = 1) -> Times:
    """Every message once, by several clients at a time; the CPU time is the server's, divided among the calls."""
    shares = [messages[number::clients] for number in range(clients)]
    began = cpu_seconds(server.pid)
    with ThreadPoolExecutor(clients) as pool:
        waited = [ms for share in pool.map(lambda share: _call_each(server.port, share), shares) for ms in share]
    return shared_times(waited, (cpu_seconds(server.pid) - began) / len(waited) * 1000)


def _call_each(port: int, messages: Sequence[Message]) -> list[float]:
    """One client: how long each answer took, in milliseconds."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=CALL_SECONDS)
    try:
        return [_call(connection, message) for message in messages]
    finally:
        connection.close()


def _call(connection: http.client.HTTPConnection, message: Message) -> float:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, **message})
    asked = time.perf_counter()
    connection.request("POST", "/mcp", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    took = (time.perf_counter() - asked) * 1000
    if response.status != 200 or b'"result"' not in answer or b'"isError":true' in answer:
        raise WrongAnswer(f"{response.status}: {answer[:500].decode('utf-8', 'replace')}")
    return took
