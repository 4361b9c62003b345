"""What a team does with R2R, start to end: `refdesk serve` set up by R2R's variables, called by the official client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.contracts.engine import FOXES
from tests.processes import started_server
from tests.r2r.lab import Account, Lab
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.anyio, pytest.mark.r2r, pytest.mark.timeout(400)]


@pytest.fixture
async def client(r2r: Lab, account: Account, tmp_path: Path) -> AsyncIterator[Client]:
    (tmp_path / "docs").mkdir()
    variables = {
        "R2R_API_URL": r2r.url,
        "R2R_SERVICE_EMAIL": account.email,
        "R2R_SERVICE_PASSWORD": account.password,
        "REFDESK__CONVERT__ROOTS": str(tmp_path / "docs"),
    }
    async with started_server(tmp_path, **variables) as server:
        async with Client(f"{server.url}/mcp", read_timeout_seconds=PATIENCE_SECONDS) as client:
            yield client
        await server.stop()
    assert server.complaints() == []
    assert account.password not in str(server.log)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    structured: dict[str, Any] = result.structured_content
    return structured


async def test_document_is_ingested_monitored_found_cached_and_cited(r2r: Lab, client: Client, tmp_path: Path) -> None:
    file = tmp_path / "docs" / "foxes.md"
    file.write_text(FOXES)
    assert (await call(client, "r2r_search", query="what does a fox eat", collection_id="all"))["count"] == 0
    taken = await call(client, "r2r_ingest_document", file_path=str(file), collection_id="animals")
    assert taken["status"] in ("pending", "converting", "embedding", "success")

    with anyio.fail_after(PATIENCE_SECONDS):
        state: dict[str, Any] = {}
        while state.get("ingestion_status") != "success":
            state = await call(client, "r2r_monitor_task", document_id=taken["document_id"], wait_seconds=5)
            assert state["ingestion_status"] != "failed", state
    assert state["progress"] == 1.0

    found = await call(client, "r2r_search", query="what does a fox eat", collection_id="animals")
    assert found["results"][0]["document_id"] == taken["document_id"] == "animals/foxes.md"
    assert "berries" in found["results"][0]["text"]
    assert found["results"][0]["metadata"]["path"].startswith("Foxes")

    before = r2r.provider.counts()
    again = await call(client, "r2r_search", query="what does a fox eat", collection_id="animals")
    assert (found["cached"], again["cached"]) == (False, True)
    assert again["results"] == found["results"]
    assert r2r.provider.counts() == before  # R2R was not asked

    written = r2r.provider.counts().get("chat", 0)
    answer = await call(client, "r2r_rag_query", question="What does a fox eat?", collection_id="animals")
    assert r2r.provider.counts()["chat"] == written + 1
    assert answer["found"]
    assert "lab-chat" in answer["model_used"]
    assert "berries" in answer["answer"]
    assert "[1]" in answer["answer"]
    assert {source["document_id"] for source in answer["sources"]} == {"animals/foxes.md"}

    listed = await call(client, "r2r_list_documents", collection_id="animals")
    assert [entry["document_id"] for entry in listed["documents"]] == ["animals/foxes.md"]
    collections = await call(client, "r2r_list_collections")
    assert ("animals", 1) in [(entry["collection_id"], entry["document_count"]) for entry in collections["collections"]]


async def test_r2rs_own_ids_are_understood_by_every_tool(r2r: Lab, account: Account, client: Client) -> None:
    for title, collection in (("Foxes", "animals"), ("Ferns", "plants")):
        given = {"text": f"{title} live in the wood.", "title": title, "collection_id": collection}
        assert (await call(client, "r2r_ingest_document", **given, run_async=False))["status"] == "success"
    collections = r2r.ask(account, "GET", "/collections", params={"limit": 100})
    animals = next(each["id"] for each in collections if each["name"] == "animals")
    (foxes,) = [each["id"] for each in r2r.ask(account, "GET", f"/collections/{animals}/documents")]

    own = {"animals/foxes"}
    for collection_id in (animals, animals.upper(), [animals]):
        found = await call(client, "r2r_search", query="live in the wood", collection_id=collection_id)
        assert {hit["document_id"] for hit in found["results"]} == own
        assert found["collection_id"] == "animals"
    answer = await call(client, "r2r_rag_query", question="Who lives in the wood?", collection_id=animals)
    assert {source["document_id"] for source in answer["sources"]} == own
    listed = await call(client, "r2r_list_documents", collection_id=animals)
    assert [each["document_id"] for each in listed["documents"]] == ["animals/foxes"]
    more = {"text": "Foxes live in the wood.", "title": "Foxes", "collection_id": animals, "run_async": False}
    assert (await call(client, "r2r_ingest_document", **more))["collection_id"] == "animals"

    async def search(filters: dict[str, Any]) -> set[str]:
        found = await call(client, "r2r_search", query="wood", collection_id="all", filters=filters)
        return {hit["document_id"] for hit in found["results"]}

    assert await search({"collection_ids": {"$overlap": [animals]}}) == own
    assert await search({"collection_id": animals}) == own
    assert await search({"document_id": foxes}) == own
    assert await search({"$or": [{"document_id": {"$in": [foxes.upper()]}}]}) == own
    assert await search({"document_id": {"$ne": foxes}}) == {"plants/ferns"}

    assert (await call(client, "r2r_monitor_task", document_id=foxes))["ingestion_status"] == "success"
    for tool, arguments in (
        ("get_document", {}),
        ("read_doc_metadata", {}),
        ("read_doc_section", {"section_id": "foxes"}),
        ("doc_local_search", {"query": "wood"}),
        ("read_chunk_window", {"anchor_chunk_id": f"{foxes}#c1"}),
        ("read_chunk_window", {"anchor_chunk_id": "animals/foxes#c1"}),
    ):
        name = "document_id" if tool == "get_document" else "doc_id"
        result = await client.call_tool(tool, {name: foxes, **arguments})
        assert not result.is_error, (tool, result.content)
        assert "wood" in str(result) or tool == "read_doc_metadata"
    for uri, text in ((f"r2r://document/{foxes}", "Foxes live"), (f"r2r://collection/{animals}", '"animals"')):
        (content,) = (await client.read_resource(uri)).contents
        assert text in content.model_dump()["text"]


async def test_document_is_stored_with_its_ingestion_mode_and_who_ingested_it_when(
    r2r: Lab, account: Account, client: Client
) -> None:
    texts = {"fast": FOXES, "hi-res": "# Hounds\n\nThe hound chases the fox.\n\n## Food\n\nA hound eats bread."}
    for mode, text in texts.items():
        given = {"text": text, "title": mode, "ingestion_mode": mode, "collection_id": "a"}
        taken = await call(client, "r2r_ingest_document", **given, run_async=False)
        assert taken["status"] == "success"
    found = await call(client, "r2r_search", query="fox", collection_id="a", filters={"ingested_by": "anonymous"})
    assert {hit["metadata"].get("ingestion_mode") for hit in found["results"]} == {None, "hi-res"}
    stored = {one["title"]: one for one in r2r.ask(account, "GET", "/documents")}
    assert {title: bool(one["summary"]) for title, one in stored.items()} == {"fast": False, "hi-res": True}
    for one in stored.values():
        assert one["metadata"]["ingested_by"] == "anonymous"
        assert one["metadata"]["ingested_at"] == one["metadata"]["refdesk"]["metadata"]["ingested_at"]
