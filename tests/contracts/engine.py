"""The engine port's promises: a test module makes a subclass with a fixture `engine`, and each is tried on it.

What an engine cannot do it declares in `lacks`; that is tried as well, has to fail, and is reported with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import anyio
import pytest

from refdesk.calls import TenantId
from refdesk.engines.base import (
    IN_PROGRESS,
    SHARED,
    DocumentStatus,
    Engine,
    FileSource,
    FolderSync,
    Hit,
    Listing,
    NewDocument,
    NotToBeRetried,
    Search,
    TextSource,
)
from refdesk.errors import InvalidArguments, NameTaken, RefdeskError
from tests.waiting import PATIENCE_SECONDS

ACME, OTHER = TenantId("acme"), TenantId("other")

FOXES = """# Foxes

The quick fox digs its den at the edge of the wood, where the ground is dry and the roots of old trees hold the roof up.
It lives there with its cubs until they are old enough to look for a den of their own, late in the autumn.

## Food

A fox eats berries, mice and eggs.
"""
HOUNDS = "# Hounds\n\nThe lazy hound sleeps before the fire and dreams of the hunt.\n"


async def bring(
    engine: Engine, title: str, text: str, *, tenant: TenantId = ACME, collection: str = "animals", **given: Any
) -> DocumentStatus:
    """Bring a text in and wait until all of search finds it."""
    await engine.create_collection(tenant, collection)
    [asked] = await engine.ingest(tenant, [NewDocument(TextSource(title, text), collection, **given)])
    [done] = await finished(engine, [asked.id], tenant=tenant)
    assert done.status == "success", done
    return done


async def finished(engine: Engine, ids: Sequence[str], *, tenant: TenantId = ACME) -> Sequence[DocumentStatus]:
    """The documents once nothing more is done about them."""
    with anyio.fail_after(PATIENCE_SECONDS):
        while True:
            found = await engine.wait(tenant, ids, seconds=5)
            if all(status.status in ("success", "failed") for status in found):
                return found


async def found(engine: Engine, query: str, *, tenant: TenantId = ACME, **given: Any) -> list[Hit]:
    """What a search finds among the tenant's own documents."""
    hits = await engine.search(tenant, Search(query, **given))
    return [hit for hit in hits if hit.document.collection != "refdesk"]


