"""The tool list is public API: its words and schemas change only on purpose, and stay cheap to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bpe_openai
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types

from refdesk.app import Desk
from refdesk.calls import LOCAL, Call

pytestmark = pytest.mark.anyio

SNAPSHOTS = Path(__file__).parents[1] / "snapshots" / "tools"
TOKENS_A_TOOL = 130
CHARACTERS_A_TOKEN = 4

MODEL_TOKENS = 2_900
"""Limit of what every client shows its model: names, descriptions and input schemas."""

LIST_TOKENS = 5_000
"""Limit of the whole list, with result schemas and annotations."""


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
        assert tool["annotations"]


async def test_hints_are_sent_where_they_differ_from_the_defaults(desk: Desk) -> None:
    hints = {tool["name"]: tool["annotations"] for tool in await list_tools(desk)}
    assert hints.pop("r2r_ingest_document") == {"destructiveHint": False, "idempotentHint": True}
    assert hints.pop("convert_url") == {"readOnlyHint": True}
    for name, sent in hints.items():
        assert sent == {"readOnlyHint": True, "openWorldHint": False}, name


async def test_the_list_costs_few_tokens(desk: Desk, record_property: Any) -> None:
    tools = await list_tools(desk)
    shown = [{name: tool[name] for name in ("name", "description", "inputSchema")} for tool in tools]
    model_tokens, list_tokens = _estimate_tokens(shown), _estimate_tokens(tools)
    costs = {tool["name"]: _estimate_tokens([tool]) for tool in tools}
    print(f"{model_tokens} tokens for models, {list_tokens} in all: {costs}")  # noqa: T201 - meant to be seen
    record_property("listing_tokens", list_tokens)
    assert model_tokens <= MODEL_TOKENS
    assert list_tokens <= LIST_TOKENS


async def test_a_tool_costs_few_tokens_of_a_real_vocabulary(desk: Desk, record_property: Any) -> None:
    encoding = bpe_openai.get_encoding("o200k_base")
    costs = {tool["name"]: _count_tokens(encoding, tool) for tool in await list_tools(desk)}
    average = sum(costs.values()) / len(costs)
    print(f"tokens (o200k) a tool: {costs}, {average:.0f} on average")  # noqa: T201 - the figure is meant to be seen
    record_property("tokens_a_tool", average)
    assert average < TOKENS_A_TOOL


def _count_tokens(encoding: Any, tool: dict[str, Any]) -> int:
    """What a model is given to read: name, description and arguments."""
    shown = {name: tool[name] for name in ("name", "description", "inputSchema")}
    return len(encoding.encode(json.dumps(shown, separators=(",", ":"))))


def _estimate_tokens(tools: list[dict[str, Any]]) -> int:
    return len(json.dumps({"tools": tools})) // CHARACTERS_A_TOKEN


async def test_schemas_are_valid_and_results_fit_them(desk: Desk) -> None:
    listed = {tool["name"]: tool for tool in await list_tools(desk)}
    for tool in listed.values():
        Draft202012Validator.check_schema(tool["inputSchema"])
        Draft202012Validator.check_schema(tool.get("outputSchema", {}))
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_documentation", {"query": "start the server"}),
        ("r2r_search", {"query": "start the server", "collection_id": ["refdesk"]}),
        ("r2r_rag_query", {"question": "How do I start the server?"}),
        ("r2r_list_documents", {"collection_id": "refdesk"}),
        ("r2r_list_collections", {}),
        ("r2r_monitor_task", {"document_id": "refdesk/index.md"}),
        ("r2r_ingest_document", {"text": "# Notes\n\nThe server starts.", "title": "Notes"}),
        ("read_doc_metadata", {"doc_id": "refdesk/index.md"}),
        ("doc_local_search", {"doc_id": "refdesk/index.md", "query": "start"}),
        ("read_chunk_window", {"doc_id": "refdesk/index.md", "anchor_chunk_id": "c1"}),
        ("read_doc_pages", {"doc_id": "refdesk/index.md", "page_start": 1, "page_end": 1}),
        ("convert_docx", {"content_base64": "IyBOb3Rlcw==", "file_name": "notes.md"}),
        ("list_available_tools", {}),
    ]
    for name, arguments in calls:
        Draft202012Validator(listed[name]["inputSchema"]).validate(arguments)
        answer = await desk.call(name, arguments)
        assert not answer.is_error, answer.text
        assert ("outputSchema" in listed[name]) <= (answer.structured is not None)
        Draft202012Validator(listed[name].get("outputSchema", {})).validate(answer.structured or {})
