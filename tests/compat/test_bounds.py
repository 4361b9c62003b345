"""Bounds and defaults of the tools and settings of the systems that Refdesk replaces."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.config.loading import load
from tests.conftest import Serve

pytestmark = pytest.mark.anyio

OUTSIDE: list[tuple[str, dict[str, Any], str]] = [
    ("search_documentation", {}, "query"),
    ("search_documentation", {"query": ""}, "query"),
    ("search_documentation", {"query": "x" * 1001}, "query"),
    ("search_documentation", {"query": "x", "max_results": 0}, "max_results"),
    ("search_documentation", {"query": "x", "max_results": 21}, "max_results"),
    ("search_documentation", {"query": "x", "doc_type": "windows"}, "doc_type"),
    ("get_document", {"document_id": ""}, "document_id"),
    ("r2r_search", {"query": "x", "limit": 0}, "limit"),
    ("r2r_search", {"query": "x", "limit": 101}, "limit"),
    ("r2r_rag_query", {"question": "x", "temperature": -0.1}, "temperature"),
    ("r2r_rag_query", {"question": "x", "temperature": 2.1}, "temperature"),
    ("r2r_ingest_document", {"file_path": "x", "ingestion_mode": "slow"}, "ingestion_mode"),
    ("r2r_list_documents", {"limit": 101}, "limit"),
    ("r2r_list_documents", {"offset": -1}, "offset"),
    ("r2r_list_documents", {"status_filter": "lost"}, "status_filter"),
    ("r2r_list_collections", {"limit": 101}, "limit"),
    ("r2r_monitor_task", {}, "document_id"),
    ("doc_local_search", {"doc_id": "x", "query": "x", "max_results": 6}, "max_results"),
    ("read_chunk_window", {"doc_id": "x", "anchor_chunk_id": "c1", "window_before": -1}, "window_before"),
]


async def test_arguments_out_of_bounds_are_invalid_parameters(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        for tool, arguments, wrong in OUTSIDE:
            error = (await server.call("tools/call", {"name": tool, "arguments": arguments}))["error"]
            assert error["code"] == -32602, (tool, arguments)
            assert error["data"]["errors"][0]["argument"] == wrong
        longest = {"query": "x" * 1000, "max_results": 20}
        assert (await server.call("tools/call", {"name": "search_documentation", "arguments": longest}))["result"]


def test_lifetimes_and_thresholds_have_their_defaults() -> None:
    config = load(None, {})
    ttl, breaker = config.cache.ttl, config.circuit_breaker
    assert (ttl.search, ttl.rag, ttl.list) == (300, 120, 60)
    assert (breaker.failure_threshold, breaker.timeout_seconds, breaker.success_threshold) == (5, 60, 2)
    assert (config.server.allowed_origins, config.auth.required, config.cache.type) == ((), False, "memory")
