"""The search history, which is written behind the searches."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from refdesk.calls import TenantId, UserId
from refdesk.engines.storage.databases import DATABASE, tenant_folder_name
from refdesk.engines.storage.search_history import FILE_NAME, PastSearch, SearchHistory, open_search_history

pytestmark = pytest.mark.anyio

ACME, OTHER = TenantId("acme"), TenantId("../other")
ANN, BOB = UserId("ann"), UserId("bob")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


async def test_each_user_has_a_history_newest_first(tmp_path: Path) -> None:
    async with open_search_history(tmp_path) as history:
        for query in ("first", "second", "third"):
            history.add(ACME, ANN, PastSearch(query, "animals", 3, AT))
        history.add(ACME, BOB, PastSearch("bobs", "", 0, AT))
        history.add(OTHER, ANN, PastSearch("others", "", 0, AT))
        assert [past.query for past in await history.list_recent(ACME, ANN, 2)] == ["third", "second"]
        assert await history.list_recent(ACME, BOB) == [PastSearch("bobs", "", 0, AT)]
        assert await history.list_recent(TenantId("stranger"), ANN) == []
    assert sorted(os.listdir(tmp_path)) == sorted(map(tenant_folder_name, (ACME, OTHER)))


async def test_history_survives_a_restart(tmp_path: Path) -> None:
    past = PastSearch("fox", "animals", 1, AT)
    async with open_search_history(tmp_path) as history:
        history.add(ACME, ANN, past)
    async with open_search_history(tmp_path) as history:
        assert await history.list_recent(ACME, ANN) == [past]
        assert await history.list_recent(OTHER, ANN) == []


async def test_history_of_earlier_versions_is_copied_once(tmp_path: Path) -> None:
    folder = tmp_path / tenant_folder_name(ACME)
    folder.mkdir()
    with closing(sqlite3.connect(folder / DATABASE)) as documents, documents:
        documents.execute("CREATE TABLE history (key INTEGER PRIMARY KEY, user, query, collection, results, at)")
        documents.execute("INSERT INTO history VALUES (1, 'ann', 'fox', 'animals', 3, ?)", (AT.isoformat(),))
    for _ in range(2):
        async with open_search_history(tmp_path) as history:
            assert await history.list_recent(ACME, ANN) == [PastSearch("fox", "animals", 3, AT)]


async def test_reader_waits_for_a_write_in_progress(tmp_path: Path) -> None:
    history = SearchHistory(tmp_path)
    history.add(ACME, ANN, PastSearch("first", "", 3, AT))
    await history.flush()
    history.add(ACME, ANN, PastSearch("second", "", 3, AT))
    found: list[str] = []

    async def read() -> None:
        found.extend(search.query for search in await history.list_recent(ACME, ANN, 10))

    with closing(sqlite3.connect(tmp_path / tenant_folder_name(ACME) / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(history.flush)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            assert found == []
            other.execute("ROLLBACK")
    assert found == ["second", "first"]
