"""The tool list is public API: its words and schemas change only on purpose, and stay cheap to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bpe_openai
import pytest

from refdesk.app import Desk
from refdesk.calls import LOCAL, Call

pytestmark = pytest.mark.anyio

SNAPSHOTS = Path(__file__).parents[1] / "snapshots" / "tools"
TOKENS_A_TOOL = 160


async def list_tools(desk: Desk) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = (await desk.handle(Call("tools/list", caller=LOCAL))).result["tools"]
    return tools


async def test_every_tool_is_as_it_was_agreed(desk: Desk, request: pytest.FixtureRequest) -> None:
    tools = {tool["name"]: tool for tool in await list_tools(desk)}
    assert {path.stem for path in SNAPSHOTS.glob("*.json")} == set(tools)
    for name, tool in tools.items():
        agreed = json.loads((SNAPSHOTS / f"{name}.json").read_text("utf-8"))
        assert tool == agreed, f"{name} differs from tests/snapshots/tools/{name}.json; change both on purpose"


async def test_every_tool_says_all_that_a_client_needs(desk: Desk) -> None:
    for tool in await list_tools(desk):
        assert tool["title"]
        assert 20 < len(tool["description"]) < 1000
        assert tool["inputSchema"]["type"] == "object"
        assert set(tool["annotations"]) == {"readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"}


async def test_the_list_costs_few_tokens(desk: Desk, record_property: Any) -> None:
    tools = await list_tools(desk)
    encoding = bpe_openai.get_encoding("o200k_base")
    costs = {tool["name"]: _tokens(encoding, tool) for tool in tools}
    average = sum(costs.values()) / len(costs)
    print(f"tokens (o200k) a tool: {costs}, {average:.0f} on average")  # noqa: T201 - the figure is meant to be seen
    record_property("tokens_a_tool", average)
    assert average < TOKENS_A_TOOL


def _tokens(encoding: Any, tool: dict[str, Any]) -> int:
    """What a model is given to read: name, description and arguments."""
    shown = {name: tool[name] for name in ("name", "description", "inputSchema")}
    return len(encoding.encode(json.dumps(shown, separators=(",", ":"))))
