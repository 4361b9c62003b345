"""Arguments as models send them: `null` for what is left out, and whole numbers with a decimal point."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Serve

pytestmark = pytest.mark.anyio

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("search_documentation", {"query": "keys", "max_results": 5.0, "doc_type": None}),
    ("search_documentation", {"query": "keys", "max_results": None, "doc_type": "all", "max_tokens": 500.0}),
    ("get_document", {"document_id": "refdesk/index.md", "cursor": None, "max_tokens": None}),
    ("r2r_search", {"query": "keys", "collection_id": None, "search_mode": None, "limit": 5.0, "filters": None}),
    ("r2r_rag_query", {"question": "keys", "model": None, "max_tokens": 500.0, "temperature": None}),
    ("r2r_list_documents", {"collection_id": None, "offset": 0.0, "limit": None, "status_filter": None}),
    ("doc_local_search", {"doc_id": "refdesk/index.md", "query": "keys", "max_results": 2.0}),
    ("list_available_tools", {}),
]


async def test_null_and_whole_floats_are_accepted(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        for tool, arguments in CALLS:
            answer = await server.call("tools/call", {"name": tool, "arguments": arguments})
            assert "error" not in answer, (tool, arguments, answer)
            assert not answer["result"].get("isError"), (tool, arguments, answer)
        refused = await server.call("tools/call", {"name": "search_documentation", "arguments": {"query": None}})
        assert refused["error"]["code"] == -32602
        refused = await server.call("tools/call", {"name": "r2r_search", "arguments": {"query": "a", "limit": 5.5}})
        assert refused["error"]["code"] == -32602
        assert (await server.call("tools/call", {"name": "list_available_tools", "arguments": None}))["result"]
        executed = await server.http.post(
            "/internal/mcp/execute",
            json={
                "tool_name": "list_available_tools",
                "arguments": None,
                "user": {"user_id": "u", "tenant_id": "default", "roles": None},
                "trace_id": None,
            },
        )
        assert executed.json()["status"] == "ok", executed.text
