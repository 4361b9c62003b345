"""The record: what is asked of it again and again does not take longer with every document that is in."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio import CapacityLimiter

from refdesk.calls import TenantId
from refdesk.engines.base import NewDocument, TextSource
from refdesk.engines.embedded.document_content import next_batch
from refdesk.engines.embedded.tenant_store import SearchThreads, TenantStore
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.catalogue import LocalDb
from refdesk.engines.storage import ingest_queue, records
from refdesk.engines.storage.databases import DATABASE, TenantDatabase

ENGINES: dict[str, Callable[[Path], TenantDatabase]] = {
    "embedded": lambda folder: TenantStore(folder, TenantId("acme"), CapacityLimiter(1), SearchThreads(1)),
    "r2r": lambda folder: LocalDb(folder, TenantId("acme"), CapacityLimiter(1)),
}
QUESTIONS: dict[str, Callable[[records.Database], Any]] = {
    "how many wait": records.count_pending,
    "how many wait for R2R": catalogue.count_pending,
    "whether any wait": records.has_pending,
    "whether any are new": records.has_unindexed,
    "which are next": lambda database: ingest_queue.next_tasks(database, 1.0, 3, (1, 2)),
}


@pytest.fixture(params=ENGINES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[records.Database]:
    with closing(ENGINES[request.param](tmp_path)) as created:
        created.prepare()
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as database:
        yield database


def queue_texts(database: records.Database, names: str) -> None:
    records.create_collection(database, "animals", "", "")
    records.queue_documents(
        database, [NewDocument(TextSource(name, f"An animal: {name}."), "animals") for name in names]
    )


@pytest.mark.parametrize("question", QUESTIONS)
def test_documents_that_are_in_are_not_looked_at_for_those_that_wait(database: records.Database, question: str) -> None:
    queries: list[str] = []
    database.set_trace_callback(queries.append)
    QUESTIONS[question](database)
    database.set_trace_callback(None)
    for query in queries:
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}")]
        assert any("documents_under_way" in step for step in plan), (query, plan)


def test_every_stage_under_way_is_counted_as_its_status(database: records.Database) -> None:
    queue_texts(database, "abcdefgh")
    stages = ("pending", "converting", "indexing", "indexing", "embedding", "finishing", "success", "failed")
    for key, stage in enumerate(stages, 1):
        database.execute("UPDATE documents SET stage = ? WHERE key = ?", (stage, key))
    assert records.count_pending(database) == {"pending": 1, "converting": 3, "embedding": 2}
    assert records.has_pending(database)
    [animals] = records.list_collections(database, shared=False)
    assert (animals.pending, animals.documents) == (4, 8)


def read_revisions(database: records.Database) -> dict[str, str]:
    return {info.id: info.revision for info in records.list_collections(database, shared=False)}


def test_a_collections_revision_changes_with_its_documents_alone(database: records.Database) -> None:
    queue_texts(database, "ab")
    records.create_collection(database, "plants", "", "")
    before = read_revisions(database)
    database.execute("UPDATE documents SET title = 'changed'")
    changed = read_revisions(database)
    assert changed["plants"] == before["plants"]
    assert changed["animals"] != before["animals"]
    database.execute("DELETE FROM collections WHERE id = 'animals'")
    queue_texts(database, "ab")
    assert read_revisions(database)["animals"] not in (before["animals"], changed["animals"])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_database_without_revisions_of_collections_gets_them(tmp_path: Path, engine: str) -> None:
    with closing(ENGINES[engine](tmp_path)) as created:
        created.prepare()
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as older:
        queue_texts(older, "a")
        older.executescript(
            "DROP TRIGGER document_added_to_collection; DROP TRIGGER document_removed_from_collection; "
            "DROP TRIGGER document_of_collection_changed; DROP TABLE collection_revisions"
        )
    with closing(ENGINES[engine](tmp_path)) as opened:
        opened.prepare()
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as database:
        before = read_revisions(database)
        database.execute("UPDATE documents SET title = 'changed'")
        assert read_revisions(database) != before


def test_where_everything_is_in_nothing_waits(database: records.Database) -> None:
    queue_texts(database, "ab")
    database.execute("UPDATE documents SET stage = 'success'")
    assert records.count_pending(database) == {"pending": 0, "converting": 0, "embedding": 0}
    assert not records.has_pending(database)


def test_what_others_bring_into_r2r_is_not_counted_as_ours(database: records.Database) -> None:
    queue_texts(database, "ab")
    database.execute("UPDATE documents SET kind = ? WHERE key = 1", (records.REMOTE,))
    assert sum(catalogue.count_pending(database).values()) == 1
    assert sum(records.count_pending(database).values()) == 2


@pytest.mark.parametrize(("retry_at", "is_due"), [(0, True), (999, True), (1_600, False), (100_000, True)])
def test_a_document_is_tried_again_when_it_is_due_or_the_clock_was_put_back(
    database: records.Database, retry_at: float, is_due: bool
) -> None:
    queue_texts(database, "a")
    database.execute("UPDATE documents SET retry_at = ?", (retry_at,))
    assert len(ingest_queue.next_tasks(database, 1_000, 3, ())) == is_due
    if database.execute("SELECT 1 FROM sqlite_schema WHERE name = 'embeddings'").fetchone():
        database.execute("UPDATE documents SET stage = 'embedding'")
        assert (next_batch(database, 1_000) is not None) == is_due
