"""The embedded engine on its own file: what it keeps, what it finds, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from refdesk.calls import TenantId
from refdesk.documents.query import match_expression
from refdesk.engines.embedded import EmbeddedEngine, SourceDocument, open_embedded
from refdesk.engines.embedded.engine import READING_THREADS
from refdesk.engines.port import DocumentationSet
from refdesk.errors import EngineError

pytestmark = pytest.mark.anyio

ACME, OTHER = TenantId("acme"), TenantId("other")
SET = DocumentationSet("handbook", "docs", "Handbook", "1", 0)


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EmbeddedEngine]:
    async with open_embedded(tmp_path / "data") as engine:
        yield engine


def document(name: str, text: str) -> SourceDocument:
    return SourceDocument(f"handbook/{name}.md", text)


async def found(engine: EmbeddedEngine, query: str, tenant: TenantId = ACME) -> list[str]:
    return [hit.document.id for hit in await engine.search(tenant, query, limit=10)]


async def test_what_is_indexed_is_there_after_a_restart(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as engine:
        await engine.replace_set(ACME, SET, [document("a", "# Alpha\n\nThe quick fox.")])
    async with open_embedded(tmp_path) as engine:
        assert await found(engine, "foxes") == ["handbook/a.md"]
        assert [entry.doc_type for entry in engine.sets(ACME)] == ["handbook"]


async def test_a_set_holds_exactly_the_documents_it_was_last_given(engine: EmbeddedEngine) -> None:
    first = [document("a", "# A\n\nfox"), document("b", "# B\n\nhound")]
    assert await engine.replace_set(ACME, SET, first) == 2
    assert await engine.replace_set(ACME, SET, first) == 0
    changed = [document("a", "# A\n\nwolf"), document("c", "# C\n\nhound")]
    assert await engine.replace_set(ACME, SET, changed) == 3
    assert await found(engine, "fox") == []
    assert await found(engine, "wolf") == ["handbook/a.md"]
    assert await found(engine, "hound") == ["handbook/c.md"]


async def test_a_new_version_of_the_same_text_is_told_as_new(engine: EmbeddedEngine) -> None:
    await engine.replace_set(ACME, SET, [document("a", "# A\n\nfox")])
    await engine.replace_set(
        ACME, DocumentationSet("handbook", "docs", "Handbook", "2", 0), [document("a", "# A\n\nfox")]
    )
    (hit,) = await engine.search(ACME, "fox", limit=5)
    assert hit.document.version == "2"


async def test_a_failed_replacement_leaves_everything_as_it_was(engine: EmbeddedEngine) -> None:
    await engine.replace_set(ACME, SET, [document("a", "# A\n\nfox")])
    twice = [document("b", "# B"), document("b", "# B again")]
    with pytest.raises(EngineError):
        await engine.replace_set(ACME, SET, twice)
    assert await found(engine, "fox") == ["handbook/a.md"]
    assert await engine.read(ACME, "handbook/b.md") is None


async def test_tenants_do_not_see_each_other(engine: EmbeddedEngine) -> None:
    await engine.replace_set(ACME, SET, [document("a", "# A\n\nfox")])
    await engine.replace_set(OTHER, SET, [document("a", "# A\n\nhound")])
    assert await found(engine, "fox", OTHER) == []
    assert await engine.document_ids(TenantId("third")) == []
    theirs = await engine.read(OTHER, "handbook/a.md")
    assert theirs is not None
    assert "hound" in theirs.text
    assert engine.sets(TenantId("third")) == []


async def test_headings_and_titles_weigh_more_than_text(engine: EmbeddedEngine) -> None:
    documents = [
        document("body", "# Other\n\nSome words on replication and more words and more."),
        document("heading", "# Guide\n\n## Replication\n\nHow it is done."),
    ]
    await engine.replace_set(ACME, SET, documents)
    assert (await found(engine, "replication"))[0] == "handbook/heading.md"


async def test_many_readers_and_a_writer_get_on_with_each_other(engine: EmbeddedEngine, tmp_path: Path) -> None:
    await engine.replace_set(ACME, SET, [document("a", "# A\n\nfox")])

    async def read() -> None:
        for _ in range(20):
            assert len(await engine.search(ACME, "fox", limit=3)) >= 1

    async def write() -> None:
        async with open_embedded(tmp_path / "data") as second:
            for number in range(10):
                await second.replace_set(ACME, SET, [document("a", f"# A\n\nfox {number}")])

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(read)
        tasks.start_soon(write)


async def test_a_file_of_another_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "refdesk.db") as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(EngineError, match="another version of Refdesk"):
        async with open_embedded(tmp_path):
            pass


async def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "refdesk.db").write_bytes(b"not a database at all, but long enough to be read as one" * 50)
    with pytest.raises(EngineError, match=r"refdesk\.db"):
        async with open_embedded(tmp_path):
            pass


@pytest.mark.parametrize(
    ("query", "expression"),
    [
        ("How do I configure max_connections?", '"configure" OR "max_connections"'),
        ("the who", '"the" OR "who"'),
        ('say "hello" AND drop*', '"say" OR "hello" OR "drop"'),
        ("pg_dump -j pg_dump", '"pg_dump" OR "j"'),
        ("?!", None),
    ],
)
def test_a_question_becomes_its_telling_words(query: str, expression: str | None) -> None:
    assert match_expression(query) == expression


async def test_a_search_that_is_given_up_does_not_outlive_the_engine(tmp_path: Path) -> None:
    words = " ".join(f"word{number}" for number in range(3000))
    for _ in range(5):
        async with open_embedded(tmp_path) as engine:
            await engine.replace_set(ACME, SET, [document(str(n), f"# Title {n}\n\n{words}") for n in range(20)])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(search_for_ever(engine, words), 0.002)


async def search_for_ever(engine: EmbeddedEngine, words: str) -> None:
    while True:
        await engine.search(ACME, words, limit=10)


async def test_a_closed_engine_says_so(tmp_path: Path) -> None:
    async with open_embedded(tmp_path) as engine:
        pass
    with pytest.raises(EngineError, match="closed"):
        await engine.search(ACME, "fox", limit=1)


async def test_no_more_connections_are_open_than_calls_were_under_way_at_once(engine: EmbeddedEngine) -> None:
    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(found, engine, "fox")
    assert len(engine._connections._idle) <= READING_THREADS


async def test_several_may_open_a_new_folder_at_once(tmp_path: Path) -> None:
    async def open_and_close(folder: Path) -> None:
        async with open_embedded(folder) as engine:
            assert await engine.check() == "0 documents"

    for number in range(20):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(open_and_close, tmp_path / str(number))
