"""`refdesk add`, and what can be done with what was added; in this process, on a real desk."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio import to_thread

from refdesk.cli import main
from refdesk.cli.add import parse_metadata
from tests import forked
from tests.processes import BY_WORDS, environment, started_server
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A command with `--json`, on a desk of its own that finds by words alone; answers what it printed."""
    monkeypatch.chdir(tmp_path)
    for name, value in BY_WORDS.items():
        monkeypatch.setenv(name, value)

    def command(*arguments: str, code: int = 0) -> Any:
        ended = main([*arguments, "--data", str(tmp_path / "data"), "--json"])
        told = capsys.readouterr()
        assert ended == code, told.err
        assert "Traceback" not in told.err
        printed = json.loads(told.out)
        return printed["error"]["detail"] if "error" in printed else printed

    return command


def folder(tmp_path: Path, **files: str) -> Path:
    place = tmp_path / "handbook"
    place.mkdir(exist_ok=True)
    for name, text in files.items():
        (place / f"{name}.md").write_text(text, "utf-8")
    return place


def test_a_folder_is_brought_in_found_and_kept_in_step(run: Callable[..., Any], tmp_path: Path) -> None:
    place = folder(tmp_path, tea="# Tea\n\nSteep oolong for three minutes.", salt="# Salt\n\nA pinch of salt.")
    first = run("add", "handbook", "--version", "7", "--metadata", "team=kitchen", "--metadata", "level=2")
    assert sorted(first["new"]) == ["handbook/salt.md", "handbook/tea.md"]
    assert (first["changed"], first["unchanged"], first["removed"], first["failed"]) == ([], 0, [], [])

    found = run("search", "oolong", "--collection", "handbook", "--filter", '{"metadata.level": {"$gte": 2}}')
    best = found["structuredContent"]["results"][0]
    assert best["document_id"] == "handbook/tea.md"
    assert best["metadata"]["version"] == "7"

    (place / "salt.md").unlink()
    folder(tmp_path, tea="# Tea\n\nSteep sencha for one minute only.", rice="# Rice\n\nRinse the rice.")
    second = run("add", "handbook", "--version", "7", "--metadata", "team=kitchen", "--metadata", "level=2")
    assert second["new"] == ["handbook/rice.md"]
    assert second["changed"] == ["handbook/tea.md"]
    assert second["removed"] == ["handbook/salt.md"]

    assert run("reindex") == {"documents": 2}
    found = run("search", "sencha", "--collection", "handbook")["structuredContent"]["results"]
    assert [one["document_id"] for one in found] == ["handbook/tea.md"]

    listed = {one["document_id"]: one for one in run("documents", "--collection", "handbook")}
    assert set(listed) == {"handbook/rice.md", "handbook/tea.md"}
    assert listed["handbook/tea.md"]["ingestion_status"] == "success"


def test_a_file_that_fails_is_told_with_its_cause_and_the_rest_is_in(run: Callable[..., Any], tmp_path: Path) -> None:
    place = folder(tmp_path, tea="# Tea\n\nSteep oolong.")
    (place / "broken.docx").write_bytes(b"PK\x03\x04 no zip")
    done = run("add", "handbook", "nowhere.md", "http://[", code=1)
    assert done["new"] == ["handbook/tea.md"]
    causes = {failure["name"]: failure["cause"] for failure in done["failed"]}
    assert set(causes) == {"handbook/broken.docx", "nowhere.md", "http://["}
    assert "not a valid URL" in causes["http://["]
    assert "No such file" in causes["nowhere.md"]
    (failed,) = run("documents", "--status", "failed")
    assert failed["error"] == causes["handbook/broken.docx"]


def test_newest_version_is_listed_by_its_family_but_not_removed_by_it(run: Callable[..., Any], tmp_path: Path) -> None:
    folder(tmp_path, tea="# Tea\n\nSteep oolong.")
    for version in ("3.9", "3.12"):
        run("add", "handbook", "--collection", f"handbook-{version}", "--version", version)

    def documents(collection: str) -> list[str]:
        return [one["document_id"] for one in run("documents", "--collection", collection)]

    assert documents("handbook") == documents("handbook@3.12") == ["handbook-3-12/tea.md"]
    assert "no such collection" in run("collections", "remove", "handbook", code=1)
    assert run("collections", "remove", "handbook@3.9")["removed"] == ["handbook-3-9"]


def test_lines_of_json_are_documents(run: Callable[..., Any], tmp_path: Path) -> None:
    rows = [
        {"_id": "d1", "title": "Tea", "text": "Steep oolong.", "year": 1999},
        {"id": "d2", "text": "Rinse the rice."},
    ]
    lines = [*map(json.dumps, rows), "no json", '{"title": "no text"}', ""]
    (tmp_path / "corpus.jsonl").write_text("\n".join(lines), "utf-8")
    done = run("add", "corpus.jsonl", "--collection", "facts", code=1)
    assert done["new"] == ["facts/d1", "facts/d2"]
    assert [failure["name"] for failure in done["failed"]] == ["corpus.jsonl, line 3", "corpus.jsonl, line 4"]
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "oolong"}\n{"_id": "2", "text": "rice"}', "utf-8")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\td1\t1\n2\td2\t1\n", "utf-8")
    for tool in ("r2r_search", "search_documentation"):
        report = run("eval", "queries.jsonl", "--qrels", "qrels.tsv", "--collection", "facts", "--tool", tool)
        assert (report["queries"], report["ndcg@10"], report["hit@1"]) == (2, 1.0, 1.0)
        assert report["mean_answer_bytes"] > 50


