"""The project that a caller works on, its collection, and the file that remembers it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refdesk.app import Desk
from refdesk.calls import ANONYMOUS, SILENT, Call, Caller, Client, TenantId, UserId
from refdesk.errors import EngineError, StorageError
from refdesk.tools.collection_scope import MappingFile, Project, ProjectEntry
from tests.tools.asking import ask, failure
from tests.tools.knowing import open_indexed_desk, somebody

pytestmark = pytest.mark.anyio

ACME = TenantId("acme")
ANN = somebody("ann", ACME)
BOB = somebody("bob", ACME)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
async def desk(data: Path) -> AsyncIterator[Desk]:
    """One desk for most tests here: each has a tenant of its own."""
    async with open_indexed_desk(data) as desk:
        yield desk


@pytest.fixture
def ann() -> Caller:
    """Somebody of a tenant that no other test has."""
    return somebody("ann")


@pytest.fixture
def bob(ann: Caller) -> Caller:
    """Somebody else of the same tenant."""
    return replace(ann, user=UserId("bob"))


class WorksIn(Client):
    """A client that says which folders it works in, and counts how often it is asked."""

    def __init__(self, *roots: Any) -> None:
        self.roots = [{"uri": root} if isinstance(root, str) else root for root in roots]
        self.asked = 0

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        assert (name, method) == ("roots", "roots/list")
        self.asked += 1
        return {"roots": self.roots}


async def call(desk: Desk, caller: Caller, client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    answer = await desk.handle(Call("tools/call", params, caller=caller, client=client))
    assert not answer.is_error, answer.text
    structured: dict[str, Any] = answer.structured
    return structured


async def ingest_text(desk: Desk, caller: Caller, client: Client, text: str, *, run_async: bool = False) -> str:
    arguments = {"text": text, "title": text, "run_async": run_async}
    taken = await call(desk, caller, client, "r2r_ingest_document", **arguments)
    collection: str = taken["collection_id"]
    return collection


async def context(desk: Desk, caller: Caller, client: Client = SILENT) -> dict[str, Any]:
    params = {"uri": "r2r://current-project/context"}
    answer = await desk.handle(Call("resources/read", params, caller=caller, client=client))
    read: dict[str, Any] = json.loads(answer.result["contents"][0]["text"])
    return read


async def test_the_first_root_names_the_collection_which_is_made_and_written_down(
    desk: Desk, ann: Caller, data: Path
) -> None:
    client = WorksIn("file:///home/ann/My%20App", "file:///home/ann/other")
    collection = await ingest_text(desk, ann, client, "Zebras graze.")
    assert collection == "claude-code-my-app"
    written = json.loads((data / "projects.json").read_text())
    assert written[ann.tenant] == {"My App": {"collection_id": collection, "path": "/home/ann/My App"}}


async def test_a_search_stays_in_the_project_of_its_window(desk: Desk, ann: Caller) -> None:
    savanna, jungle = WorksIn("file:///srv/savanna"), WorksIn("file:///srv/jungle")
    await ingest_text(desk, ann, savanna, "Zebras graze.")
    await ingest_text(desk, ann, jungle, "Zebras sleep.")
    await call(desk, ann, SILENT, "r2r_ingest_document", text="Zebras.", title="Zebras", run_async=False)
    for window, name, document in (
        (savanna, "savanna", "claude-code-savanna/zebras-graze"),
        (jungle, "jungle", "claude-code-jungle/zebras-sleep"),
    ):
        found = await call(desk, ann, window, "r2r_search", query="zebras")
        assert [hit["document_id"] for hit in found["results"]] == [document]
        assert found["collection_id"] == f"claude-code-{name}"
        answered = await call(desk, ann, window, "r2r_rag_query", question="zebras")
        assert {source["document_id"] for source in answered["sources"]} == {document}
        listed = await call(desk, ann, window, "r2r_list_documents")
        assert [one["document_id"] for one in listed["documents"]] == [document]
        for answer in (found, answered, listed):
            assert f"current project, '{name}'" in answer["hint"]
            assert '"all"' in answer["hint"]
        assert (await context(desk, ann, window))["project_name"] == name
    for everything in (
        await call(desk, ann, savanna, "r2r_search", query="zebras", collection_id="all"),
        await call(desk, ann, SILENT, "r2r_search", query="zebras"),
        await call(desk, replace(ANONYMOUS, tenant=ann.tenant), SILENT, "r2r_search", query="zebras"),
        await call(desk, ann, savanna, "r2r_list_documents", collection_id="all"),
    ):
        documents = everything.get("results") or everything["documents"]
        collections = {one["document_id"].partition("/")[0] for one in documents}
        assert {"claude-code-savanna", "claude-code-jungle", "default"} <= collections


async def test_a_project_without_documents_is_not_answered_from_another_project(desk: Desk, ann: Caller) -> None:
    await ingest_text(desk, ann, WorksIn("file:///srv/savanna"), "Zebras graze.")
    jungle = WorksIn("file:///srv/jungle")
    assert (await call(desk, ann, jungle, "r2r_search", query="zebras graze"))["results"] == []
    assert (await call(desk, ann, jungle, "r2r_rag_query", question="zebras graze"))["sources"] == []
    assert (await call(desk, ann, jungle, "r2r_list_documents"))["documents"] == []
    await call(desk, ann, jungle, "r2r_ingest_document", text="Zebras graze.", title="Z", collection_id="default",
               run_async=False)  # fmt: skip
    found = await call(desk, ann, jungle, "r2r_search", query="zebras graze")
    assert [hit["document_id"] for hit in found["results"]] == ["default/z"]
    assert "'jungle', has no documents yet" in found["hint"]


async def test_folders_of_one_name_are_projects_of_their_own(desk: Desk, ann: Caller, data: Path) -> None:
    windows = {path: WorksIn(f"file://{path}") for path in ("/x/app", "/y/app", "/z/App")}
    for (path, window), name in zip(windows.items(), ("app", "app-2", "App-3"), strict=True):
        assert (await context(desk, ann, window))["project_name"] == name
        assert await ingest_text(desk, ann, window, f"Zebras of {path[1]}.") == f"claude-code-{name.lower()}"
        assert (await context(desk, ann, window))["project_path"] == path
    for path, window in windows.items():
        found = await call(desk, ann, window, "r2r_search", query="zebras")
        assert [hit["text"] for hit in found["results"]] == [f"Zebras of {path[1]}."]
    written = json.loads((data / "projects.json").read_text())[ann.tenant]
    assert {name: entry["path"] for name, entry in written.items()} == {
        "app": "/x/app", "app-2": "/y/app", "App-3": "/z/App"
    }  # fmt: skip


async def test_a_folder_takes_over_the_collection_that_has_its_name(desk: Desk, ann: Caller) -> None:
    await call(desk, ann, SILENT, "r2r_ingest_document", text="Zebras.", title="Z", collection_id="claude-code-app",
               run_async=False)  # fmt: skip
    first, second = WorksIn("file:///x/app"), WorksIn("file:///y/app")
    assert (await call(desk, ann, second, "r2r_search", query="zebras"))["count"] == 1
    assert await ingest_text(desk, ann, first, "Apes.") == "claude-code-app"
    assert (await call(desk, ann, second, "r2r_search", query="zebras"))["count"] == 0
    assert await ingest_text(desk, ann, second, "Apes.") == "claude-code-app-2"


async def test_one_folder_in_several_spellings_is_one_project(desk: Desk, ann: Caller) -> None:
    for uri in ("file:///c%3A/src/app", "file:///C:/src/app/", "file:///c:/src/./app"):
        assert await ingest_text(desk, ann, WorksIn(uri), "Zebras.", run_async=True) == "claude-code-app"
    named = Call(
        "tools/call",
        {"name": "r2r_ingest_document", "arguments": {"text": "Zebras.", "title": "Zebras"}},
        caller=ann,
        project="C:\\src\\app",
    )
    assert (await desk.handle(named)).structured["collection_id"] == "claude-code-app"


async def test_ingestion_tells_which_project_it_was_for(desk: Desk, ann: Caller) -> None:
    given = {"text": "Zebras.", "title": "Zebras"}
    told = await call(desk, ann, WorksIn("file:///srv/savanna"), "r2r_ingest_document", **given)
    assert told["next"].startswith("It belongs to the current project, 'savanna'.")
    told = await call(desk, ann, SILENT, "r2r_ingest_document", **given)
    assert "No current project is known" in told["next"]
    assert "?project=NAME" in told["next"]
    told = await call(desk, ann, SILENT, "r2r_ingest_document", collection_id="default", **given)
    assert "project" not in told["next"]


async def test_without_a_root_that_names_a_project_documents_go_to_the_default_collection(
    desk: Desk, ann: Caller
) -> None:
    nothing: list[Any] = ["file:///", "file:///srv/a%0Ab", "http://[broken", {"uri": 7}, {"name": "\u202e"}, 7]
    for client in (SILENT, *(WorksIn(root) for root in nothing), WorksIn(*nothing)):
        assert await ingest_text(desk, ann, client, "Zebras graze.", run_async=True) == "default"
    assert (
        await ingest_text(desk, ann, WorksIn(*nothing, "file:///srv/x"), "Zebras.", run_async=True) == "claude-code-x"
    )


async def test_the_setting_names_the_project_of_clients_that_announce_none(tmp_path: Path) -> None:
    async with open_indexed_desk(tmp_path, project="Savanna") as desk:
        assert await ingest_text(desk, ANN, SILENT, "Zebras graze.") == "claude-code-savanna"
        assert await ingest_text(desk, BOB, WorksIn("file:///srv/jungle"), "Apes climb.") == "claude-code-jungle"
        found = await ask(desk, "r2r_search", ANN, query="zebras")
        assert found["collection_id"] == "claude-code-savanna"


async def test_no_collection_is_made_where_that_is_switched_off(tmp_path: Path) -> None:
    async with open_indexed_desk(tmp_path, project="savanna", projects__auto_create_collections=False) as desk:
        assert await ingest_text(desk, ANN, SILENT, "Zebras graze.") == "default"
        told = await failure(desk, "r2r_ingest_document", ANN, text="x", title="x", collection_id="savannah")
        assert "no collection 'savannah'" in told


async def test_a_project_is_found_again_after_a_restart_by_the_file_that_people_may_edit(
    tmp_path: Path,
) -> None:
    file = tmp_path / "own" / "map.json"
    settings = {"project": "savanna", "projects__collection_mapping_file": str(file)}
    async with open_indexed_desk(tmp_path / "data", **settings) as desk:
        await ingest_text(desk, ANN, SILENT, "Zebras graze.")
        await call(desk, ANN, SILENT, "r2r_ingest_document", text="Lions.", title="Lions", collection_id="cats")
    mapped = json.loads(file.read_text())
    assert mapped["acme"]["savanna"]["collection_id"] == "claude-code-savanna"
    async with open_indexed_desk(tmp_path / "data", **settings) as desk:
        assert (await context(desk, ANN))["collection_id"] == "claude-code-savanna"
        mapped["acme"]["savanna"]["collection_id"] = "cats"
        file.write_text(json.dumps(mapped))
        assert (await context(desk, ANN))["collection_id"] == "cats"


async def test_a_broken_file_is_told_of_and_never_written_over(tmp_path: Path) -> None:
    async with open_indexed_desk(tmp_path, project="savanna") as desk:
        file = tmp_path / "projects.json"
        file.write_text('{"acme": {"savanna": ')
        for tool, arguments in (
            ("r2r_search", {"query": "zebras"}),
            ("r2r_ingest_document", {"text": "x", "title": "x"}),
        ):
            with pytest.raises(EngineError, match=r"projects\.json is invalid"):
                await desk.call(tool, arguments, caller=ANN)
        assert file.read_text() == '{"acme": {"savanna": '
        assert (await ask(desk, "r2r_search", ANN, query="zebras", collection_id="all"))["collection_id"] == "all"


async def test_the_context_tells_the_project_its_collection_and_its_counts(
    desk: Desk, ann: Caller, bob: Caller
) -> None:
    savanna = WorksIn("file:///srv/savanna")
    assert (await context(desk, ann))["project_name"] is None
    await ingest_text(desk, ann, savanna, "Zebras graze.")
    told = await context(desk, ann, savanna)
    assert told.pop("last_updated").endswith("Z")
    assert told == {
        "project_name": "savanna",
        "project_path": "/srv/savanna",
        "collection_id": "claude-code-savanna",
        "collection_name": "claude-code-savanna",
        "document_count": 1,
        "ingestion_status": {"pending": 0, "success": 1, "failed": 0},
    }
    assert (await context(desk, bob))["project_name"] is None


def test_several_writers_of_one_file_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "projects.json"

    def write(name: str) -> None:
        file = MappingFile(path)
        for n in range(20):
            file.put(ACME, f"{name}-{n}", ProjectEntry(collection_id="c"))

    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write, "abcd"))
    assert len(json.loads(path.read_text())["acme"]) == 80
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".projects.json.lock", "projects.json"]


def test_several_processes_give_folders_of_one_name_different_names(tmp_path: Path) -> None:
    path = tmp_path / "projects.json"
    folders = [f"/{letter}/app" for letter in "abcdefgh"] * 2

    def claim(folder: str) -> tuple[str, str]:
        return folder, MappingFile(path).claim(ACME, Project("app", folder), ()).name

    with ThreadPoolExecutor(8) as processes:
        names = dict(processes.map(claim, folders))
    assert sorted(names.values()) == ["app", *(f"app-{number}" for number in range(2, 9))]
    written = json.loads(path.read_text())["acme"]
    assert {entry["path"]: name for name, entry in written.items()} == names


def test_what_others_wrote_into_an_entry_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "projects.json"
    path.write_text('{"acme": {"a": {"collection_id": "x", "note": "by hand"}}}')
    MappingFile(path).put(ACME, "b", ProjectEntry(collection_id="y"))
    assert json.loads(path.read_text())["acme"]["a"] == {"collection_id": "x", "path": "", "note": "by hand"}


def test_a_folder_that_cannot_be_written_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"projects\.json cannot be used"):
        MappingFile(tmp_path / "file" / "projects.json").put(ACME, "a", ProjectEntry(collection_id="x"))
