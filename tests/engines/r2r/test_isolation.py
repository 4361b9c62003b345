"""Tenants and projects under one service account never see each other's documents, whatever R2R gives."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from refdesk.calls import DEFAULT_TENANT, TenantId
from refdesk.engines.base import Listing, Search
from refdesk.engines.r2r.engine import R2REngine
from refdesk.errors import DocumentNotFound, InvalidArguments, R2RLeaked, RefdeskError, WriterFailed
from refdesk.telemetry.metrics import Metrics
from tests.contracts.engine import ACME, FOXES, OTHER, bring
from tests.engines.r2r.conftest import OpenEngine
from tests.engines.r2r.scripted import PASSWORD, ScriptedR2R

pytestmark = pytest.mark.anyio

SECRET = "# Secret\n\nThe fox of the others is white.\n"


def count_foreign_chunks(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("refdesk_r2r_foreign_chunks_total") or 0.0


async def request_answer(engine: R2REngine, question: str = "fox", **given: Any) -> Any:
    return await engine.writer.answer(ACME, question, Search(question, collections=("animals",), **given))


async def test_cache_is_shared_by_all_who_use_one_r2r(r2r: ScriptedR2R, open_engine: OpenEngine) -> None:
    async with open_engine("one") as one, open_engine("two") as two:
        assert one.traits == two.traits
        assert one.traits.cache_secret == PASSWORD.encode()
        assert r2r.url in one.traits.cache_namespace


async def test_an_owner_finds_only_what_is_in_the_collection_that_it_names(r2r: ScriptedR2R, engine: R2REngine) -> None:
    """The account owns everything; with the filter of R2R's documentation it would find all of it: issue 2114."""
    await bring(engine, "Foxes", FOXES)
    await bring(engine, "Secret", SECRET, collection="secrets")
    naive = {"filters": {"collection_ids": {"$overlap": [str(uuid4())]}}, "limit": 100}
    leaked = r2r.search({"query": "fox", "search_settings": naive})["chunk_search_results"]
    assert len(leaked) == 3, "the server leaks as R2R does"
    assert {hit.document.id for hit in await engine.search(ACME, Search("fox", collections=("animals",)))} == {
        "animals/foxes"
    }
    assert {hit.document.id for hit in await engine.search(ACME, Search("fox"))} == {"animals/foxes", "secrets/secret"}


async def test_a_foreign_chunk_is_dropped_told_and_counted(
    r2r: ScriptedR2R, open_engine: OpenEngine, read_log: Callable[[], str]
) -> None:
    metrics = Metrics()
    async with open_engine(metrics=metrics) as engine:
        await bring(engine, "Foxes", FOXES)
        await bring(engine, "Secret", SECRET, tenant=OTHER)
        r2r.leaks = True
        hits = await engine.search(ACME, Search("fox white"))
        assert {hit.document.id for hit in hits} == {"animals/foxes"}
        assert count_foreign_chunks(metrics) == 1
    assert "r2r.foreign_chunk" in read_log()
    assert "white" not in read_log()


