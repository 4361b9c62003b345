"""Documents on their way into R2R: taken on at once, sent once, in their place, and not lost by any outage."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from refdesk.engines.base import Document, Engine, FileSource, Listing, NewDocument, Search, TextSource
from refdesk.engines.r2r.engine import R2REngine
from refdesk.errors import RefdeskError
from refdesk.tools.fragments import locate
from tests.contracts.engine import ACME, FOXES, bring, finished, found
from tests.engines.r2r.conftest import SHORT_PAUSES, OpenEngine
from tests.engines.r2r.scripted import ScriptedR2R
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

INGEST = "/v3/documents"


async def ingest_document(engine: Engine, text: str = FOXES, **given: Any) -> str:
    await engine.create_collection(ACME, "animals")
    [status] = await engine.ingest(ACME, [NewDocument(TextSource("Foxes", text, "foxes"), "animals", **given)])
    # Not indexed yet; on a busy machine, a worker may have failed already when the status is read.
    assert status.status in ("pending", "converting", "embedding", "failed")
    return status.id


async def test_a_document_is_sent_with_both_collection_fields_and_labels_of_our_own(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    metadata = {"author": "ann", "collection_ids": ["elsewhere"], "title": "no.exe", "version": "9"}
    await bring(engine, "Foxes", FOXES, version="7", metadata=metadata)
    form = next(seen.form for seen in r2r.seen if (seen.method, seen.target) == ("POST", INGEST))
    [collection] = r2r.collections
    sent = json.loads(form["metadata"])
    assert json.loads(form["collection_ids"]) == sent["collection_ids"] == [collection]
    assert set(sent) == {"title", "collection_ids", "refdesk"}
    assert sent["refdesk"]["metadata"] == metadata
    assert form["ingestion_mode"] == "fast"
    [hit, *_] = await found(engine, "berries")
    assert (hit.document.metadata, hit.document.version, hit.document.title) == (metadata, "7", "Foxes")


async def test_a_document_that_r2r_puts_elsewhere_is_put_into_its_collection_and_no_other(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    r2r.forgets_collections = True
    await bring(engine, "Foxes", FOXES)
    [collection], [document] = r2r.collections, r2r.documents.values()
    assert document["collection_ids"] == [collection]
    assert await found(engine, "berries")


async def test_what_was_queued_while_r2r_was_down_comes_in_once_it_is_back(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await engine.create_collection(ACME, "animals")
    with r2r.fault(INGEST, drops=True) as fault:
        id = await ingest_document(engine)
        await r2r.wait_for_requests(INGEST, 8)
        status = await engine.status(ACME, id)
        assert status is not None
        assert (status.status in ("pending", "converting", "embedding"), status.attempts) == (True, 0)
        fault.times = 0
        [done] = await finished(engine, [id])
    assert (done.status, done.error) == ("success", None)


async def test_a_password_that_is_wrong_for_a_while_fails_no_document(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await engine.create_collection(ACME, "animals")
    r2r.revoke()
    r2r.refresh.clear()
    with r2r.fault("/v3/users/login", status=401, body={"message": "Incorrect email or password"}):
        id = await ingest_text(engine)
        await r2r.wait_for_requests("/v3/users/login", 2)

        async def is_postponed() -> bool:
            status = await engine.status(ACME, id)
            return status is not None and status.status == "pending" and "r2r.password" in (status.error or "")

        await eventually(is_postponed)
    [done] = await finished(engine, [id])
    assert done.status == "success"


async def ingest_text(engine: R2REngine) -> str:
    [status] = await engine.ingest(ACME, [NewDocument(TextSource("Hounds", "# Hounds\n\nwoof"), "animals")])
    return status.id


async def test_what_was_under_way_when_the_process_ended_is_done_by_the_next_one_and_sent_but_once(
    r2r: ScriptedR2R, open_engine: OpenEngine
) -> None:
    gate = asyncio.Event()
    with r2r.fault(INGEST, gate=gate, times=1, after=True):
        async with open_engine() as engine:
            id = await ingest_document(engine)
            await r2r.wait_for_requests(INGEST, 1)
        gate.set()
        await eventually(lambda: r2r.documents)
    async with open_engine() as engine:
        [done] = await finished(engine, [id])
        assert done.status == "success"
        assert len(r2r.documents) == 1
        assert len({hit.document.id for hit in await found(engine, "fox")}) == 1


async def test_what_r2r_began_and_forgot_is_sent_anew(r2r: ScriptedR2R, open_engine: OpenEngine) -> None:
    async with open_engine(pauses=replace(SHORT_PAUSES, stalled=0.05)) as engine:
        with r2r.fault(INGEST, drops=True, after=True, stalls=True, times=1):
            id = await ingest_document(engine)
            [done] = await finished(engine, [id])
        assert done.status == "success"
        assert [each["ingestion_status"] for each in r2r.documents.values()] == ["success"]


async def test_a_failure_that_r2r_tells_of_fails_the_document_with_its_cause_and_no_other(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    failure = {"message": "Error getting embeddings: the model is away", "error_type": "R2RException"}
    with r2r.fault(INGEST, status=400, body=failure):
        id = await ingest_document(engine)
        [failed] = await finished(engine, [id])
    assert failed.status == "failed"
    assert "the model is away" in (failed.error or "")
    assert [dependency.state for dependency in engine.dependencies] == ["closed", "closed"]
    assert (await engine.documents(ACME, Listing(statuses=("failed",))))[1] == 1
    assert await ingest_document(engine) == id
    [done] = await finished(engine, [id])
    assert (done.status, done.error) == ("success", None)


async def test_a_text_that_r2r_will_not_take_fails_at_once(r2r: ScriptedR2R, engine: R2REngine) -> None:
    with r2r.fault(INGEST, status=413, body={"message": "File size exceeds maximum", "error_type": "R2RException"}):
        [failed] = await finished(engine, [await ingest_document(engine)])
    assert "exceeds maximum" in (failed.error or "")
    assert r2r.count(INGEST, "POST") == 1


async def test_until_a_new_state_has_come_in_the_old_one_answers(r2r: ScriptedR2R, engine: R2REngine) -> None:
    id = await ingest_document(engine)
    await finished(engine, [id])
    gate = asyncio.Event()
    with r2r.fault(INGEST, gate=gate):
        await ingest_document(engine, "# Foxes\n\nA fox is red.")
        await r2r.wait_for_requests(INGEST, r2r.count(INGEST) + 1)
        assert await found(engine, "berries")
        gate.set()
        await finished(engine, [id])
    assert not await found(engine, "berries")
    assert [hit.text for hit in await found(engine, "red")] == ["A fox is red."]
    assert len(r2r.documents) == 1


async def test_an_old_state_that_cannot_be_removed_is_not_found_and_removed_later(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    id = await ingest_document(engine)
    await finished(engine, [id])
    [old] = r2r.documents
    with r2r.fault(f"{INGEST}/{old}", status=503, body={}):
        await ingest_document(engine, "# Foxes\n\nA fox is red.")
        [done] = await finished(engine, [id])
        assert done.status == "success"
        assert old in r2r.documents
        assert not await found(engine, "berries")
    await eventually(lambda: old not in r2r.documents)


async def test_labels_that_change_are_sent_though_the_text_is_the_same(r2r: ScriptedR2R, engine: R2REngine) -> None:
    id = await ingest_document(engine, version="1")
    await finished(engine, [id])
    await ingest_document(engine, version="2", metadata={"author": "bob"})
    await finished(engine, [id])
    [hit, *_] = await found(engine, "berries")
    assert (hit.document.version, hit.document.metadata) == ("2", {"author": "bob"})
    assert len(r2r.documents) == 1


async def test_a_document_that_is_deleted_while_it_is_on_its_way_does_not_come_in(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    gate = asyncio.Event()
    with r2r.fault(INGEST, gate=gate, times=1):
        id = await ingest_document(engine)
        await r2r.wait_for_requests(INGEST, 1)
        assert await engine.delete(ACME, id)
        gate.set()
        await eventually(lambda: r2r.count(INGEST, "DELETE"))
    assert r2r.documents == {}
    assert await engine.status(ACME, id) is None


async def test_a_file_that_has_not_changed_is_not_sent_again(
    r2r: ScriptedR2R, engine: R2REngine, tmp_path: Path
) -> None:
    await engine.create_collection(ACME, "animals")
    for _ in range(2):
        await anyio.Path(tmp_path / "a.md").write_text("# A\n\nbear")
        [asked] = await engine.ingest(ACME, [NewDocument(FileSource(tmp_path / "a.md", "a.md"), "animals")])
        [done] = await finished(engine, [asked.id])
        assert done.status == "success"
    assert r2r.count(INGEST, "POST") == 1


# What others do at R2R


async def read(engine: R2REngine, id: str) -> Document:
    document = await engine.read(ACME, id)
    assert document is not None
    return document


async def test_what_others_brought_in_is_listed_found_filtered_and_read(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await engine.create_collection(ACME, "animals")
    [collection] = r2r.collections
    uuid = str(uuid4())
    texts = ["# Owls and others, a book in one part", "and others, a book in one part\nAn owl hoots."]
    r2r.put(uuid, texts, [collection], {"title": "owls.md", "year": "n/a"}, document_type="docx")
    await engine.sync()
    assert [status.id for status in (await engine.documents(ACME, Listing()))[0]] == [f"animals/{uuid}"]
    [hit] = await found(engine, "hoots", filters={"year": "n/a", "collection_id": collection})
    assert (hit.document.id, hit.document.title) == (f"animals/{uuid}", "owls.md")
    assert await found(engine, "hoots", filters={"year": {"$gt": 2000}}) == []
    assert await found(engine, "hoots", filters={"document_type": "docx"})
    for id in (uuid, f"animals/{uuid}", f"{collection}/{uuid}"):
        assert (await read(engine, id)).text.count("a book in one part") == 1
    window = await engine.window(ACME, f"animals/{uuid}", hit.chunk_id, before=5, after=5)
    assert [passage.text for passage in window or ()] == texts
    assert await engine.delete(ACME, uuid)
    assert uuid not in r2r.documents


async def test_what_others_take_away_from_a_collection_that_is_only_searched_is_seen(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    await engine.create_collection(ACME, "animals")
    uuid = str(uuid4())
    r2r.put(uuid, ["An owl hoots."], list(r2r.collections), {})
    assert await found(engine, "hoots")
    await engine.sync()
    before = engine.revision(ACME)
    await engine.sync()
    assert engine.revision(ACME) == before
    del r2r.documents[uuid]
    await engine.sync()
    assert engine.revision(ACME) != before


async def test_collections_are_listed_as_they_were_last_seen_while_r2r_is_down(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    await engine.create_collection(ACME, "animals")
    assert [info.id for info in await engine.collections(ACME)] == ["animals"]
    with r2r.fault("/v3/collections", status=503, body={"detail": "no"}):
        assert [info.id for info in await engine.collections(ACME)] == ["animals"]


async def test_a_strangers_document_that_is_elsewhere_too_only_leaves_the_collection(
    r2r: ScriptedR2R, engine: R2REngine
) -> None:
    for name in ("animals", "birds"):
        await engine.create_collection(ACME, name)
    uuid = str(uuid4())
    r2r.put(uuid, ["An owl hoots."], list(r2r.collections), {})
    assert await engine.delete_collection(ACME, "birds")
    assert [entry.id for entry in await engine.collections(ACME)] == ["animals"]
    assert uuid in r2r.documents
    assert [hit.document.id for hit in await found(engine, "owl")] == [f"animals/{uuid}"]


async def test_two_desks_on_one_r2r_see_and_replace_each_others_documents(
    r2r: ScriptedR2R, open_engine: OpenEngine
) -> None:
    async with open_engine("one") as one, open_engine("two") as two:
        id = await ingest_document(one)
        await finished(one, [id])
        await two.sync()
        assert (await two.documents(ACME, Listing()))[1] == 1
        assert "berries" in (await read(two, id)).text
        await ingest_document(two, "# Foxes\n\nA fox is red.")
        await finished(two, [id])
        await one.sync()
        assert "red" in (await read(one, id)).text
        assert (await one.documents(ACME, Listing()))[1] == len(r2r.documents) == 1
        assert await one.delete(ACME, id)
        await two.sync()
        assert (await two.documents(ACME, Listing()))[1] == 0


async def test_processes_that_share_a_folder_share_the_queue_and_see_each_others_changes(
    r2r: ScriptedR2R, open_engine: OpenEngine
) -> None:
    async with open_engine() as first, open_engine() as second:
        for engine in (second, first):
            assert await engine.search(ACME, Search("fox")) == []
        id = await ingest_document(second)
        before = first.revision(ACME)
        [done] = await finished(second, [id])
        assert done.status == "success"
        assert await found(first, "berries", collections=("animals",))
        assert [entry.id for entry in first.cached_collections(ACME)] == ["animals"]
        assert await first.delete(ACME, id)
        assert first.revision(ACME) != before
        assert second.revision(ACME) == first.revision(ACME)
        assert await second.status(ACME, id) is None
    assert r2r.count(INGEST, "POST") == 1


async def test_what_others_note_in_our_name_breaks_nothing(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Foxes", FOXES)
    [collection] = r2r.collections
    odd = {"name": "odd", "title": {}, "size": "big", "chunks": -1, "indexed_at": "never", "metadata": [], "version": 7}
    for own in (odd, {"name": ""}, {"name": 3}, "text", None, {"name": "../../x", "indexed_at": "2026-01-01"}):
        r2r.put(str(uuid4()), ["§: no place\nAn owl."], [collection], {"refdesk": own})
    await engine.sync()
    assert (await engine.documents(ACME, Listing()))[1] == 7
    hits = await found(engine, "owl", limit=20)
    assert len(hits) == 6
    assert all(hit.document.id.startswith("animals/") and ".." not in hit.document.id for hit in hits)
    assert "owl" in (await read(engine, "animals/odd")).text


async def test_while_r2r_is_down_the_catalogue_still_answers(r2r: ScriptedR2R, open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await bring(engine, "Foxes", FOXES)
    with r2r.fault(drops=True):
        async with open_engine() as engine:
            assert [entry.id for entry in engine.cached_collections(ACME)] == ["animals"]
            await ingest_text(engine)
            with pytest.raises(RefdeskError):
                await engine.search(ACME, Search("fox"))
            with pytest.raises(RefdeskError):
                await engine.check()


async def test_a_long_document_keeps_its_sections_and_its_chunks_their_numbers(engine: R2REngine) -> None:
    parts = [f"## Part {n}\n\n{'word ' * 150}{n}.\n\n| a | b |\n| --- | --- |\n| {n} | x |\n" for n in range(12)]
    text = "# Book\n\nIntroduction.\n\n" + "\n".join(parts) + "\n## Part 3\n\n```python\n# no heading\n\nx = [1]\n```\n"
    await bring(engine, "Book", text)
    shelf = await engine.open(ACME, "animals/book")
    assert shelf is not None
    with shelf:
        titles = [section.title for section in shelf.sections()]
        assert titles == ["Book", *(f"Part {n}" for n in range(12)), "Part 3"]
        ids = {section.id for section in shelf.sections()}
        local = shelf.search("no heading", 5)
        markdown = (await read(engine, "animals/book")).text
        for chunk in shelf.window("c1", 0, shelf.about.chunks) or ():
            place = locate(shelf, "animals/book", chunk.id, markdown)
            start = markdown[place.start : place.start + len(chunk.text) + 100]
            assert chunk.text.split()[:5] == start.split()[start.split().index(chunk.text.split()[0]) :][:5]
    assert "```python\n# no heading\n\nx = [1]\n```" in (await read(engine, "animals/book")).text
    hits = await found(engine, "no heading", limit=100)
    assert {hit.section for hit in hits} <= ids
    best = next(hit for hit in hits if "no heading" in hit.text)
    assert best.section == "part-3-2"
    assert f"animals/book#{local[0][0].id}" == best.chunk_id
    assert await engine.filter_ids(ACME, ["animals/book", "animals/nothing"]) == {"animals/book"}
    assert await engine.list_document_ids(ACME, parts=["ook", "x_"]) == ["animals/book"]
    assert await engine.list_document_ids(ACME, parts=["_ook", "%"]) == []
