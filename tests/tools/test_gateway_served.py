"""The whole way: a client of the official SDK, the server that we are, and servers of either revision behind it."""

from __future__ import annotations

from typing import Any

import mcp
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError

from tests.conftest import Serve
from tests.tools.gateways import talkative
from tests.waiting import eventually

pytestmark = pytest.mark.anyio


class Answering:
    """What a client can do for a server, and what it was told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def elicit(self, context: Any, params: Any) -> types.ElicitResult:
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context: Any, params: Any) -> types.CreateMessageResult:
        hello = types.TextContent(type="text", text="hello")
        return types.CreateMessageResult(role="assistant", content=hello, model="m")

    async def roots(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri="file:///home/ada")])

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.heard.append((progress, total, message))

    def client(self, url: str, mode: Any) -> mcp.Client:
        return mcp.Client(
            f"{url}/mcp",
            mode=mode,
            elicitation_callback=self.elicit,
            sampling_callback=self.sample,
            list_roots_callback=self.roots,
        )


async def until_listed(client: mcp.Client, *names: str) -> dict[str, Any]:
    """Wait for tools of servers, which start in the background; return all tools by name."""
    tools: dict[str, Any] = {}

    async def are_listed() -> bool:
        tools.update((tool.name, tool) for tool in (await client.list_tools()).tools)
        return tools.keys() >= set(names)

    await eventually(are_listed)
    return tools


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_everything_passes_through_for_clients_and_servers_of_any_revision(serve: Serve, mode: str) -> None:
    servers = {name: talkative(era).model_dump(mode="json") for name, era in (("old", "legacy"), ("new", "modern"))}
    given = {name: {key: server[key] for key in ("command", "args", "cwd")} for name, server in servers.items()}
    answering = Answering()
    async with serve(mcpServers=given) as running, answering.client(running.url, mode) as client:
        listed = await until_listed(client, "old__echo", "new__echo")
        assert listed["old__structured"].output_schema is not None
        for server in ("old", "new"):
            results = {
                name: (await client.call_tool(f"{server}__{name}", {})).structured_content
                for name in ("elicit", "sample", "roots")
            }
            assert results["elicit"] == {"answer": {"action": "accept", "content": {"name": "Ada"}}}
            assert results["sample"] is not None
            assert results["sample"]["answer"]["content"] == {"type": "text", "text": "hello"}
            assert results["roots"] == {"answer": {"roots": [{"uri": "file:///home/ada"}]}}
            answering.heard.clear()
            await client.call_tool(f"{server}__progress", {"steps": 2}, progress_callback=answering.progress)
            assert answering.heard == [(1, 2, "step 1"), (2, 2, "step 2")]
            with pytest.raises(MCPError) as caught:
                await client.call_tool(f"{server}__rpc_error", {})
            assert caught.value.error.code == -32050
            assert caught.value.error.data["why"] == "because"
        read = await client.read_resource("talk://document/3")
        assert getattr(read.contents[0], "text", "") == "The text of talk://document/3"
