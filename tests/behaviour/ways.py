"""Every way in, behind one face: send a method and its params, get the result or the error as it was on the wire."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx2
import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import SERVER_INFO_META_KEY
from pydantic import ConfigDict

from refdesk.config.models import Config
from tests.servers import RunningServer, running_server
from tests.waiting import PATIENCE_SECONDS

Result = dict[str, Any]
_ENVELOPE_FIELDS = ("resultType", "ttlMs", "cacheScope")


class _AnyRequest(types.Request[Result, str]):
    """Any request, sent as it is given."""

    method: str
    params: Result


class _AnyResult(types.Result):
    """Any result, every field kept."""

    model_config = ConfigDict(extra="allow")


@dataclass
class Failure(Exception):
    """A JSON-RPC error as the client saw it."""

    code: int
    message: str
    data: Any


class Way(Protocol):
    """A connection over one transport."""

    async def __call__(self, method: str, params: Result | None = None) -> Result: ...


class PlainHttpClient:
    """Bare JSON-RPC over HTTP, as `curl` sends it."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server

    async def __call__(self, method: str, params: Result | None = None) -> Result:
        return _result_of(await self._server.call(method, params))


class LegacySession:
    """A session whose client does not name its revision, as some do not."""

    def __init__(self, server: RunningServer, session: str) -> None:
        self._server = server
        self._headers = {"accept": "application/json, text/event-stream", "mcp_session_id": session}
        self._ids = count(2)

    async def __call__(self, method: str, params: Result | None = None) -> Result:
        message = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params or {}}
        return _result_of((await self._server.post(message, **self._headers)).json())


class SdkClient:
    """The official SDK's client, over whatever transport it is connected with."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def __call__(self, method: str, params: Result | None = None) -> Result:
        request = _AnyRequest(method=method, params=params or {})
        try:
            result = await self._client.session.send_request(request, _AnyResult)
        except MCPError as error:
            raise Failure(error.error.code, error.error.message, error.error.data) from None
        return _without_envelope(result.model_dump(by_alias=True, exclude_none=True))


def _result_of(message: dict[str, Any]) -> Result:
    if "error" in message:
        raise Failure(message["error"]["code"], message["error"]["message"], message["error"]["data"])
    result: Result = message["result"]
    return result


def _without_envelope(result: Result) -> Result:
    """The result less what the newest revision adds to every one."""
    bare = {key: value for key, value in result.items() if key not in _ENVELOPE_FIELDS}
    if "_meta" in bare:
        bare["_meta"] = {key: value for key, value in bare["_meta"].items() if key != SERVER_INFO_META_KEY}
        if not bare["_meta"]:
            del bare["_meta"]
    return bare


@asynccontextmanager
async def plain_http(config: Config) -> AsyncIterator[Way]:
    async with running_server(config) as server:
        yield PlainHttpClient(server)


@asynccontextmanager
async def streamable_http_newest(config: Config) -> AsyncIterator[Way]:
    async with running_server(config) as server, Client(f"{server.url}/mcp", mode="2026-07-28") as client:
        yield SdkClient(client)


@asynccontextmanager
async def streamable_http_newest_with_param_headers(config: Config) -> AsyncIterator[Way]:
    """With a header that names a parameter, though of no tool: the SDK's rules are applied."""
    async with (
        running_server(config) as server,
        httpx2.AsyncClient(headers={"mcp-param-none": "1"}, verify=False, timeout=PATIENCE_SECONDS) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode="2026-07-28") as client,
    ):
        yield SdkClient(client)


@asynccontextmanager
async def streamable_http_session(config: Config) -> AsyncIterator[Way]:
    async with running_server(config) as server, Client(f"{server.url}/mcp", mode="legacy") as client:
        yield SdkClient(client)


@asynccontextmanager
async def streamable_http_session_without_revision(config: Config) -> AsyncIterator[Way]:
    client = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "old", "version": "1"}}
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    async with running_server(config) as server:
        opened = await server.post(opening, accept="application/json, text/event-stream")
        session = opened.headers["mcp-session-id"]
        await server.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, mcp_session_id=session)
        yield LegacySession(server, session)


@asynccontextmanager
async def streamable_http_stateless(config: Config) -> AsyncIterator[Way]:
    stateless = config.model_copy(update={"server": config.server.model_copy(update={"stateless": True})})
    async with running_server(stateless) as server, Client(f"{server.url}/mcp", mode="legacy") as client:
        yield SdkClient(client)


@asynccontextmanager
async def stdio(config: Config, mode: Literal["legacy", "2026-07-28"]) -> AsyncIterator[Way]:
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "tests.stdio_server", str(config.data_path)], cwd=Path(__file__).parents[2]
    )
    async with Client(parameters, mode=mode) as client:
        yield SdkClient(client)


WAYS: dict[str, Callable[[Config], AbstractAsyncContextManager[Way]]] = {
    "plain": plain_http,
    "http-newest": streamable_http_newest,
    "http-newest-params": streamable_http_newest_with_param_headers,
    "http-session": streamable_http_session,
    "http-session-unnamed": streamable_http_session_without_revision,
    "http-stateless": streamable_http_stateless,
    "stdio": partial(stdio, mode="legacy"),
    "stdio-newest": partial(stdio, mode="2026-07-28"),
}