class EngineContract:
    """What every engine does."""

    lacks: ClassVar[Mapping[str, str]] = {}
    """The promises that an engine does not keep, by the names of their tests, each with the reason why."""

    def __init_subclass__(cls) -> None:
        unknown = [name for name in cls.lacks if not hasattr(cls, name)]
        assert not unknown, f"{cls.__name__} lacks what nobody promises: {unknown}"

    @pytest.fixture(autouse=True)
    def _declared(self, request: pytest.FixtureRequest) -> None:
        """Expect to fail what is declared to be lacking: a declaration that no longer holds is a failure itself."""
        reason = self.lacks.get(request.function.__name__)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    async def test_a_text_is_taken_on_found_and_read(self, engine: Engine) -> None:
        status = await bring(engine, "Foxes", FOXES, version="7", metadata={"author": "ann"})
        assert (status.id, status.collection, status.progress) == ("animals/foxes", "animals", 1.0)
        best = (await found(engine, "what does a fox eat"))[0]
        assert best.document.id == "animals/foxes"
        assert best.path == ("Foxes", "Food")
        assert "berries" in best.text
        assert 0 <= best.score <= 1
        assert best.document.version == "7"
        assert best.document.metadata == {"author": "ann"}
        assert best.document.indexed_at <= datetime.now(UTC)
        document = await engine.read(ACME, "animals/foxes")
        assert document is not None
        assert "The quick fox digs its den" in document.text

    async def test_a_search_gives_one_passage_a_section_and_no_more_than_asked_for(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        await bring(engine, "Hounds", HOUNDS)
        hits = await found(engine, "fox hound", limit=20)
        places = [(hit.document.id, hit.section) for hit in hits]
        assert len(places) == len(set(places)) >= 2
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(await engine.search(ACME, Search("fox hound", limit=1))) == 1

    @pytest.mark.parametrize("mode", ["hybrid", "semantic", "fulltext"])
    async def test_every_mode_finds_the_right_document_first(self, engine: Engine, mode: Any) -> None:
        await bring(engine, "Foxes", FOXES)
        await bring(engine, "Hounds", HOUNDS)
        assert (await found(engine, "a sleeping hound by the fire", mode=mode))[0].document.id == "animals/hounds"

    async def test_odd_queries_find_nothing_and_break_nothing(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        for query in ("\0", '"', "()", "AND OR NOT", "*", "fox:*", "a" * 5000, "😀", "key:1", "\ud800"):
            await engine.search(ACME, Search(query))

    async def test_the_chunks_around_a_hit_come_in_reading_order(self, engine: Engine) -> None:
        await bring(engine, "Long", "# Long\n\n" + "\n\n".join(f"## Part {n}\n\n{'word ' * 60}{n}" for n in range(9)))
        hit = next(hit for hit in await found(engine, "Part 4", limit=20) if hit.path[-1] == "Part 4")
        passages = await engine.window(ACME, "animals/long", hit.chunk_id, before=1, after=1)
        assert passages is not None
        assert [passage.path[-1] for passage in passages] == ["Part 3", "Part 4", "Part 5"]
        assert passages[1].chunk_id == hit.chunk_id
        assert await engine.window(ACME, "animals/long", "animals/long#c999", before=1, after=1) is None
        assert await engine.window(ACME, "animals/long", "nonsense", before=1, after=1) is None

    async def test_a_hit_comes_with_the_chunks_around_it(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        best = (await found(engine, "berries mice eggs", context=2))[0]
        window = await engine.window(ACME, best.document.id, best.chunk_id, before=2, after=2)
        assert list(best.context) == list(window or ())
        assert best.chunk_id in [passage.chunk_id for passage in best.context]

    async def test_only_names_that_occur_nowhere_are_absent(self, engine: Engine) -> None:
        await bring(engine, "Limits", "# Limits\n\nSet `max_foxes` to 100.\n")
        query = "How do max_foxes and max_hounds differ?"
        assert set(await engine.find_absent(ACME, query, ("animals",))) <= {"max_hounds"}
        assert not await engine.find_absent(ACME, "How many foxes are there?", ())

    async def test_a_document_opens_for_reading_in_parts(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        shelf = await engine.open(ACME, "animals/foxes")
        assert shelf is not None
        with shelf:
            assert [section.title for section in shelf.sections()] == ["Foxes", "Food"]
        assert await engine.open(ACME, "animals/wolves") is None

    async def test_the_same_text_again_is_the_same_document(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        assert (await bring(engine, "Foxes", FOXES)).id == "animals/foxes"
        assert (await engine.documents(ACME, Listing()))[1] == 1
        assert len(await found(engine, "berries mice eggs", mode="fulltext")) == 1

    async def test_another_text_of_the_same_title_does_not_push_the_first_out(self, engine: Engine) -> None:
        await bring(engine, "Notes", "Buy milk.")
        assert (await bring(engine, "Notes", "Buy bread.")).id == "animals/notes-2"
        assert [hit.document.id for hit in await found(engine, "milk", mode="fulltext")] == ["animals/notes"]

    async def test_a_changed_file_takes_the_place_of_the_old_one(self, engine: Engine, tmp_path: Path) -> None:
        file = tmp_path / "pets.md"
        await engine.create_collection(ACME, "animals")
        for text, gone in (("# Pets\n\nA parrot talks.", "goldfish"), ("# Pets\n\nA goldfish swims.", "parrot")):
            file.write_text(text)
            [asked] = await engine.ingest(ACME, [NewDocument(FileSource(file, "pets.md"), "animals")])
            await finished(engine, [asked.id])
            assert not await found(engine, gone, mode="fulltext")
        assert [hit.document.id for hit in await found(engine, "goldfish", mode="fulltext")] == ["animals/pets.md"]

    async def test_a_folder_is_brought_up_to_date(self, engine: Engine, tmp_path: Path) -> None:
        await engine.create_collection(ACME, "animals")

        async def sync() -> tuple[list[str], list[str], int, list[str]]:
            files = [tmp_path / name for name in ("a.md", "b.md", "c.md") if (tmp_path / name).exists()]
            given = [NewDocument(FileSource(file, file.name), "animals") for file in files]
            synced = await engine.sync_folder(ACME, "animals", tmp_path, given)
            await finished(engine, [*synced.new, *synced.changed])
            return list(synced.new), list(synced.changed), synced.unchanged, list(synced.removed)

        (tmp_path / "a.md").write_text("# A\n\nantelope")
        (tmp_path / "b.md").write_text("# B\n\nbadger")
        assert await sync() == (["animals/a.md", "animals/b.md"], [], 0, [])
        (tmp_path / "a.md").write_text("# A\n\nalbatross")
        (tmp_path / "b.md").unlink()
        (tmp_path / "c.md").write_text("# C\n\ncamel")
        assert await sync() == (["animals/c.md"], ["animals/a.md"], 0, ["animals/b.md"])
        assert await sync() == ([], [], 2, [])
        assert [hit.document.id for hit in await found(engine, "albatross camel badger", mode="fulltext")] != []
        assert "animals/b.md" not in await engine.list_document_ids(ACME)

    async def test_what_could_not_be_looked_at_in_a_folder_stays(self, engine: Engine, tmp_path: Path) -> None:
        await engine.create_collection(ACME, "animals")
        names = ["a.md", "shut/b.md", "c#.md"]
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(f"# {name}\n\nanimal")
        given = [NewDocument(FileSource(tmp_path / name, name), "animals") for name in names]
        await finished(engine, (await engine.sync_folder(ACME, "animals", tmp_path, given)).new)
        synced = await engine.sync_folder(ACME, "animals", tmp_path, [], unseen=["shut", "c#.md"])
        assert synced.removed == ("animals/a.md",)
        assert (await engine.sync_folder(ACME, "animals", tmp_path, [], unseen=["."])).removed == ()
        assert len(await engine.list_document_ids(ACME, prefix="animals/")) == 2

    async def test_a_file_that_cannot_be_read_fails_with_its_cause_and_the_others_come_in(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        (tmp_path / "good.md").write_text("# Good\n\nzebra")
        (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.7 and then nothing of the kind")
        await engine.create_collection(ACME, "animals")
        names = ["bad.pdf", "gone.md", "good.md"]
        asked = await engine.ingest(ACME, [NewDocument(FileSource(tmp_path / name, name), "animals") for name in names])
        bad, gone, good = await finished(engine, [status.id for status in asked])
        assert (bad.status, gone.status, good.status) == ("failed", "failed", "success")
        assert bad.error
        assert gone.error
        assert "gone.md" in gone.error
        assert [hit.document.id for hit in await found(engine, "zebra", mode="fulltext")] == ["animals/good.md"]

    async def test_what_has_failed_is_tried_again_when_somebody_says_so_and_nothing_else_is(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        await engine.create_collection(ACME, "animals")
        source = FileSource(tmp_path / "a.md", "a.md")
        [asked] = await engine.ingest(ACME, [NewDocument(source, "animals")])
        [failed] = await finished(engine, [asked.id])
        assert (failed.status, await engine.info(ACME, failed.id)) == ("failed", None)
        assert await engine.retry(OTHER, failed.id) is None
        assert await engine.retry(ACME, "animals/nothing") is None
        source.path.write_text(FOXES)
        again = await engine.retry(ACME, failed.id)
        assert again is not None
        assert (again.status in IN_PROGRESS, again.attempts, again.error) == (True, 0, None)
        [done] = await finished(engine, [failed.id])
        assert done.status == "success"
        with pytest.raises(NotToBeRetried, match="is indexed; only failed documents"):
            await engine.retry(ACME, failed.id)

    async def test_what_is_known_of_a_document_is_told_without_its_text(self, engine: Engine) -> None:
        done = await bring(engine, "Foxes", FOXES, version="7", metadata={"of": "woods"})
        info = await engine.info(ACME, done.id)
        read = await engine.read(ACME, done.id)
        assert info is not None
        assert read is not None
        assert info == read.info
        assert (info.version, info.metadata["of"]) == ("7", "woods")
        hounds = await engine.info(ACME, (await bring(engine, "Hounds", HOUNDS)).id)
        assert hounds is not None
        assert (hounds.version, len(hounds.digest)) == ("", 12)
        assert await engine.info(OTHER, done.id) is None
        assert await engine.info(ACME, "animals/nothing") is None
        assert await engine.filter_ids(ACME, [done.id, "animals/nothing"]) == {done.id}
        assert await engine.list_document_ids(ACME, parts=["/FOX", "_"]) == [done.id]
        assert await engine.filter_ids(OTHER, [done.id]) == frozenset()

    async def test_tenants_are_told_with_how_much_they_have(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        await bring(engine, "Hounds", HOUNDS, tenant=OTHER)
        await bring(engine, "Foxes", FOXES, tenant=OTHER, collection="more")
        found = {info.id: info for info in await engine.tenants()}
        assert [(found[id].documents, found[id].collections) for id in (ACME, OTHER)] == [(1, 1), (2, 2)]
        assert found[OTHER].bytes > found[ACME].bytes > 0
        assert SHARED not in found

    async def test_a_folder_that_was_renamed_is_the_same_folder(self, engine: Engine, tmp_path: Path) -> None:
        await engine.create_collection(ACME, "animals")

        async def sync(folder: Path, names: Sequence[str]) -> FolderSync:
            given = [NewDocument(FileSource(folder / name, name), "animals") for name in names]
            return await engine.sync_folder(ACME, "animals", folder, given)

        (tmp_path / "old").mkdir()
        for name in ("a.md", "b.md"):
            (tmp_path / "old" / name).write_text(f"# {name}\n\nanimal")
        await finished(engine, (await sync(tmp_path / "old", ["a.md", "b.md"])).new)
        (tmp_path / "old").rename(tmp_path / "new")
        assert (await sync(tmp_path / "new", ["a.md", "b.md"])).unchanged == 2
        assert (await sync(tmp_path / "new", ["a.md"])).removed == ("animals/b.md",)

    async def test_a_file_does_not_take_the_place_of_another_that_is_still_there(
        self, engine: Engine, tmp_path: Path
    ) -> None:
        await engine.create_collection(ACME, "animals")
        for folder in ("one", "two"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "a.md").write_text(f"# A\n\nanimal of {folder}")
        given = [NewDocument(FileSource(tmp_path / "one" / "a.md", "a.md"), "animals")]
        await finished(engine, [status.id for status in await engine.ingest(ACME, given)])
        other = [NewDocument(FileSource(tmp_path / "two" / "a.md", "a.md"), "animals")]
        with pytest.raises(NameTaken, match="another collection"):
            await engine.ingest(ACME, other)
        with pytest.raises(NameTaken, match="another collection"):
            await engine.sync_folder(ACME, "animals", tmp_path / "two", other)
        assert len(await found(engine, "animal of one", mode="fulltext")) == 1

    async def test_names_that_cannot_be_kept_as_they_are_stay_different(self, engine: Engine, tmp_path: Path) -> None:
        await engine.create_collection(ACME, "animals")
        names = ["a#c1.md", "a-c1.md", f"{'x' * 600}.md"]
        (tmp_path / "a.md").write_text("# A")
        given = [NewDocument(FileSource(tmp_path / "a.md", name), "animals") for name in names]
        ids = {status.id for status in await engine.ingest(ACME, given)}
        assert len(ids) == 3
        assert "animals/a-c1.md" in ids

    async def test_many_who_make_the_same_collection_make_one(self, engine: Engine) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(partial(engine.create_collection, ACME, "Foo Bar"))
        assert [entry.id for entry in await engine.collections(ACME) if not entry.shared] == ["foo-bar"]

    async def test_a_file_outside_of_its_root_is_not_read(self, engine: Engine, tmp_path: Path) -> None:
        (tmp_path / "secret.md").write_text("# Secret")
        (tmp_path / "open").mkdir()
        (tmp_path / "open" / "link.md").symlink_to(tmp_path / "secret.md")
        await engine.create_collection(ACME, "animals")
        source = FileSource(tmp_path / "open" / "link.md", "link.md", tmp_path / "open")
        [asked] = await engine.ingest(ACME, [NewDocument(source, "animals")])
        [status] = await finished(engine, [asked.id])
        assert status.status == "failed"

    async def test_documents_are_listed_in_pages_with_the_number_of_all(self, engine: Engine) -> None:
        for name in ("a", "b", "c"):
            await bring(engine, name, f"# {name}\n\nanimal {name}")
        await bring(engine, "d", "# d\n\nplant d", collection="plants")
        page, total = await engine.documents(ACME, Listing("animals", offset=1, limit=1))
        assert ([status.id for status in page], total) == (["animals/b"], 3)
        assert (await engine.documents(ACME, Listing(statuses=("failed",)))) == ([], 0)
        assert (await engine.documents(ACME, Listing(statuses=("success",))))[1] == 4

    async def test_a_document_that_is_deleted_is_gone(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        assert await engine.delete(ACME, "animals/foxes")
        assert not await engine.delete(ACME, "animals/foxes")
        assert await engine.read(ACME, "animals/foxes") is None
        assert await engine.status(ACME, "animals/foxes") is None
        assert await found(engine, "fox berries") == []

    async def test_a_collection_is_made_once_and_goes_with_its_documents(self, engine: Engine) -> None:
        first = await engine.create_collection(ACME, "My Animals", description="Of the wood", version="2")
        assert first == await engine.create_collection(ACME, "My Animals")
        assert (first.id, first.name, first.description, first.version) == (
            "my-animals",
            "My Animals",
            "Of the wood",
            "2",
        )
        await bring(engine, "Foxes", FOXES, collection="my-animals")
        [entry] = [entry for entry in await engine.collections(ACME) if not entry.shared]
        assert entry.documents == 1
        assert await engine.delete_collection(ACME, "my-animals")
        assert not await engine.delete_collection(ACME, "my-animals")
        assert await found(engine, "fox") == []
        assert [entry for entry in engine.cached_collections(ACME) if not entry.shared] == []

    async def test_a_search_keeps_to_the_collections_it_names(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        await bring(engine, "Foxgloves", "# Foxgloves\n\nThe fox does not eat the foxglove.", collection="plants")
        both = {hit.document.collection for hit in await found(engine, "fox")}
        assert both == {"animals", "plants"}
        for name in ("animals", "plants"):
            hits = await found(engine, "fox", collections=(name,))
            assert {hit.document.collection for hit in hits} == {name}
        assert await engine.search(ACME, Search("fox", collections=("nowhere",))) == []

    async def test_filters_keep_to_the_documents_they_describe(self, engine: Engine) -> None:
        await bring(
            engine, "Foxes", FOXES, version="7", metadata={"author": "ann", "year": 2020, "tags": ["wild", "red"]}
        )
        await bring(engine, "Hounds", HOUNDS, metadata={"author": "bob", "year": 2024, "tags": ["tame"]})
        expected: list[tuple[dict[str, Any], set[str]]] = [
            ({"metadata.author": {"$eq": "ann"}}, {"animals/foxes"}),
            ({"author": "bob"}, {"animals/hounds"}),
            ({"year": {"$gte": 2021}}, {"animals/hounds"}),
            ({"tags": {"$contains": "wild"}}, {"animals/foxes"}),
            ({"tags": {"$overlap": ["tame", "red"]}}, {"animals/foxes", "animals/hounds"}),
            ({"$or": [{"author": "ann"}, {"year": {"$lt": 2000}}]}, {"animals/foxes"}),
            ({"$and": [{"author": "ann"}, {"year": {"$gt": 2022}}]}, set()),
            ({"title": {"$ilike": "hou%"}}, {"animals/hounds"}),
            ({"document_id": {"$in": ["animals/foxes"]}}, {"animals/foxes"}),
            ({"status": "success", "collection_id": "animals"}, {"animals/foxes", "animals/hounds"}),
            ({"ingestion_status": {"$ne": "success"}}, set()),
            ({"version": "7"}, {"animals/foxes"}),
            ({"source": "animals/hounds", "size_bytes": {"$gt": 10}}, {"animals/hounds"}),
            (
                {"created_at": {"$gt": "2020-01-01"}, "updated_at": {"$lt": "2999-01-01"}},
                {"animals/foxes", "animals/hounds"},
            ),
            ({"document_type": {"$eq": "md"}, "size_in_bytes": {"$gt": 10}}, {"animals/foxes", "animals/hounds"}),
            ({"document_type": {"$in": ["pdf", "txt"]}}, set()),
            ({"id": "animals/foxes", "extraction_status": "success"}, {"animals/foxes"}),
            ({"doc_type": "animals", "media_type": {"$like": "text/%"}}, {"animals/foxes", "animals/hounds"}),
        ]
        for filters, ids in expected:
            assert {hit.document.id for hit in await found(engine, "fox hound", filters=filters)} == ids, filters

    async def test_a_filter_that_is_wrong_is_refused_with_its_place(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        with pytest.raises(InvalidArguments, match=r"author"):
            await engine.search(ACME, Search("fox", filters={"author": {"$near": "ann"}}))

    async def test_tenants_with_the_same_documents_never_see_each_others(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        await bring(engine, "Foxes", FOXES + "\n\nOthers have seen a white fox.", tenant=OTHER)
        assert "white" not in "".join(hit.text for hit in await found(engine, "white fox"))
        assert await engine.delete(OTHER, "animals/foxes")
        assert await found(engine, "fox", tenant=OTHER) == []
        assert len(await found(engine, "fox")) == 2
        assert (await engine.documents(OTHER, Listing()))[1] == 0
        assert (await engine.documents(ACME, Listing()))[1] == 1

    async def test_a_tenant_who_only_asks_leaves_no_trace(self, engine: Engine) -> None:
        stranger = TenantId("../stranger")
        assert await found(engine, "fox", tenant=stranger) == []
        assert await engine.read(stranger, "animals/foxes") is None
        assert (await engine.documents(stranger, Listing())) == ([], 0)
        assert not await engine.delete(stranger, "animals/foxes")

    async def test_a_document_for_a_collection_that_is_not_there_is_refused(self, engine: Engine) -> None:
        with pytest.raises(RefdeskError, match="nowhere"):
            await engine.ingest(ACME, [NewDocument(TextSource("Foxes", FOXES), "nowhere")])
        assert (await engine.documents(ACME, Listing()))[1] == 0

    async def test_the_revision_changes_with_what_can_be_found(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        before = engine.revision(ACME)
        assert engine.revision(ACME) == before
        await bring(engine, "Hounds", HOUNDS)
        assert engine.revision(ACME) != before
        hash(engine.revision(ACME))

    async def test_everybody_finds_and_reads_what_is_shared_and_nobody_removes_it(self, engine: Engine) -> None:
        await bring(engine, "Guide", "# Guide\n\nA walrus sits at the desk.", tenant=SHARED, collection="guides")
        for tenant in (ACME, OTHER):
            assert [hit.document.id for hit in await engine.search(tenant, Search("walrus"))] == ["guides/guide"]
            assert await engine.read(tenant, "guides/guide") is not None
            assert [entry.id for entry in await engine.collections(tenant) if entry.shared] == ["guides"]
            assert not await engine.delete(tenant, "guides/guide")
        assert await engine.status(SHARED, "guides/guide") is not None

    async def test_while_and_after_its_index_is_made_anew_a_tenant_finds_what_it_found(self, engine: Engine) -> None:
        await bring(engine, "Foxes", FOXES)
        before = [hit.chunk_id for hit in await found(engine, "fox berries")]
        await engine.reindex(ACME)
        assert [hit.chunk_id for hit in await found(engine, "fox berries")] == before

    async def test_documents_of_all_tenants_are_counted_by_status_until_they_are_in(self, engine: Engine) -> None:
        nothing = dict.fromkeys(IN_PROGRESS, 0)
        assert await engine.waiting() == nothing
        asked: dict[TenantId, list[str]] = {}
        for tenant in (ACME, OTHER):
            await engine.create_collection(tenant, "animals")
            given = [NewDocument(TextSource(name, f"# {name}\n\nanimal"), "animals") for name in ("a", "b", "c")]
            asked[tenant] = [status.id for status in await engine.ingest(tenant, given)]
        waiting = await engine.waiting()
        left = [await engine.wait(tenant, ids, seconds=0) for tenant, ids in asked.items()]
        # Some may have come in while the others were asked for.
        assert 0 < sum(waiting.values()) <= 6
        assert sum(waiting.values()) >= sum(status.status in IN_PROGRESS for found in left for status in found)
        for tenant, ids in asked.items():
            await finished(engine, ids, tenant=tenant)
        assert await engine.waiting() == nothing

    async def test_it_says_how_it_is(self, engine: Engine) -> None:
        assert "documents" in await engine.check()
