"""The six r2r tools through the library, on the real engine: what is brought in is found, listed, answered from."""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import AsyncIterator, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from refdesk.app import Desk
from refdesk.calls import Call, Caller, Client, Event, ListChanged, ResourceUpdated, UserId
from refdesk.errors import InvalidArguments
from refdesk.tools.json_schema import build_schema
from refdesk.tools.registry import Tool
from tests.documents.convert.pdf.made import pdf
from tests.tools.asking import ask, failure
from tests.tools.knowing import open_indexed_desk, somebody
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

HANDBOOK = {
    "Backups": "# Backups\n\nThe nightly backup of the ledger runs at three. Restore it with `ledgerctl restore`.\n",
    "Limits": "# Limits\n\nSet `max_ledgers` to 40. More ledgers need a larger vault.\n",
    "Holidays": "# Holidays\n\nThe office is closed on the shortest day of the year.\n",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder whose files may be named."""
    return tmp_path_factory.mktemp("project")


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory, project: Path) -> AsyncIterator[Desk]:
    """One desk for all tests here: each has a tenant of its own."""
    async with open_indexed_desk(tmp_path_factory.mktemp("data"), convert__roots=[str(project)]) as desk:
        yield desk


@pytest.fixture(scope="module")
def ann() -> Caller:
    """Somebody whose documents no test changes."""
    return somebody("ann")


@pytest.fixture
def bob() -> Caller:
    """Somebody of a tenant that no other test has."""
    return somebody("bob")


@pytest.fixture(scope="module")
async def desk_with_handbook(desk: Desk, ann: Caller) -> Desk:
    """The desk, with the handbook in Ann's collection `handbook`."""
    for title, text in HANDBOOK.items():
        await add(desk, ann, title, text)
    return desk


async def add(desk: Desk, caller: Caller, title: str, text: str, **more: Any) -> dict[str, Any]:
    more = {"collection_id": "handbook", "run_async": False} | more
    return await ask(desk, "r2r_ingest_document", caller, text=text, title=title, **more)


async def search_ids(desk: Desk, caller: Caller, query: str, **more: Any) -> list[str]:
    more = {"collection_id": "handbook"} | more
    return [hit["document_id"] for hit in (await ask(desk, "r2r_search", caller, query=query, **more))["results"]]


async def read(desk: Desk, uri: str, caller: Caller) -> str:
    answer = await desk.handle(Call("resources/read", {"uri": uri}, caller=caller))
    text: str = answer.result["contents"][0]["text"]
    return text


class Listening(Client):
    """A client that writes down how far a call says it is."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, float | None]] = []

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        self.heard.append((done, total))


async def test_what_is_brought_in_is_found_with_its_source_version_and_age(
    desk_with_handbook: Desk, ann: Caller
) -> None:
    answer = await ask(desk_with_handbook, "r2r_search", ann, query="restore a backup", collection_id="handbook")
    best = answer["results"][0]
    assert best["document_id"] == "handbook/backups"
    assert best["chunk_id"] == "handbook/backups#c1"
    assert "ledgerctl restore" in best["text"]
    assert 0 <= best["score"] <= 1
    assert best["metadata"]["section"] == "Backups"
    assert not {"source", "collection_id", "version"} & best["metadata"].keys(), "its id says so already"
    assert "title" not in best["metadata"], "its section says so already"
    assert best["metadata"]["indexed_at"].endswith("Z")
    assert answer["count"] == len(answer["results"])
    assert answer["cached"] is False


async def test_text_and_structure_each_tell_the_whole(desk_with_handbook: Desk, ann: Caller) -> None:
    for tool, arguments in (
        ("r2r_search", {"query": "max_ledgers"}),
        ("r2r_rag_query", {"question": "What is max_ledgers set to?"}),
        ("r2r_list_documents", {}),
        ("r2r_list_collections", {}),
        ("r2r_monitor_task", {"document_id": "handbook/limits"}),
    ):
        answer = await desk_with_handbook.call(tool, arguments, caller=ann)
        declared = desk_with_handbook.registry.tools[tool]
        assert isinstance(declared, Tool)
        model = declared.result
        assert model is not None
        model.model_validate(answer.structured)
        assert set(build_schema(model)["required"]) <= set(answer.structured)
        ids = [value for value in _texts(answer.structured) if value.startswith("handbook/")]
        assert all(id in answer.text for id in ids), tool


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for one in value.values() for text in _texts(one)]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    return [value] if isinstance(value, str) and "\n" not in value and " " not in value else []


async def test_a_bare_question_searches_all_that_the_caller_can_read(desk_with_handbook: Desk, ann: Caller) -> None:
    answer = await ask(desk_with_handbook, "r2r_search", ann, query="How do I start the server?")
    assert answer["collection_id"] == "all"
    assert {"refdesk"} <= {hit["document_id"].partition("/")[0] for hit in answer["results"]}
    assert "handbook/limits" in await search_ids(desk_with_handbook, ann, "max_ledgers", collection_id="all")


async def test_a_collection_is_named_by_its_id_its_name_or_with_others(desk: Desk, bob: Caller) -> None:
    await add(desk, bob, "Backups", HANDBOOK["Backups"])
    await add(desk, bob, "Menu", "# Menu\n\nThe ledger soup is served on Fridays.\n", collection_id="Canteen Menus")
    assert await search_ids(desk, bob, "ledger soup", collection_id="canteen menus") == ["canteen-menus/menu"]
    both = await search_ids(desk, bob, "ledger", collection_id=["canteen-menus", "handbook"])
    assert {"canteen-menus/menu", "handbook/backups"} <= set(both)
    assert not any(id.startswith("refdesk/") for id in both)


async def test_an_unknown_collection_is_told_with_the_nearest(desk_with_handbook: Desk, ann: Caller) -> None:
    for tool, arguments in (
        ("r2r_search", {"query": "x"}),
        ("r2r_rag_query", {"question": "x"}),
        ("r2r_list_documents", {}),
    ):
        told = await failure(desk_with_handbook, tool, ann, collection_id="handbok", **arguments)
        assert told == "There is no collection 'handbok'. Did you mean 'handbook'?"
    assert "r2r_list_collections" in await failure(
        desk_with_handbook, "r2r_search", ann, query="x", collection_id="qqqq"
    )


async def test_filters_choose_by_fields_and_metadata_in_every_mode(desk: Desk, bob: Caller) -> None:
    await add(desk, bob, "Ledger rules", "# Rules\n\nA ledger is kept in ink.\n", metadata={"lang": "en", "year": 2024})
    await add(desk, bob, "Kontenregeln", "# Regeln\n\nEin ledger wird mit Tinte geführt.\n", metadata={"lang": "de"})
    for mode in ("advanced", "custom"):
        only = await search_ids(desk, bob, "ledger", search_mode=mode, filters={"metadata.lang": {"$eq": "de"}})
        assert only == ["handbook/kontenregeln"]
    nested = {"$and": [{"metadata.lang": {"$in": ["de", "en"]}}, {"metadata.year": {"$gte": 2020}}]}
    assert await search_ids(desk, bob, "ledger", filters=nested) == ["handbook/ledger-rules"]
    assert await search_ids(desk, bob, "Tinte", filters={"document_type": {"$eq": "md"}}) == ["handbook/kontenregeln"]
    assert await search_ids(desk, bob, "Tinte", filters={"document_type": {"$ne": "md"}}) == []
    with pytest.raises(InvalidArguments):
        await search_ids(desk, bob, "ledger", filters={"metadata.lang": {"$near": 1}})


async def test_a_document_knows_who_ingested_it_when_and_the_same_again_changes_nothing(
    desk: Desk, bob: Caller
) -> None:
    ann, eve = replace(bob, user=UserId("ann")), replace(bob, user=UserId("eve"))
    await add(desk, ann, "Ledger", "# Ledger\n\nA ledger is kept in ink.\n", metadata={"lang": "en"})
    [before] = (await ask(desk, "r2r_search", eve, query="ledger", collection_id="handbook"))["results"]
    assert before["metadata"]["ingested_by"] == "ann"
    assert before["metadata"]["ingested_at"] <= before["metadata"]["indexed_at"]
    again = await add(desk, eve, "Ledger", "# Ledger\n\nA ledger is kept in ink.\n", metadata={"lang": "en"})
    assert again["status"] == "success"
    assert await search_ids(desk, ann, "ledger", filters={"ingested_by": "ann", "lang": "en"}) == ["handbook/ledger"]
    await add(desk, eve, "Ledger", "# Ledger\n\nA ledger is kept in ink.\n", metadata={"lang": "de"})
    assert await search_ids(desk, ann, "ledger", filters={"ingested_by": "eve", "lang": "de"}) == ["handbook/ledger"]


async def test_a_given_title_stays_whatever_the_first_heading_is(desk: Desk, bob: Caller) -> None:
    title = 'Ann\'s "notes": 1 #2 \\ 🦊 \x7fé'
    taken = await add(desk, bob, title, "# Ledger\n\nA ledger is kept in ink.\n")
    title = title.replace("\x7f", "")
    assert (await ask(desk, "r2r_monitor_task", bob, document_id=taken["document_id"]))["title"] == title
    await add(desk, bob, "Vault", "# Vault #\n\nThe vault is green.\n")
    listed = await ask(desk, "r2r_list_documents", bob, collection_id="handbook")
    assert {entry["title"] for entry in listed["documents"]} == {title, "Vault"}
    [hit] = (await ask(desk, "r2r_search", bob, query="kept in ink", collection_id="handbook"))["results"][:1]
    assert (hit["metadata"]["title"], hit["metadata"]["section"]) == (title, "Ledger")


async def test_settings_belong_to_the_custom_mode(desk_with_handbook: Desk, ann: Caller) -> None:
    settings = {"mode": "fulltext", "semantic_weight": 0.2}
    assert await search_ids(desk_with_handbook, ann, "max_ledgers", search_mode="custom", settings=settings)
    for mode, wrong in (("basic", settings), ("custom", {"mode": "x"})):
        with pytest.raises(InvalidArguments, match="settings"):
            await search_ids(desk_with_handbook, ann, "max_ledgers", search_mode=mode, settings=wrong)


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"query": " "}, "query"),
        ({"query": "x", "limit": 0}, "limit"),
        ({"query": "x", "limit": 101}, "limit"),
        ({"query": "x", "search_mode": "best"}, "search_mode"),
        ({"query": "x", "filters": "lang"}, "filters"),
        ({"query": "x", "max_tokens": 1}, "max_tokens"),
    ],
)
async def test_arguments_out_of_bounds_are_named(desk: Desk, arguments: dict[str, Any], wrong: str) -> None:
    with pytest.raises(InvalidArguments, match=wrong):
        await desk.call("r2r_search", arguments)


async def test_an_answer_keeps_to_its_budget_in_text_and_in_structure(desk: Desk, bob: Caller) -> None:
    parts = "\n\n".join(f"## Part {n}\n\n" + f"Sentence about ledger{n} and vaults. " * 60 for n in range(40))
    await add(desk, bob, "Long", f"# Long\n\n{parts}")
    usual = await desk.call("r2r_search", {"query": "ledger vault sentence", "collection_id": "handbook"}, caller=bob)
    assert 1 < usual.structured["count"] <= 10
    assert len(orjson.dumps(usual.structured)) < 8_000
    assert len(usual.text.encode()) < 8_000
    many = {"query": "ledger vault sentence", "limit": 40, "collection_id": "handbook"}
    for tokens, most in ((None, 20_000), (200, 1_600), (20_000, 80_000)):
        answer = await desk.call("r2r_search", {**many, "max_tokens": tokens} if tokens else many, caller=bob)
        assert len(orjson.dumps(answer.structured)) < most
        assert 0 < answer.structured["count"] + answer.structured["omitted"] <= 40
        assert (f"{answer.structured['omitted']} left out" in answer.text) == bool(answer.structured["omitted"])


async def twice(desk: Desk, caller: Caller, tool: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tool's answers to the same call, made twice while nothing changed."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            revision = desk.engine.revision(caller.tenant)
            answers = await ask(desk, tool, caller, **arguments), await ask(desk, tool, caller, **arguments)
            if desk.engine.revision(caller.tenant) == revision:
                return answers


async def test_the_same_search_is_answered_from_the_cache_until_a_document_changes(desk: Desk, bob: Caller) -> None:
    await add(desk, bob, "Backups", HANDBOOK["Backups"])
    first, second = await twice(desk, bob, "r2r_search", query="ledger")
    assert second == {**first, "cached": True}
    assert not (await ask(desk, "r2r_search", bob, query="ledger", limit=9))["cached"]
    assert not (await ask(desk, "r2r_search", replace(bob, user=UserId("eve")), query="ledger"))["cached"]
    await add(desk, bob, "Ledger", "# Ledger\n\nA ledger is a ledger.\n")
    third = await ask(desk, "r2r_search", bob, query="ledger")
    assert not third["cached"]
    assert "handbook/ledger" in [hit["document_id"] for hit in third["results"]]


async def test_no_cache_where_its_time_is_zero(tmp_path: Path, bob: Caller) -> None:
    async with open_indexed_desk(tmp_path, cache__ttl__search=0, cache__ttl__rag=0) as desk:
        for tool, arguments in (("r2r_search", {"query": "server"}), ("r2r_rag_query", {"question": "a server?"})):
            assert not any(answer["cached"] for answer in await twice(desk, bob, tool, **arguments))


async def test_an_answer_quotes_the_documents_and_names_its_sources(desk_with_handbook: Desk, ann: Caller) -> None:
    asked = {"question": "At what time does the nightly backup of the ledger run?", "collection_id": "handbook"}
    answer, again = await twice(desk_with_handbook, ann, "r2r_rag_query", **asked)
    assert again == {**answer, "cached": True}
    assert answer["found"]
    assert answer["model_used"] == "extractive"
    assert "at three" in answer["answer"]
    for source in answer["sources"]:
        assert f"[{source['citation']}]" in answer["answer"]
        assert source["document_id"].startswith("handbook/")
        assert source["chunk_id"].startswith(source["document_id"])
    bare = await ask(desk_with_handbook, "r2r_rag_query", ann, **asked, include_sources=False)
    assert bare["sources"] == []
    assert not bare["cached"]


async def test_what_the_documents_do_not_hold_is_said_plainly(desk_with_handbook: Desk, ann: Caller) -> None:
    asked = {"question": "Which football club won the Brazilian championship in 1987?", "collection_id": "handbook"}
    answer = await ask(desk_with_handbook, "r2r_rag_query", ann, **asked)
    assert not answer["found"]


async def test_documents_are_listed_page_by_page_with_the_number_of_all(desk_with_handbook: Desk, ann: Caller) -> None:
    page = await ask(desk_with_handbook, "r2r_list_documents", ann, collection_id="handbook", limit=2)
    assert (page["total"], page["offset"], page["limit"]) == (3, 0, 2)
    rest = await ask(desk_with_handbook, "r2r_list_documents", ann, collection_id="handbook", offset=2)
    listed = [*page["documents"], *rest["documents"]]
    assert [entry["document_id"] for entry in listed] == [
        "handbook/backups",
        "handbook/holidays",
        "handbook/limits",
    ]
    assert {entry["ingestion_status"] for entry in listed} == {"success"}
    assert all(entry["size_bytes"] > 0 and entry["created_at"].endswith("Z") for entry in listed)
    for status, total in (("success", 3), ("pending", 0), ("failed", 0), ("all", 3)):
        chosen = await ask(
            desk_with_handbook, "r2r_list_documents", ann, collection_id="handbook", status_filter=status
        )
        assert chosen["total"] == total


@pytest.mark.parametrize("tool", ["r2r_list_documents", "r2r_list_collections"])
async def test_a_page_beyond_the_last_is_empty_and_an_offset_has_an_end(
    desk_with_handbook: Desk, ann: Caller, tool: str
) -> None:
    page = await ask(desk_with_handbook, tool, ann, offset=10**9)
    assert (page.get("documents", page.get("collections")), page["total"] > 0) == ([], True)
    with pytest.raises(InvalidArguments, match="offset"):
        await desk_with_handbook.call(tool, {"offset": 10**9 + 1}, caller=ann)


async def test_collections_are_listed_with_their_counts(desk_with_handbook: Desk, ann: Caller) -> None:
    listed = await ask(desk_with_handbook, "r2r_list_collections", ann)
    counts = {entry["collection_id"]: entry["document_count"] for entry in listed["collections"]}
    assert counts["handbook"] == 3
    assert counts["refdesk"] > 5
    assert listed["total"] == 2
    second = await ask(desk_with_handbook, "r2r_list_collections", ann, offset=1, limit=1)
    assert [entry["collection_id"] for entry in second["collections"]] == ["refdesk"]


async def test_a_file_is_brought_in_and_its_way_can_be_watched(desk: Desk, project: Path, bob: Caller) -> None:
    (project / "notes").mkdir()
    (project / "notes" / "vault.md").write_text("# Vault\n\nThe vault opens with a green key.\n")
    taken = await ask(desk, "r2r_ingest_document", bob, file_path="notes/vault.md")
    assert taken["document_id"] == "default/notes/vault.md"
    assert (taken["file_name"], taken["collection_id"]) == ("vault.md", "default")
    state = await ask(desk, "r2r_monitor_task", bob, document_id=taken["document_id"], wait_seconds=30)
    assert (state["ingestion_status"], state["extraction_status"], state["progress"]) == ("success", "success", 1.0)
    assert state["title"] == "Vault"
    assert await search_ids(desk, bob, "green key", collection_id="default") == ["default/notes/vault.md"]


async def test_progress_is_told_while_a_call_waits(desk: Desk, project: Path, bob: Caller) -> None:
    client, paths = Listening(), _some(project)
    params = {"name": "r2r_ingest_document", "arguments": {"file_path": paths, "run_async": False}}
    answer = await desk.handle(Call("tools/call", params, caller=bob, client=client))
    total = len(paths)
    assert {entry["status"] for entry in answer.structured["documents"]} == {"success"}
    assert client.heard[-1][0] == client.heard[-1][1] == total
    assert [done for done, _ in client.heard] == sorted(done for done, _ in client.heard)


def _some(project: Path) -> list[str]:
    for name in ("one", "two"):
        (project / f"{name}.md").write_text(f"# {name}\n\nThis is document {name}.\n")
    return ["one.md", "two.md"]


async def test_whoever_watches_a_document_is_told_of_its_progress(desk: Desk, bob: Caller) -> None:
    taken = await add(desk, bob, "Limits", HANDBOOK["Limits"], run_async=True)
    assert "r2r_monitor_task" in taken["next"]
    client = Listening()
    params = {"name": "r2r_monitor_task", "arguments": {"document_id": taken["document_id"], "wait_seconds": 30}}
    answer = await desk.handle(Call("tools/call", params, caller=bob, client=client))
    assert answer.structured["ingestion_status"] == "success"
    assert client.heard[-1] == (1, 1)


async def test_in_a_batch_the_good_ones_go_on_and_the_others_are_told_of(
    desk: Desk, project: Path, bob: Caller
) -> None:
    paths = [*_some(project), "three.md", "../../etc/passwd"]
    taken = await ask(desk, "r2r_ingest_document", bob, file_path=paths, run_async=False)
    assert [entry["document_id"] for entry in taken["documents"]] == ["default/one.md", "default/two.md"]
    assert taken["document_id"] == "default/one.md"
    assert taken["total"] == 2
    assert len(taken["failures"]) == 2
    assert "three.md" in taken["failures"][0]
    told = await failure(desk, "r2r_ingest_document", bob, file_path=["three.md", "four.md"])
    assert told.startswith("None of the 2 files can be ingested.")


async def test_a_folder_is_brought_in_and_kept_in_step(desk: Desk, project: Path, bob: Caller) -> None:
    folder = project / "guide"
    (folder / "deep").mkdir(parents=True)
    (folder / "a.md").write_text("# A\n\nAlpha particles.\n")
    (folder / "deep" / "b.md").write_text("# B\n\nBeta rays.\n")
    (folder / ".hidden.md").write_text("# Secret\n\nHidden words.\n")
    arguments = {"file_path": "guide", "collection_id": "guide", "run_async": False}
    taken = await ask(desk, "r2r_ingest_document", bob, **arguments)
    assert sorted(entry["document_id"] for entry in taken["documents"]) == ["guide/a.md", "guide/deep/b.md"]
    again = await ask(desk, "r2r_ingest_document", bob, **arguments)
    assert (again["documents"], again["unchanged"], again["removed"]) == ([], 2, 0)
    (folder / "a.md").unlink()
    (folder / "deep" / "b.md").write_text("# B\n\nGamma rays.\n")
    last = await ask(desk, "r2r_ingest_document", bob, **arguments)
    assert ([entry["document_id"] for entry in last["documents"]], last["removed"]) == (["guide/deep/b.md"], 1)
    assert await search_ids(desk, bob, "gamma", collection_id="guide") == ["guide/deep/b.md"]


@pytest.mark.parametrize(("collection", "prefix"), [("atlas", "atlas"), (None, "default/atlas")])
async def test_what_of_a_folder_cannot_be_looked_at_stays(
    desk: Desk, project: Path, bob: Caller, collection: str | None, prefix: str
) -> None:
    folder = project / "atlas"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "part.md").mkdir(parents=True)
    (folder / "a.md").write_text("# A\n\nAlpha particles.\n")
    (folder / "b.md").write_text("# B\n\nBeta rays.\n")
    (folder / "part.md" / "c.md").write_text("# C\n\nGamma rays.\n")
    arguments = {"file_path": "atlas", "collection_id": collection, "run_async": False}
    assert (await ask(desk, "r2r_ingest_document", bob, **arguments))["total"] == 3
    shutil.rmtree(folder / "part.md")
    for name in ("a.md", "part.md"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(name)  # Leads to itself: nobody can look at it, whatever their rights.
    (folder / "b.md").unlink()
    again = await ask(desk, "r2r_ingest_document", bob, **arguments)
    assert again["removed"] == 1
    assert [failure.partition(":")[0] for failure in again["failures"]] == ["a.md", "part.md"]
    listed = await ask(desk, "r2r_list_documents", bob)
    assert {(entry["document_id"], entry["ingestion_status"]) for entry in listed["documents"]} == {
        (f"{prefix}/a.md", "success"),
        (f"{prefix}/part.md/c.md", "success"),
    }


async def test_nothing_outside_the_open_folders_is_brought_in(
    desk: Desk, project: Path, tmp_path: Path, bob: Caller
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (project / "open.md").write_text("# Open\n\nCome in.\n")
    (outside / "secret.md").write_text("# Secret\n\nKeep out.\n")
    (project / "link").symlink_to(outside)
    (project / "link.md").symlink_to(outside / "secret.md")
    (project / ".ssh").mkdir()
    (project / ".ssh" / "key.md").write_text("key")
    for path in (
        str(outside),
        str(outside / "secret.md"),
        "link",
        "link.md",
        "../outside",
        "../outside/secret.md",
        ".ssh",
        ".ssh/key.md",
        "nothing.md",
        outside.as_uri(),
        "/",
        "a\0b",
        "file://elsewhere/x",
    ):
        await failure(desk, "r2r_ingest_document", bob, file_path=path, collection_id="never")
    assert (await ask(desk, "r2r_list_collections", bob))["total"] == 1, "only the manual: none was made in vain"
    await ask(desk, "r2r_ingest_document", bob, file_path=".", collection_id="whole")
    listed = await ask(desk, "r2r_list_documents", bob, collection_id="whole", limit=100)
    ids = {entry["document_id"] for entry in listed["documents"]}
    assert "whole/open.md" in ids
    assert not any("link" in id or "ssh" in id or "secret" in id for id in ids)


async def test_a_scan_without_text_says_that_nothing_was_indexed_and_what_to_do(
    desk: Desk, bob: Caller, project: Path
) -> None:
    image = (
        "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 1 >>"
        " stream\n0\nendstream"
    )
    page = "/Resources << /XObject << /Im 10 0 R >> >>"
    (project / "scan.pdf").write_bytes(pdf(["q 400 0 0 600 0 0 cm /Im Do Q"], objects=[image], page=page))
    advice = "install text recognition (scripts/setup --extra ocr)"
    for _ in range(2):
        answer = await desk.call("r2r_ingest_document", {"file_path": "scan.pdf", "run_async": False}, caller=bob)
        taken = answer.structured
        assert taken["status"] == "success"
        assert taken["next"].endswith("Some are not searchable; see their warning.")
        assert advice in taken["warning"]
        assert advice in answer.text
    state = await ask(desk, "r2r_monitor_task", bob, document_id=taken["document_id"])
    assert (state["chunks"], state["warning"]) == (0, taken["warning"])
    [listed] = (await ask(desk, "r2r_list_documents", bob))["documents"]
    assert listed["warning"] == taken["warning"]
    batch = await ask(desk, "r2r_ingest_document", bob, file_path=["scan.pdf"], run_async=False)
    assert batch["documents"][0]["warning"] == taken["warning"]


async def test_a_converted_document_is_brought_in_by_its_handle(desk: Desk, bob: Caller) -> None:
    text = b"# Vault\n\nThe vault opens with a green key.\n"
    content = base64.b64encode(text).decode()
    converted = await ask(desk, "convert_docx", bob, content_base64=content, file_name="vault.md")
    taken = await ask(desk, "r2r_ingest_document", bob, file_path=converted["handle"], run_async=False)
    assert taken["document_id"] == "default/vault.md"
    (listed,) = (await ask(desk, "r2r_list_documents", bob))["documents"]
    assert listed["size_bytes"] == len(text)
    assert await search_ids(desk, bob, "green key", collection_id="default") == ["default/vault.md"]
    told = await failure(desk, "r2r_ingest_document", somebody("eve"), file_path=converted["handle"])
    assert "no converted document" in told


async def test_an_upload_is_brought_in_by_its_uri(desk: Desk, bob: Caller) -> None:
    async with desk.conversions.create_upload() as file:
        size = file.write(b"# Vault\n\nThe vault opens with a green key.\n")
        uri = await desk.conversions.keep_upload(bob.tenant, file, "vault.md")
    taken = await ask(desk, "r2r_ingest_document", bob, file_path=uri, run_async=False)
    assert (taken["document_id"], taken["status"]) == ("default/vault.md", "success")
    assert "no upload" in await failure(desk, "r2r_ingest_document", somebody("eve"), file_path=uri)
    (listed,) = (await ask(desk, "r2r_list_documents", bob))["documents"]
    assert listed["size_bytes"] == size


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"file_path": "a.md", "url": "https://example.com"},
        {"text": "x"},
        {"title": "x", "url": "https://example.com"},
        {"text": "x", "title": "x", "metadata": {"a": "x" * 20_000}},
        {"text": "x", "title": "x", "metadata": {"a": 1 << 70}},
        {"text": "x", "title": "x", "ingestion_mode": "slow"},
        {"file_path": []},
    ],
)
async def test_what_cannot_be_brought_in_is_refused_before_anything_is_made(
    desk: Desk, arguments: dict[str, Any], bob: Caller
) -> None:
    with pytest.raises(InvalidArguments):
        await desk.call("r2r_ingest_document", {**arguments, "collection_id": "new"}, caller=bob)
    listed = await ask(desk, "r2r_list_collections", bob)
    assert [entry["collection_id"] for entry in listed["collections"]] == ["refdesk"]


@pytest.mark.parametrize(
    "url",
    [
        "http://[",
        "http://",
        "https:///guide",
        "http://a]/x",
        "ftp://example.com/a.md",
        "guide.html",
        "http://a b/",
        "http://x:0/",
    ],
)
async def test_a_url_that_could_never_be_fetched_is_refused_at_once(desk: Desk, url: str, bob: Caller) -> None:
    told = await failure(desk, "r2r_ingest_document", bob, url=url, collection_id="new")
    assert "URL" in told
    assert (await ask(desk, "r2r_list_collections", bob))["total"] == 1, "only the manual: none was made in vain"


async def test_the_manual_takes_no_documents(desk: Desk, bob: Caller) -> None:
    told = await failure(desk, "r2r_ingest_document", bob, text="x", title="x", collection_id="refdesk")
    assert "is built in" in told


async def test_a_document_that_fails_says_why(desk: Desk, project: Path, bob: Caller) -> None:
    (project / "broken.pdf").write_bytes(b"%PDF-1.7 but nothing else")
    taken = await ask(desk, "r2r_ingest_document", bob, file_path="broken.pdf", run_async=False)
    assert taken["status"] == "failed"
    state = await ask(desk, "r2r_monitor_task", bob, document_id=taken["document_id"])
    assert (state["ingestion_status"], state["extraction_status"]) == ("failed", "failed")
    assert state["error"]
    failed = await ask(desk, "r2r_list_documents", bob, status_filter="failed")
    assert [entry["document_id"] for entry in failed["documents"]] == [taken["document_id"]]


async def test_an_unknown_document_is_told_with_the_nearest(desk_with_handbook: Desk, ann: Caller) -> None:
    told = await failure(desk_with_handbook, "r2r_monitor_task", ann, document_id="handbook/limit")
    assert told == "There is no document 'handbook/limit'. Did you mean 'handbook/limits'?"


async def test_the_version_that_is_given_is_shown_with_every_hit(desk: Desk, bob: Caller) -> None:
    await add(desk, bob, "Limits", HANDBOOK["Limits"], metadata={"version": "7.1"})
    answer = await desk.call("r2r_search", {"query": "max_ledgers", "collection_id": "handbook"}, caller=bob)
    assert answer.structured["results"][0]["metadata"]["version"] == "7.1"
    assert "version 7.1" in answer.text


async def test_the_history_counts_the_sources_of_an_answer_returned_or_not(desk: Desk, bob: Caller) -> None:
    await add(desk, bob, "Backups", HANDBOOK["Backups"])
    for include in (True, False):
        question = {"question": "When does the nightly backup run?", "collection_id": "handbook"}
        answer = await ask(desk, "r2r_rag_query", bob, **question, include_sources=include)
        assert bool(answer["sources"]) is include
    history = json.loads(await read(desk, "r2r://search/history", bob))
    assert [entry["results"] for entry in history] == [answer["count"]] * 2
    assert answer["count"] > 0


async def test_the_history_has_the_last_ten_searches_of_its_own_user_and_survives_a_restart(
    tmp_path: Path, bob: Caller
) -> None:
    async with open_indexed_desk(tmp_path) as desk:
        for n in range(12):
            await ask(desk, "r2r_search", bob, query=f"ledger {n}")
        await ask(desk, "r2r_search", replace(bob, user=UserId("eve")), query="mine alone")
    async with open_indexed_desk(tmp_path) as desk:
        history = json.loads(await read(desk, "r2r://search/history", bob))
        assert [entry["query"] for entry in history] == [f"ledger {n}" for n in range(11, 1, -1)]
        assert {entry["collection_id"] for entry in history} == {"all"}
        assert all(entry["at"].endswith("Z") for entry in history)
        assert json.loads(await read(desk, "r2r://search/history", somebody("eve"))) == []


async def test_collections_documents_and_sections_are_resources_that_complete(
    desk_with_handbook: Desk, ann: Caller
) -> None:
    about = json.loads(await read(desk_with_handbook, "r2r://collection/handbook", ann))
    assert about["counts"] == {"pending": 0, "success": 3, "failed": 0}
    assert "max_ledgers" in await read(desk_with_handbook, "r2r://document/handbook/limits", ann)

    async def complete(template: str, name: str, value: str, **given: str) -> list[str]:
        params = {
            "ref": {"type": "ref/resource", "uri": template},
            "argument": {"name": name, "value": value},
            "context": {"arguments": given},
        }
        answer = await desk_with_handbook.handle(Call("completion/complete", params, caller=ann))
        values: list[str] = answer.result["completion"]["values"]
        return values

    template = "r2r://document/{+document_id}{?section_id}"
    assert await complete("r2r://collection/{collection_id}", "collection_id", "hand") == ["handbook"]
    assert await complete(template, "document_id", "handbook/l") == ["handbook/limits"]
    (section,) = await complete(template, "section_id", "", document_id="handbook/limits")
    assert "max_ledgers" in await read(desk_with_handbook, f"r2r://document/handbook/limits?section_id={section}", ann)


async def test_a_long_section_as_a_resource_is_cut_and_names_the_call_that_goes_on(desk: Desk, bob: Caller) -> None:
    sentences = [f"Sentence {n} tells of größere vaults." for n in range(1500)]
    await add(desk, bob, "Long", "# Long\n\n" + "\n\n".join(sentences))
    cut = await read(desk, "r2r://document/handbook/long?section_id=long", bob)
    assert 15_000 < len(cut.encode()) <= 20_000
    shown, _, note = cut.rpartition("\n\n(")
    match = re.search(r"read_doc_section with doc_id '(.+)', section_id '(.+)' and cursor '(\d+)'", note)
    assert match is not None
    names = dict(zip(("doc_id", "section_id", "cursor"), match.groups(), strict=True))
    rest = await ask(desk, "read_doc_section", bob, **names)
    at = shown.count("Sentence ")
    assert shown.endswith(sentences[at - 1])
    assert rest["text"].lstrip().startswith(sentences[at])


async def test_clients_are_told_when_collections_come_and_documents_change(desk: Desk, bob: Caller) -> None:
    events: list[Event] = []
    desk.registry.listen(events.append)
    await add(desk, bob, "Limits", HANDBOOK["Limits"])
    updated = ResourceUpdated("r2r://current-project/context", bob.tenant)
    assert {ListChanged("resources", bob.tenant), ListChanged("tools", bob.tenant), updated} <= set(events)
    events.clear()
    await add(desk, bob, "Backups", HANDBOOK["Backups"])
    # Documents of other tests may still be embedded on this desk, for tenants of their own.
    assert {event for event in events if event.tenant == bob.tenant} == {updated}


async def test_prompts_name_the_documents_that_came_last(desk_with_handbook: Desk, ann: Caller, bob: Caller) -> None:
    for name in ("onboard_me", "what_changed"):
        params = {"name": name, "arguments": {"collection_id": "handbook"}}
        prompt = await desk_with_handbook.handle(Call("prompts/get", params, caller=ann))
        text = prompt.result["messages"][0]["content"]["text"]
        assert text.index("handbook/holidays") < text.index("handbook/backups")
        empty = await desk_with_handbook.handle(Call("prompts/get", {"name": name}, caller=bob))
        assert "no documents yet" in empty.result["messages"][0]["content"]["text"]


async def test_two_tenants_with_the_same_documents_never_see_each_other(
    desk_with_handbook: Desk, ann: Caller, bob: Caller
) -> None:
    await add(desk_with_handbook, bob, "Limits", HANDBOOK["Limits"].replace("40", "50"))
    await ask(desk_with_handbook, "r2r_search", ann, query="max_ledgers")
    for caller, own, others in ((ann, "40", "50"), (bob, "50", "40")):
        for tool, arguments in (
            ("r2r_search", {"query": "max_ledgers", "collection_id": "handbook"}),
            ("r2r_rag_query", {"question": "What is max_ledgers set to?", "collection_id": "handbook"}),
            ("search_documentation", {"query": "max_ledgers", "doc_type": "handbook"}),
            ("get_document", {"document_id": "handbook/limits"}),
        ):
            answer = await desk_with_handbook.call(tool, arguments, caller=caller)
            assert f"to {own}" in answer.text, tool
            assert f"to {others}" not in answer.text, tool
    assert (await ask(desk_with_handbook, "r2r_list_documents", bob))["total"] == 1
    counts = await ask(desk_with_handbook, "r2r_list_collections", bob)
    assert [entry["document_count"] for entry in counts["collections"] if entry["collection_id"] == "handbook"] == [1]
    assert json.loads(await read(desk_with_handbook, "r2r://collection/handbook", bob))["document_count"] == 1
    queries = [entry["query"] for entry in json.loads(await read(desk_with_handbook, "r2r://search/history", bob))]
    assert queries == ["What is max_ledgers set to?", "max_ledgers"]
    nowhere = await failure(desk_with_handbook, "r2r_monitor_task", bob, document_id="handbook/bakkups")
    there = await failure(desk_with_handbook, "r2r_monitor_task", bob, document_id="handbook/backups")
    assert there == nowhere.replace("bakkups", "backups")


async def test_a_change_invalidates_the_answers_about_its_collection_alone(desk: Desk, bob: Caller) -> None:
    async def ingest(title: str, collection: str) -> None:
        given = {"text": f"{title} live in the wood.", "title": title, "collection_id": collection}
        taken = await ask(desk, "r2r_ingest_document", bob, **given, run_async=False)
        assert taken["status"] == "success"

    async def search(collection: str) -> tuple[bool, int]:
        found = await ask(desk, "r2r_search", bob, query="wood", collection_id=collection)
        return found["cached"], found["count"]

    def read_revisions() -> list[Hashable]:
        return [desk.engine.revision(bob.tenant, [collection]) for collection in ("animals", "plants")]

    await ingest("Foxes", "animals")
    await ingest("Ferns", "plants")
    # Until both are known to be in the indexes, the revision is that of the tenant.
    await eventually(lambda: read_revisions()[0] != read_revisions()[1])
    animals, plants = read_revisions()
    assert [await search("animals"), await search("plants")] == [(False, 1), (False, 1)]
    await ingest("Firs", "plants")
    await eventually(lambda: read_revisions()[0] == animals)
    assert read_revisions()[1] != plants
    assert [await search("animals"), await search("plants")] == [(True, 1), (False, 2)]
    assert await desk.engine.delete(bob.tenant, "animals/foxes")
    assert await search("animals") == (False, 0)
