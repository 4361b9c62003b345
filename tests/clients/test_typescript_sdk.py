"""The official TypeScript SDK, old and new, and the Inspector's command line against a server process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import Node
from tests.processes import Ended, Server

# Most of it is for npm, the first time.
pytestmark = [pytest.mark.anyio, pytest.mark.node, pytest.mark.timeout(300)]

NEWEST = "2026-07-28"
NEWEST_WITH_SESSIONS = "2025-11-25"


def printed(ended: Ended) -> Any:
    """The JSON that a program printed when all went well."""
    assert ended.code == 0, f"{ended.out}\n{ended.err}"
    return json.loads(ended.out)


def check_visit(seen: dict[str, Any]) -> None:
    """What a client saw is what the server has to offer."""
    assert seen["server"]["name"] == "refdesk"
    assert {"search_documentation", "get_document"} <= {tool["name"] for tool in seen["tools"]}
    texts = [item["text"] for item in seen["found"]["content"]]
    assert 1 <= len(texts) <= 3
    assert any("scripts/serve" in text and "Source: refdesk/" in text for text in texts)
    assert seen["resources"][0]["uri"] == "techdoc://refdesk/docs"
    (page,) = seen["page"]["contents"]
    assert page["mimeType"] == "text/markdown"
    assert page["text"].startswith("# Refdesk")


async def test_version_1_connects_searches_and_reads(server: Server, node: Node, tmp_path: Path) -> None:
    seen = printed(await node.script("v1.mjs", f"{server.url}/mcp", home=tmp_path))
    assert seen["revision"] == NEWEST_WITH_SESSIONS
    check_visit(seen)


@pytest.mark.parametrize(("mode", "revision"), [("legacy", NEWEST_WITH_SESSIONS), ("auto", NEWEST), (NEWEST, NEWEST)])
async def test_version_2_connects_searches_and_reads(
    mode: str, revision: str, server: Server, node: Node, tmp_path: Path
) -> None:
    seen = printed(await node.script("v2.mjs", f"{server.url}/mcp", mode, home=tmp_path))
    assert seen["revision"] == revision
    check_visit(seen)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_inspector_finds_no_fault_with_the_tools(
    era: str, server: Server, node: Node, tmp_path: Path
) -> None:
    launcher = node.packages.modules / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build"
    options = ["--transport", "http", "--protocol-era", era, "--method", "tools/list", "--strict", "--format", "json"]
    ended = await node.run(launcher / "index.js", "--cli", f"{server.url}/mcp", *options, "-q", home=tmp_path)
    tools = printed(ended)["result"]["tools"]
    assert {"search_documentation", "get_document"} <= {tool["name"] for tool in tools}
