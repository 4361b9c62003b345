"""Servers that want the folders of their clients, before any call and whenever these change."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp
import pytest
from mcp import types

import refdesk
from refdesk.config.models import Config
from tests.conftest import Serve
from tests.gateway.desks import bad, gateway
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ROOTED = """
import json, sys
roots, number = None, 0
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    heard = json.loads(line)
    id, method = heard.get("id"), heard.get("method")
    if method == "initialize":
        assert heard["params"]["capabilities"]["roots"] == {"listChanged": True}
        info = {"name": "rooted", "version": "1"}
        say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method in ("notifications/initialized", "notifications/roots/list_changed"):
        number += 1
        say(id=f"roots {number}", method="roots/list")
    elif method is None:
        roots = [root["uri"] for root in heard["result"]["roots"]]
    elif method == "tools/list":
        say(id=id, result={"tools": [{"name": "roots", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        say(id=id, result={"content": [{"type": "text", "text": json.dumps(roots)}]})
    elif id is not None:
        say(id=id, result={})
"""


def build_rooted_server(**more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-c", ROOTED], **more}


class Folders:
    """A client's roots."""

    def __init__(self, *uris: str) -> None:
        self.uris = uris

    async def __call__(self, context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.uris])


@pytest.mark.filterwarnings("ignore:The roots capability is deprecated")  # by the newest revision
async def test_servers_know_the_roots_of_their_clients_and_hear_of_changes(serve: Serve) -> None:
    ann, ben = Folders("file:///ann"), Folders("file:///ben", "file:///ann")
    other = build_rooted_server(tenants=["elsewhere"])
    async with gateway(serve, "rooted", "good", rooted=build_rooted_server(), other=other, good=bad()) as desk:
        assert desk.fleet is not None

        async def know(*uris: str) -> None:
            async def do() -> bool:
                return await desk.text("rooted__roots") == str(list(uris)).replace("'", '"')

            await eventually(do)

        await know()
        async with mcp.Client(desk.url, mode="legacy", list_roots_callback=ann) as first:
            await know("file:///ann")
            async with mcp.Client(desk.url, mode="legacy", list_roots_callback=ben):
                await know("file:///ann", "file:///ben")
                assert not desk.fleet.find_roots(desk.fleet.servers["other"])
                await desk.fleet.servers["rooted"].restart()
                await know("file:///ann", "file:///ben")
                ann.uris = ("file:///elsewhere",)
                await first.send_roots_list_changed()
                await know("file:///ben", "file:///ann", "file:///elsewhere")
        await know()


async def test_a_program_can_wait_for_the_servers(settings: Any) -> None:
    config: Config = settings(mcpServers={"good": bad(), "away": {"command": "no-such-program"}})
    async with refdesk.open(config) as desk, asyncio.timeout(PATIENCE_SECONDS):
        assert await desk.servers_ready() == {"good": "Running", "away": "Error"}
        assert (await desk.call("good__echo", {"text": "at once"})).text == "at once"
