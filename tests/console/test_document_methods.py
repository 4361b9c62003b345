"""Documents and collections in the console, each tenant's own, and by the roles and toolsets that tools go by."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from refdesk.console.document_methods import serialize_status
from refdesk.engines.base import DocumentStatus
from tests.conftest import Serve
from tests.console.asking import act, bearer, bring, get_refusal
from tests.console.events import listening
from tests.servers import RunningServer
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

FOXES = "# Foxes\n\nA fox lives [here](ftp://example.org) and [there](https://example.org).\n\n## Food\n\nBerries.\n"
KEYS = [
    {"key": "k-acme", "user": "ann", "tenant": "acme"},
    {"key": "k-beta", "user": "bob", "tenant": "beta"},
    {"key": "k-reader", "user": "rea", "tenant": "acme", "roles": ["reader"]},
    {"key": "k-docs", "user": "doc", "tenant": "acme", "toolsets": ["docs"]},
    {"key": "k-convert", "user": "con", "tenant": "acme", "toolsets": ["convert"]},
    {"key": "k-wrong", "user": "wro", "tenant": "acme", "roles": ["raeder"]},
]
READS = ("collections", "documents", "document", "read")
WRITES: dict[str, dict[str, Any]] = {
    "create_collection": {"name": "birds"},
    "delete_collection": {"id": "animals"},
    "delete_documents": {"ids": ["animals/foxes"]},
    "retry": {"id": "animals/foxes"},
}


@pytest.fixture
async def server(serve: Serve) -> AsyncIterator[RunningServer]:
    async with serve(auth__required=True, auth__keys=KEYS, embedding__source="none") as server:
        yield server


async def test_a_document_is_listed_described_and_read(server: RunningServer) -> None:
    await act(server, "create_collection", key="k-acme", name="animals", description="Of the wood", version="2")
    id = await bring(server, FOXES, "Foxes", key="k-acme", collection_id="animals")
    own, *shared = (await act(server, "collections", key="k-acme"))["collections"]
    assert (own["id"], own["documents"], own["description"], own["shared"]) == ("animals", 1, "Of the wood", False)
    assert [each["id"] for each in shared if each["shared"]] == ["refdesk"]
    listed = await act(server, "documents", key="k-acme", collection="animals", status="success")
    assert listed["total"] == 1
    assert (listed["documents"][0]["id"], listed["documents"][0]["progress"]) == (id, 1.0)
    document = await act(server, "document", key="k-acme", id=id)
    assert [entry["id"] for entry in document["outline"]] == ["foxes", "food"]
    assert (document["info"]["title"], document["pages"], document["status"]["status"]) == ("Foxes", 1, "success")
    read = await act(server, "read", key="k-acme", id=id)
    assert [block["type"] for block in read["blocks"]] == ["heading", "paragraph", "heading", "paragraph"]
    links = {part["text"]: part.get("href") for part in read["blocks"][1]["inlines"]}
    assert links == {"A fox lives here and ": None, "there": "https://example.org", ".": None}
    search = await server.http.post("/api/tools/r2r_search", json={"query": "berries"}, headers=bearer("k-acme"))
    [hit] = [each for each in search.json()["structuredContent"]["results"] if each["document_id"] == id]
    around = await act(server, "read", key="k-acme", id=id, chunk=hit["chunk_id"])
    assert any(block.get("hit") for block in around["blocks"])


async def test_statuses_are_asked_for_by_what_people_call_them(server: RunningServer) -> None:
    await bring(server, FOXES, "Foxes", key="k-acme")
    for status, total in {"all": 1, "success": 1, "failed": 0, "pending": 0}.items():
        assert (await act(server, "documents", key="k-acme", status=status))["total"] == total
    assert "'all', 'pending'" in await get_refusal(server, "documents", 400, key="k-acme", status="done")


async def test_what_one_tenant_has_does_not_exist_for_another(server: RunningServer) -> None:
    id = await bring(server, FOXES, "Foxes", key="k-acme", collection_id="animals")
    assert [each["id"] for each in (await act(server, "collections", key="k-beta"))["collections"]] == ["refdesk"]
    assert await act(server, "documents", key="k-beta") == {"documents": [], "total": 0}
    assert (await act(server, "documents", key="k-beta", collection="animals"))["total"] == 0
    for action, params in {
        "document": {"id": id},
        "read": {"id": id},
        "retry": {"id": id},
        "delete_collection": {"id": "animals"},
    }.items():
        message = await get_refusal(server, action, 404, key="k-beta", **params)
        other = {name: f"{value}x" for name, value in params.items()}
        assert message.replace("animals", "?") == (
            await get_refusal(server, action, 404, key="k-beta", **other)
        ).replace("animals", "?").replace("x'", "'")
    assert (await act(server, "delete_documents", key="k-beta", ids=[id])) == {"deleted": [], "missing": [id]}
    assert (await act(server, "documents", key="k-acme"))["total"] == 1


async def test_a_reader_reads_and_changes_nothing(server: RunningServer) -> None:
    id = await bring(server, FOXES, "Foxes", key="k-acme", collection_id="animals")
    assert (await act(server, "documents", key="k-reader"))["total"] == 1
    assert (await act(server, "read", key="k-reader", id=id))["blocks"]
    for action, params in WRITES.items():
        message = await get_refusal(server, action, 403, key="k-reader", **params)
        assert "the role 'reader' is read-only; use a key with the role 'writer'" in message


async def test_a_key_opens_what_its_toolsets_open(server: RunningServer) -> None:
    for action in READS:
        params = {"id": "refdesk/index.md"} if action in ("document", "read") else {}
        assert await act(server, action, key="k-docs", **params)
        message = await get_refusal(server, action, 403, key="k-convert", **params)
        assert message.startswith("This belongs to the toolset 'docs' or 'r2r', which your key doesn't grant")
    for action, params in WRITES.items():
        for key in ("k-docs", "k-convert"):
            assert "toolset 'r2r'" in await get_refusal(server, action, 403, key=key, **params)
    assert "toolset 'downstream'" in await get_refusal(server, "servers", 403, key="k-docs")


async def test_roles_that_nobody_knows_open_nothing(server: RunningServer) -> None:
    for action in ("me", "metrics", *READS):
        assert "grant nothing" in await get_refusal(server, action, 403, key="k-wrong")


async def test_documents_and_collections_are_taken_away(server: RunningServer) -> None:
    first = await bring(server, FOXES, "Foxes", key="k-acme", collection_id="animals")
    await bring(server, "# Owls\n\nHoot.", "Owls", key="k-acme", collection_id="animals")
    gone = await act(server, "delete_documents", key="k-acme", ids=[first, first, "animals/nothing"])
    assert gone == {"deleted": [first], "missing": ["animals/nothing"]}
    assert await act(server, "delete_collection", key="k-acme", id="animals") == {"deleted": "animals"}
    assert (await act(server, "documents", key="k-acme"))["total"] == 0
    assert "No such collection: 'animals'" in await get_refusal(
        server, "delete_collection", 404, key="k-acme", id="animals"
    )
    assert "comes with Refdesk" in await get_refusal(server, "delete_collection", 400, key="k-acme", id="refdesk")
    assert "means all collections" in await get_refusal(server, "create_collection", 400, key="k-acme", name="All")


async def test_a_document_that_has_failed_is_tried_again_and_no_other(serve: Serve, tmp_path: Path) -> None:
    source = tmp_path / "notes.pdf"
    source.write_bytes(b"%PDF-1.4 broken")
    async with serve(convert__roots=[str(tmp_path)], embedding__source="none") as server:
        ingest = {"file_path": str(source), "run_async": True}
        await server.http.post("/api/tools/r2r_ingest_document", json=ingest)

        async def status(wanted: str) -> dict[str, Any] | None:
            documents = (await act(server, "documents"))["documents"]
            return next((each for each in documents if each["status"] == wanted), None)

        async def has_failed() -> bool:
            return await status("failed") is not None

        async def is_in() -> bool:
            return await status("success") is not None

        await eventually(has_failed)
        failed = await status("failed")
        assert failed is not None
        assert failed["error"]
        source.write_bytes((Path(__file__).parents[1] / "files" / "pdf").glob("*.pdf").__next__().read_bytes())
        again = (await act(server, "retry", id=failed["id"]))["document"]
        assert (again["status"] in ("pending", "converting"), again["attempts"], again["error"]) == (True, 0, None)
        await eventually(is_in)
        assert "is indexed; only failed documents" in await get_refusal(server, "retry", 422, id=failed["id"])


async def test_paths_of_this_machine_are_told_to_nobody(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text(FOXES)
    async with (
        serve(convert__roots=[str(tmp_path)], embedding__source="none") as server,
        listening(server.http) as events,
    ):
        await events.until(lambda events: events.of("documents"))  # a document that is in before isn't told of
        ingest = {"file_path": str(tmp_path / "notes.md")}
        answer = await server.http.post("/api/tools/r2r_ingest_document", json=ingest)
        id = answer.json()["structuredContent"]["document_id"]
        await events.until(lambda events: any(each["id"] == id for each in events.documents()))
        told = [await act(server, "documents"), await act(server, "document", id=id), events.received]
        assert str(tmp_path) not in json.dumps(told)
        manual = await act(server, "document", id="refdesk/index.md")
        assert (manual["info"]["source"], manual["status"]["source"]) == ("", "")


def test_an_address_of_the_web_is_told() -> None:
    now = datetime.now(UTC)
    for source, shown in (("https://example.org/a", "https://example.org/a"), ("/etc/hosts", ""), ("doc_abc", "")):
        status = DocumentStatus("a/b", "a", "B", "success", 1.0, now, now, source=source)
        assert serialize_status(status, ())["source"] == shown