async def test_an_answer_from_a_foreign_chunk_is_withheld(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Foxes", FOXES)
    await bring(engine, "Secret", SECRET, tenant=OTHER)
    assert (await request_answer(engine)).text == "A fox eats berries. [1]"
    r2r.leaks = True
    with pytest.raises(R2RLeaked, match="withheld") as error:
        await request_answer(engine)
    assert not error.value.retryable


async def test_an_answer_is_given_with_our_numbers_and_its_passages(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Foxes", FOXES)
    r2r.answer = "Berries [{1}], see [3] and [{0}, {1}].\n§food p1-1: Foxes › Food\nThe end."
    answer = await request_answer(engine)
    assert answer.text == "Berries [2], see (3) and [1][2].\nThe end."
    assert [hit.document.id for hit in answer.hits] == ["animals/foxes"] * 2
    assert answer.model == "scripted"


async def test_an_answer_that_cites_what_was_not_found_is_withheld(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Foxes", FOXES)
    r2r.answer = "A fox flies. [0badbad]"
    with pytest.raises(WriterFailed, match="withheld"):
        await request_answer(engine)


async def test_without_a_passage_no_model_is_asked(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Foxes", FOXES)
    answer = await request_answer(engine, "walrus")
    assert (answer.text, answer.hits) == ("", ())
    assert (await engine.writer.answer(TenantId("nobody"), "fox", Search("fox"))).hits == ()
    assert r2r.count("/v3/retrieval/rag") == 0


async def test_a_model_that_fails_does_not_cost_the_searches(r2r: ScriptedR2R, open_engine: OpenEngine) -> None:
    async with open_engine() as engine:
        await bring(engine, "Foxes", FOXES)
        await ask_a_model_that_fails(r2r, engine)
        assert await engine.search(ACME, Search("fox"))
        assert [dependency.state for dependency in engine.dependencies] == ["closed", "open"]


async def ask_a_model_that_fails(r2r: ScriptedR2R, engine: R2REngine) -> None:
    failure = {"detail": {"message": "An error '500: Internal RAG Error' occurred", "error_type": "HTTPException"}}
    with r2r.fault("/v3/retrieval/rag", status=500, body=failure):
        for _ in range(10):
            with pytest.raises(RefdeskError):
                await request_answer(engine)
        assert r2r.count("/v3/retrieval/rag") == 5
        for _ in range(10):
            with pytest.raises(WriterFailed):
                await engine.writer.answer(ACME, "fox", Search("fox"), model="no-such-model")


async def test_no_search_is_ever_made_without_the_tenants_own_collections(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Foxes", FOXES)
    await bring(engine, "Secret", SECRET, tenant=OTHER)
    others = next(id for id, entry in r2r.collections.items() if entry["name"].endswith("other"))
    for collections in ((), ("animals",), (others,), ("nowhere",), ("animals", others)):
        await engine.search(ACME, Search("fox", collections=collections))
        await engine.writer.answer(ACME, "fox", Search("fox", collections=collections))
    sent_filters = [b["search_settings"]["filters"]["$and"][0] for b in r2r.bodies("/v3/retrieval/")]
    assert sent_filters
    own = {id for id, entry in r2r.collections.items() if entry["name"].endswith("acme")}
    assert all(set(each["collection_ids"]["$overlap"]) <= own for each in sent_filters)


@pytest.mark.parametrize(
    "filters",
    [
        {"x') OR TRUE --": "1"},
        {"author": {"$near": "ann"}},
        {"document_id": "nope"},
        {"collection_ids": {"$overlap": ["05a7300a-081c-4ed4-bb08-f7bec59727f3"]}},
        {"$or": [{"collection_id": "animals"}, {"owner_id": "a1b4a229-5cf1-50d5-a33f-a62cf11481ca"}]},
        {"created_at": {"$gt": "yesterday"}},
    ],
)
async def test_a_filter_never_reaches_r2r_as_it_was_written(
    r2r: ScriptedR2R, engine: R2REngine, filters: dict[str, Any]
) -> None:
    """R2R puts the names in a filter into its SQL as they are, and fails on what it cannot cast."""
    await bring(engine, "Foxes", FOXES)
    await bring(engine, "Secret", SECRET, tenant=OTHER)
    try:
        hits = await engine.search(ACME, Search("fox", filters=filters))
    except InvalidArguments:
        hits = []
    assert {hit.document.id for hit in hits} <= {"animals/foxes"}
    for body in r2r.bodies("/v3/retrieval/"):
        for condition in body["search_settings"]["filters"]["$and"]:
            assert set(condition) <= {"collection_ids", "document_id"}


async def test_documents_and_collections_of_others_are_not_there(r2r: ScriptedR2R, engine: R2REngine) -> None:
    await bring(engine, "Secret", SECRET, tenant=OTHER, collection="secrets")
    [uuid] = r2r.documents
    [collection] = r2r.collections
    await bring(engine, "Foxes", FOXES)
    for id in ("secrets/secret", uuid, f"{collection}/secret", f"animals/{uuid}", f"secrets/{uuid}"):
        assert await engine.read(ACME, id) is None
        assert await engine.open(ACME, id) is None
        assert await engine.status(ACME, id) is None
        assert await engine.window(ACME, id, f"{id}#c1", before=1, after=1) is None
        assert not await engine.delete(ACME, id)
    assert not await engine.delete_collection(ACME, "secrets")
    assert not await engine.delete_collection(ACME, collection)
    assert uuid in r2r.documents
    with pytest.raises(DocumentNotFound):
        await engine.sync_folder(ACME, collection, Path("/nowhere"), [])
    assert await engine.read(OTHER, uuid) is not None


async def test_a_collection_that_is_named_as_if_it_were_anothers_is_not(engine: R2REngine) -> None:
    await engine.create_collection(DEFAULT_TENANT, "loot · refdesk:acme")
    assert [entry.id for entry in await engine.collections(ACME)] == []
    assert [entry.name for entry in await engine.collections(DEFAULT_TENANT)] == ["loot · refdesk:acme"]


TENANTS = [TenantId("a"), TenantId("a:b"), TenantId("b"), DEFAULT_TENANT]


def operations(seed: int) -> Iterator[tuple[str, TenantId, str]]:
    chance = random.Random(seed)
    for _ in range(60):
        yield (
            chance.choice(["bring", "delete", "search", "list", "read"]),
            chance.choice(TENANTS),
            chance.choice(["c", "c-d", "d"]),
        )


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_tenants_do_each_sees_just_its_own(engine: R2REngine, seed: int) -> None:
    held: dict[TenantId, set[str]] = {tenant: set() for tenant in TENANTS}
    for operation, tenant, collection in operations(seed):
        word = f"word{TENANTS.index(tenant)}"
        match operation:
            case "bring" if not any(id.startswith(f"{collection}/") for id in held[tenant]):
                text = f"# Same\n\nthe same fox of {word}"
                held[tenant].add((await bring(engine, "Same", text, tenant=tenant, collection=collection)).id)
            case "delete":
                id = f"{collection}/same"
                assert await engine.delete(tenant, id) == (id in held[tenant])
                held[tenant].discard(id)
            case "search":
                hits = await engine.search(tenant, Search("same fox", limit=100))
                assert {hit.document.id for hit in hits} == held[tenant]
                assert all(word in hit.text for hit in hits)
            case "list":
                listed, total = await engine.documents(tenant, Listing())
                assert ({each.id for each in listed}, total) == (held[tenant], len(held[tenant]))
            case "read":
                document = await engine.read(tenant, f"{collection}/same")
                assert (document is not None) == (f"{collection}/same" in held[tenant])
                assert document is None or word in document.text


async def test_no_credential_is_in_the_log(
    r2r: ScriptedR2R, open_engine: OpenEngine, read_log: Callable[[], str]
) -> None:
    async with open_engine() as engine:
        await bring(engine, "Foxes", FOXES)
        given = [*r2r.access, *r2r.refresh]
        r2r.revoke()
        refused = {"detail": [{"msg": "no", "input": given[0]}]}
        with r2r.fault("/v3/retrieval/search", status=422, body=refused), pytest.raises(RefdeskError):
            await engine.search(ACME, Search("fox"))
    assert not any(secret in read_log() for secret in (PASSWORD, *given, *r2r.access, *r2r.refresh))
