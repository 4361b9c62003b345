"""Small MCP clients for the benchmark of gateways: over Streamable HTTP, and over the older HTTP with SSE."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import orjson

from load import ID, Measured, WrongAnswer, cpu_of, percentile

VERSION = "2025-06-18"
INITIALIZE = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "benchmark", "version": "1"}}
ANSWER_SECONDS = 60.0


class Client:
    """What both have in common."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
        self._ids = itertools.count(1)
        timeout = aiohttp.ClientTimeout(total=ANSWER_SECONDS)
        self._http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0))

    async def connect(self) -> None:
        """Shake hands."""
        agreed = await self.request("initialize", INITIALIZE)
        self._headers["mcp-protocol-version"] = agreed["protocolVersion"]
        await self.notify("notifications/initialized")

    async def tools(self) -> list[str]:
        """The names of all tools."""
        names: list[str] = []
        params: dict[str, Any] = {}
        while True:
            page = await self.request("tools/list", params)
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                return names
            params = {"cursor": page["nextCursor"]}

    async def call(self, tool: str, text: str) -> None:
        """Have a text echoed."""
        answer = await self.request("tools/call", {"name": tool, "arguments": {"text": text}})
        if answer.get("isError") or text not in str(answer["content"]):
            raise RuntimeError(str(answer)[:200])

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        raise NotImplementedError

    async def notify(self, method: str) -> None:
        """Send a notification."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of the connections."""
        await self._http.close()


class HttpClient(Client):
    """Streamable HTTP."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        id = next(self._ids)
        body = orjson.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        async with self._http.post(self._url, data=body, headers=self._headers) as response:
            if session := response.headers.get("mcp-session-id"):
                self._headers["mcp-session-id"] = session
            given = await response.read()
            if response.content_type == "text/event-stream":
                messages = [orjson.loads(line[5:]) for line in given.splitlines() if line.startswith(b"data: {")]
            else:
                messages = [orjson.loads(given)] if given.startswith(b"{") else []
        return _result(messages, id, response.status)

    async def notify(self, method: str) -> None:
        body = orjson.dumps({"jsonrpc": "2.0", "method": method})
        async with self._http.post(self._url, data=body, headers=self._headers) as response:
            await response.read()


class SseClient(Client):
    """HTTP with SSE: requests are posted, answers come on one stream."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        super().__init__(url, headers)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        self._endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())
        async with asyncio.timeout(ANSWER_SECONDS):
            self._post_to = await self._endpoint
        await super().connect()

    async def _read(self) -> None:
        forever = aiohttp.ClientTimeout(total=None)
        try:
            async with self._http.get(self._url, headers={"accept": "text/event-stream"}, timeout=forever) as response:
                event = b""
                async for line in response.content:
                    if line.startswith(b"event:"):
                        event = line[6:].strip()
                    elif line.startswith(b"data:") and event == b"endpoint":
                        self._endpoint.set_result(str(response.url.join(type(response.url)(line[5:].strip().decode()))))
                    elif line.startswith(b"data:"):
                        message = orjson.loads(line[5:])
                        if answer := self._waiting.pop(message.get("id"), None):
                            answer.set_result(message)
        finally:
            if not self._endpoint.done():
                self._endpoint.set_exception(RuntimeError("there is no stream"))

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        id = next(self._ids)
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        await self._post({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        async with asyncio.timeout(ANSWER_SECONDS):
            return _result([await answer], id, 200)

    async def notify(self, method: str) -> None:
        await self._post({"jsonrpc": "2.0", "method": method})

    async def _post(self, message: Mapping[str, Any]) -> None:
        async with self._http.post(self._post_to, data=orjson.dumps(message), headers=self._headers) as response:
            await response.read()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        await super().close()


async def measure_sse(url: str, call: Mapping[str, Any], clients: int, seconds: float, pids: Sequence[int]) -> Measured:
    """As `load.load` does it, for a gateway that is only reached by SSE."""
    connected = [SseClient(url, {}) for _ in range(clients)]
    try:
        for client in connected:
            await client.connect()
        times: list[float] = []
        numbers = itertools.count(int(ID))
        until = time.perf_counter() + min(1.0, seconds)

        async def work(client: SseClient) -> None:
            while time.perf_counter() < until:
                text, begun = f"echo-{next(numbers)}", time.perf_counter()
                answer = await client.request("tools/call", {**call, "arguments": {"text": text}})
                times.append(time.perf_counter() - begun)
                if text not in str(answer):
                    raise WrongAnswer(str(answer)[:200])

        await asyncio.gather(*map(work, connected))
        times.clear()
        begun = time.perf_counter(), cpu_of(pids), time.process_time()
        until = time.perf_counter() + seconds
        await asyncio.gather(*map(work, connected))
        ended = time.perf_counter(), cpu_of(pids), time.process_time()
    finally:
        for client in connected:
            await client.close()
    wall, server, own = (end - begin for begin, end in zip(begun, ended, strict=True))
    ordered = sorted(times)
    return Measured(len(times), wall, server, own, percentile(ordered, 50), percentile(ordered, 99))


def _result(messages: Sequence[Mapping[str, Any]], id: int, status: int) -> dict[str, Any]:
    for message in messages:
        if message.get("id") == id and "result" in message:
            result: dict[str, Any] = message["result"]
            return result
        if "error" in message:
            raise RuntimeError(str(message["error"])[:200])
    raise RuntimeError(f"HTTP {status} without an answer")