def test_text_on_standard_input_is_a_document(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Steep oolong for three minutes.")))
    (id,) = run("add", "-", "--title", "Brewing tea")["new"]
    assert id == "default/brewing-tea"
    answered = run("ask", "How long to steep oolong?", "--collection", "default")["structuredContent"]
    assert "three minutes" in answered["answer"]
    assert [source["document_id"] for source in answered["sources"]] == [id]

    assert run("documents", "remove", id, "default/none", code=1) == {"removed": [id], "missing": ["default/none"]}
    assert run("documents") == []


def test_collections_are_made_listed_and_removed(run: Callable[..., Any]) -> None:
    (made,) = run("collections", "create", "My Team", "--description", "what we know")
    assert (made["collection_id"], made["name"], made["document_count"]) == ("my-team", "My Team", 0)
    assert "my-team" in [one["collection_id"] for one in run("collections")]
    assert run("collections", "remove", "My Team") == {"removed": ["my-team"], "missing": []}
    assert "my-team" not in [one["collection_id"] for one in run("collections", "list")]
    assert "no such collection" in run("collections", "remove", "my-team", code=1)


def test_two_files_of_one_name_do_not_take_each_others_place(run: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.md").write_text(f"# {name}", "utf-8")
    done = run("add", "one", "two", "--collection", "both", code=1)
    assert done["new"] == ["both/same.md"]
    assert [os.path.basename(os.path.dirname(failure["name"])) for failure in done["failed"]] == ["two"]


def test_what_cannot_be_looked_at_is_not_removed(run: Callable[..., Any], tmp_path: Path) -> None:
    place = folder(tmp_path, tea="# Tea\n\nSteep oolong.", salt="# Salt\n\nA pinch.")
    run("add", "handbook")
    (place / "tea.md").unlink()
    (place / "tea.md").symlink_to("tea.md")
    (place / "salt.md").unlink()
    done = run("add", "handbook", code=1)
    assert done["removed"] == ["handbook/salt.md"]
    assert [failure["name"] for failure in done["failed"]] == [str(place / "tea.md")]
    found = run("search", "oolong", "--collection", "handbook")["structuredContent"]["results"]
    assert [one["document_id"] for one in found] == ["handbook/tea.md"]


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_server_brings_in_what_the_command_queues(run: Callable[..., Any], tmp_path: Path) -> None:
    folder(tmp_path, tea="# Tea\n\nSteep oolong.")
    async with started_server(tmp_path) as server:
        done = await to_thread.run_sync(run, "add", "handbook")
        assert done["new"] == ["handbook/tea.md"]
        async with httpx2.AsyncClient(timeout=PATIENCE_SECONDS) as http:
            asked = {"query": "oolong", "collection_id": "handbook"}
            found = (await http.post(f"{server.url}/api/tools/r2r_search", json=asked)).json()
    assert "Steep oolong" in json.dumps(found)


@pytest.mark.anyio
@pytest.mark.slow
async def test_a_watched_folder_is_kept_in_step_until_the_command_is_interrupted(tmp_path: Path) -> None:
    place = folder(tmp_path, tea="# Tea\n\nSteep oolong.")
    process = await asyncio.create_subprocess_exec(
        *forked.refdesk(), "add", "handbook", "--watch", "--json",
        cwd=tmp_path, env=environment(tmp_path, REFDESK_DATA=str(tmp_path / "data"), **BY_WORDS),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert json.loads(await process.stdout.readline())["new"] == ["handbook/tea.md"]
            (place / "rice.md").write_text("# Rice\n\nRinse it.", "utf-8")
            assert json.loads(await process.stdout.readline())["new"] == ["handbook/rice.md"]
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def test_metadata_are_what_they_look_like() -> None:
    given = ["team=billing", "level=2", "draft=true", 'tags=["a"]', "note=a=b", "empty=", "odd=NaN", "none=null"]
    assert parse_metadata(given) == {
        "team": "billing",
        "level": 2,
        "draft": True,
        "tags": ["a"],
        "note": "a=b",
        "empty": "",
        "odd": "NaN",
        "none": "null",
    }


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("add", "a.md", "--metadata", "x"), 2, "write 'x' as name=value"),
        (("add", "a.md", "--watch"), 2, "name a folder"),
        (("search", "x", "--filter", "{"), 2, "--filter: must be JSON"),
        (("search", "x", "--filter", "[]"), 2, "must be an object"),
        (("search", "x", "--doc-type", "a", "--collection", "b"), 2, "cannot be used with --collection"),
        (("documents", "remove"), 2, "Missing argument 'ID'."),
        (("documents", "list", "x"), 2, "only `refdesk documents remove` takes IDs"),
        (("collections", "list", "x"), 2, "take names"),
        (("documents", "--collection", "nothing"), 1, "no such collection"),
        (("eval", "nowhere.jsonl"), 1, "cannot be read"),
        (("add", "recipe:postgres"), 1, "did you mean postgresql?"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    run: Callable[..., Any], arguments: tuple[str, ...], code: int, said: str
) -> None:
    told = run(*arguments, code=code)
    assert said in (told if isinstance(told, str) else json.dumps(told))
