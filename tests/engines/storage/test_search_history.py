"""The search history, which is written behind the searches."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from typing import TypeVar

import anyio
import pytest

from refdesk.calls import TenantId, UserId
from refdesk.engines.base import PastSearch
from refdesk.engines.storage import records
from refdesk.engines.storage.schema import read_schema
from refdesk.engines.storage.search_history import SearchHistory

pytestmark = pytest.mark.anyio

T = TypeVar("T")
ACME, ANN = TenantId("acme"), UserId("ann")


class SlowStore:
    """A database whose work waits for an event, and the stores of all tenants."""

    def __init__(self, database: records.Database) -> None:
        self._database = database
        self.begun, self.released = asyncio.Event(), asyncio.Event()

    async def run(self, work: Callable[[records.Database], T]) -> T:
        self.begun.set()
        await self.released.wait()
        return work(self._database)

    async def get(self, tenant: TenantId) -> SlowStore:
        return self

    async def get_or_create(self, tenant: TenantId) -> SlowStore:
        return self


@pytest.fixture
def database() -> Iterator[records.Database]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.executescript(read_schema("refdesk.engines.embedded"))
        yield database


async def test_reader_waits_for_a_write_in_progress(database: records.Database) -> None:
    store = SlowStore(database)
    history = SearchHistory(store)
    history.add(ACME, ANN, PastSearch("rotate the keys", "", 3, datetime.now(UTC)))
    found: list[str] = []

    async def read() -> None:
        found.extend(search.query for search in await history.list_recent(ACME, ANN, 10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(history.flush)
        await store.begun.wait()
        store.begun.clear()
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        assert not store.begun.is_set(), "the reader asked before the write was finished"
        store.released.set()
    assert found == ["rotate the keys"]
