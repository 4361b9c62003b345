"""One user's windows on several projects: each works with its own project's documents, and nothing of another's."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from refdesk.calls import LOCAL
from refdesk.inbound.jsonrpc import RpcRequest
from refdesk.inbound.mcp.clients import SessionClient
from refdesk.inbound.mcp.sessions import Session
from refdesk.inbound.stdio import LineChannel, LineWriter
from tests.conftest import Serve
from tests.windows import WAYS, OpenWindows, check_windows, write_settings

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_two_windows_never_see_each_others_documents(way: OpenWindows, tmp_path: Path) -> None:
    write_settings(tmp_path)
    await check_windows(way, tmp_path)


async def test_roots_are_asked_for_once_until_the_client_changes_them(serve: Serve) -> None:
    roots, asked = ["file:///srv/savanna"], []

    async def list_roots(context: Any) -> types.ListRootsResult:
        asked.append(list(roots))
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in roots])

    async with serve() as server, Client(f"{server.url}/mcp", mode="legacy", list_roots_callback=list_roots) as client:
        assert await read_project(client) == "savanna"
        assert await read_project(client) == "savanna"
        assert len(asked) == 1
        roots[:] = ["file:///srv/jungle"]
        await client.session.send_notification(types.RootsListChangedNotification())
        assert await read_project(client) == "jungle"
    assert len(asked) == 2


async def test_a_client_that_never_lists_its_roots_is_asked_once() -> None:
    session, written = Session(LOCAL, lambda message: None), BytesIO()
    output = LineWriter(written)
    session.capabilities = {"roots": {}}
    request = RpcRequest(1, "tools/call", {})
    client = SessionClient(request, LineChannel(output), session, roots_seconds=0.01)
    for _ in range(2):
        assert await client.ask("roots", "roots/list", {}) == {"roots": []}
    output.close()
    await output.run()
    sent = [json.loads(line)["method"] for line in written.getvalue().splitlines()]
    assert sent == ["roots/list", "notifications/cancelled"]


async def read_project(client: Client) -> str:
    (content,) = (await client.read_resource("r2r://current-project/context")).contents
    assert isinstance(content, types.TextResourceContents)
    name: str = json.loads(content.text)["project_name"]
    return name


async def test_the_request_names_the_project_in_its_url_or_header(serve: Serve) -> None:
    read = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "r2r://current-project/context"}}
    async with serve(project="default-one") as server:
        for query, headers, name in (
            ({}, {}, "default-one"),
            ({"project": "shop"}, {}, "shop"),
            ({"project": "/srv/büro"}, {}, "büro"),
            ({}, {"refdesk-project": "b%C3%BCro"}, "büro"),
            ({"project": "shop"}, {"refdesk-project": "depot"}, "depot"),
        ):
            answer = (await server.http.post("/mcp", json=read, params=query, headers=headers)).json()
            assert json.loads(answer["result"]["contents"][0]["text"])["project_name"] == name
        answer = (await server.http.post("/mcp", json=read, params={"project": "/"})).json()
        assert answer["error"]["code"] == -32602
        assert "project: must be a printable name or the path of a folder" in answer["error"]["message"]
        text = {"text": "Zebras.", "title": "Zebras"}
        answer = (
            await server.http.post("/api/tools/r2r_ingest_document", json=text, params={"project": "shop"})
        ).json()
        assert answer["structuredContent"]["collection_id"] == "claude-code-shop"
