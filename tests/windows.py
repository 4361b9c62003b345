"""Two windows of one user, each on a project of its own, over every transport: what one may find of the other."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx2
import mcp_types as types
import yaml
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from tests.processes import BY_WORDS, Server, environment, started_process, started_server
from tests.waiting import PATIENCE_SECONDS

GAMMA, DELTA = "/x/app", "/y/app"
"""The folders of the windows, which have the same name."""

COLOURS = {GAMMA: "vermilion", DELTA: "turquoise"}
"""What the documents of each hold that those of the other don't."""

KEY = "the-one-key-of-all-windows-0123456789"
HEADERS = {"authorization": f"Bearer {KEY}"}
CONTEXT = "r2r://current-project/context"
REPEATS = 6
"""How often a window asks the same, so that several workers answer."""


class Window(Protocol):
    """An MCP client in a project's folder. Both methods return the JSON that its model reads."""

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]: ...

    async def read(self, uri: str) -> dict[str, Any]: ...


OpenWindows = Callable[[Path], AbstractAsyncContextManager[Mapping[str, Window]]]


@dataclass
class SdkWindow:
    """The official SDK's client, which announces its folder as root."""

    client: Client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        assert isinstance(result, types.CallToolResult)
        assert not result.is_error, result.content
        structured: dict[str, Any] = result.structured_content
        return structured

    async def read(self, uri: str) -> dict[str, Any]:
        (content,) = (await self.client.read_resource(uri)).contents
        assert isinstance(content, types.TextResourceContents)
        read: dict[str, Any] = json.loads(content.text)
        return read


@dataclass
class PlainWindow:
    """Requests without a session, each on a connection of its own, to an endpoint that names the project."""

    url: str
    headers: Mapping[str, str]

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self._post("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        structured: dict[str, Any] = result["structuredContent"]
        return structured

    async def read(self, uri: str) -> dict[str, Any]:
        result = await self._post("resources/read", {"uri": uri})
        read: dict[str, Any] = json.loads(result["contents"][0]["text"])
        return read

    async def _post(self, method: str, params: Any) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        async with httpx2.AsyncClient(verify=False, timeout=PATIENCE_SECONDS) as http:
            answer = (await http.post(self.url, json=message, headers=dict(self.headers))).json()
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result


def write_settings(folder: Path, **settings: Any) -> None:
    """Write the settings of a desk with one key."""
    auth = {"required": True, "keys": [{"key": KEY, "user": "ann", "tenant": "acme"}]}
    (folder / "refdesk.yaml").write_text(yaml.safe_dump({"auth": auth, **settings}))


@asynccontextmanager
async def sessions(folder: Path) -> AsyncIterator[Mapping[str, Window]]:
    async with started_server(folder) as server, _sdk_windows(server, "legacy") as windows:
        yield windows
        await server.stop()


@asynccontextmanager
async def four_workers_asking_for_roots(folder: Path) -> AsyncIterator[Mapping[str, Window]]:
    async with started_process(folder, "--workers", "4") as server, _sdk_windows(server, "2026-07-28") as windows:
        yield windows
        await server.stop()


@asynccontextmanager
async def four_workers_with_named_projects(folder: Path) -> AsyncIterator[Mapping[str, Window]]:
    async with started_process(folder, "--workers", "4") as server:
        endpoint = f"{server.url}/mcp"
        yield {
            GAMMA: PlainWindow(f"{endpoint}?project={GAMMA}", HEADERS),
            DELTA: PlainWindow(endpoint, HEADERS | {"refdesk-project": DELTA}),
        }
        await server.stop()


@asynccontextmanager
async def stdio(folder: Path) -> AsyncIterator[Mapping[str, Window]]:
    """A process for each window, on the same data folder."""
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "refdesk", "serve", "--stdio", "--data", str(folder / "data")],
        env=environment(folder, **BY_WORDS),
        cwd=folder,
    )
    async with AsyncExitStack() as stack:
        yield {
            path: SdkWindow(
                await stack.enter_async_context(
                    Client(stdio_client(command), mode="legacy", list_roots_callback=_announce(path))
                )
            )
            for path in COLOURS
        }


WAYS: tuple[OpenWindows, ...] = (sessions, four_workers_asking_for_roots, four_workers_with_named_projects, stdio)


@asynccontextmanager
async def _sdk_windows(server: Server, mode: Literal["legacy", "2026-07-28"]) -> AsyncIterator[Mapping[str, Window]]:
    async with AsyncExitStack() as stack:
        windows: dict[str, Window] = {}
        for path in COLOURS:
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers=HEADERS, verify=False, timeout=PATIENCE_SECONDS)
            )
            transport = streamable_http_client(f"{server.url}/mcp", http_client=http)
            client = Client(transport, mode=mode, list_roots_callback=_announce(path))
            windows[path] = SdkWindow(await stack.enter_async_context(client))
        yield windows


def _announce(path: str) -> Any:
    async def list_roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=f"file://{path}")])

    return list_roots


async def check_windows(open_windows: OpenWindows, folder: Path) -> None:
    """Show that each window only finds its own project's documents, before and after a restart."""
    async with open_windows(folder) as windows:
        await _bring(windows[DELTA], DELTA)
        for told in await _ask_everything(windows[GAMMA]):
            assert COLOURS[DELTA] not in told
        await _bring(windows[GAMMA], GAMMA)
        await _check_both(windows)
    async with open_windows(folder) as windows:
        await _check_both(windows)


async def _bring(window: Window, path: str) -> None:
    text = f"# Colours\n\nThe secret colour of the house is {COLOURS[path]}.\n"
    taken = await window.call("r2r_ingest_document", text=text, title=f"Colour {COLOURS[path]}", run_async=False)
    assert taken["status"] == "success"
    assert "current project, 'app" in taken["next"]


async def _check_both(windows: Mapping[str, Window]) -> None:
    collections = set()
    for path, window in windows.items():
        (other,) = (colour for own, colour in COLOURS.items() if own != path)
        for _ in range(REPEATS):
            for told in await _ask_everything(window):
                assert COLOURS[path] in told
                assert other not in told
            context = await window.read(CONTEXT)
            assert (context["project_path"], context["document_count"]) == (path, 1)
            collections.add(context["collection_name"])
    assert collections == {"claude-code-app", "claude-code-app-2"}


async def _ask_everything(window: Window) -> list[str]:
    question = "What is the secret colour of the house?"
    return [
        json.dumps(await window.call("r2r_search", query=question)),
        json.dumps(await window.call("r2r_rag_query", question=question)),
        json.dumps(await window.call("r2r_list_documents")),
    ]
