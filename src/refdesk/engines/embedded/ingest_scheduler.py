"""Who sees to it that queued documents are worked on, whichever process has queued them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from refdesk.calls import TenantId
from refdesk.engines.embedded import embedding_queue
from refdesk.engines.embedded.embedding.base import Embedder
from refdesk.engines.embedded.ingest_worker import Writer
from refdesk.engines.embedded.pauses import Pauses
from refdesk.engines.embedded.store_pool import Stores
from refdesk.engines.embedded.tenant_store import TenantStore
from refdesk.engines.storage import records
from refdesk.engines.storage.intake import Intake
from refdesk.errors import DependencyError
from refdesk.telemetry import Log, Metrics

E = TypeVar("E", bound=Exception)

MAX_WRITERS = 4
"""Tenants whose documents are brought in at a time; each takes some tens of megabytes."""


class Supervision:
    """Starts a writer for every tenant that has work, one at a time for each."""

    def __init__(
        self,
        stores: Stores,
        intake: Intake,
        embedder: Embedder | None,
        readers: int,
        log: Log,
        metrics: Metrics,
        pauses: Pauses,
    ) -> None:
        self._stores = stores
        self._intake = intake
        self._embedder = embedder
        self._readers = readers
        self._log = log
        self._metrics = metrics
        self._pauses = pauses
        self._writers: dict[TenantId, Writer] = {}
        self._news = anyio.Event()
        self._turns = anyio.Semaphore(MAX_WRITERS)
        self._told: Callable[[TenantId], None] = lambda _: None

    def listen(self, told: Callable[[TenantId], None]) -> None:
        """Have `told` called whenever a tenant's documents have changed."""
        self._told = told

    def begin(self, store: TenantStore) -> None:
        """There is work for this tenant."""
        writer = self._writers.get(store.tenant)
        if writer is not None:
            writer.nudge()
        self._news.set()

    async def rebuild(self, store: TenantStore) -> None:
        """Have the indexes of a tenant made anew; they follow the record from its beginning."""
        await store.order_reindex()
        self.begin(store)

    async def run(self) -> None:
        """Work on what is asked for here, on what an earlier process has left, and on what others queue; for ever."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._news = anyio.Event()
                for store in self._stores:
                    await self._look_after(tasks, store)
                with anyio.move_on_after(self._pauses.look):
                    await self._news.wait()
                await self._stores.open_new()

    async def _look_after(self, tasks: TaskGroup, store: TenantStore) -> None:
        """Start on a tenant's work, if it has any; one whose files cannot be read is not to hold up the others."""
        try:
            if await store.look():
                self._told(store.tenant)
            if store.tenant in self._writers:
                return
            if await self._has_work(store):
                self._start(tasks, store)
            else:
                store.trouble = None
        except DependencyError as error:
            self._tell_trouble(store, error.detail)

    def _tell_trouble(self, store: TenantStore, detail: str) -> None:
        store.trouble = detail
        self._log.events.error("engine.stopped", tenant=store.tenant, detail=detail)

    async def _has_work(self, store: TenantStore) -> bool:
        model = self._embedder
        # A model elsewhere that has not answered yet has no vector index either.
        has_vectors = model is not None and model.dimensions > 0

        def look(database: records.Database) -> bool:
            if (
                records.are_waiting(database)
                or store.is_to_be_reindexed
                or (model and embedding_queue.is_to_be_embedded(database, model.name))
            ):
                return True
            return store.is_behind(records.last_change(database), has_vectors=has_vectors)

        return await store.run(look)

    def _start(self, tasks: TaskGroup, store: TenantStore) -> None:
        writer = Writer(
            store,
            self._intake,
            self._embedder,
            self._readers,
            self._metrics,
            lambda: self._told(store.tenant),
            self._pauses,
        )
        self._writers[store.tenant] = writer
        tasks.start_soon(self._write, store, writer)

    async def _write(self, store: TenantStore, writer: Writer) -> None:
        store.busy += 1
        has_worked = False
        try:
            async with self._turns:
                has_worked = await writer.run()
            store.trouble = None
        except* DependencyError as failures:
            self._tell_trouble(store, _first(failures).detail)
            await anyio.sleep(self._pauses.trouble)
        except* Exception as failures:  # noqa: BLE001  the loop that supervises is the place for it
            # Nobody foresaw it. The other tenants' work goes on, and this one's is tried again.
            self._tell_trouble(store, f"an unforeseen failure: {_first(failures)!r}")
            await anyio.sleep(self._pauses.trouble)
        finally:
            store.busy -= 1
            del self._writers[store.tenant]
            self._told(store.tenant)
            if has_worked:
                self._news.set()  # something may have been queued while it ended


def _first(failures: BaseExceptionGroup[E]) -> E:
    """One of the failures; the others have the same cause."""
    for failure in failures.exceptions:
        return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
    raise AssertionError("a group of exceptions is never empty")
