"""The one who writes a tenant's files: documents are read, converted, indexed and embedded until none is left to do.

Three kinds of work go on side by side: reading (as many at a time as there are converters), embedding, and writing the
indexes. They share nothing but the record, so each can be cut off at any moment and taken up again by another process.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import anyio
import numpy as np
from anyio import CancelScope, CapacityLimiter, to_thread

from refdesk.documents.packed_document import Shelf
from refdesk.engines.embedded import document_blobs, embedding_queue
from refdesk.engines.embedded.embedding.base import Embedder
from refdesk.engines.embedded.indexes import Indexes
from refdesk.engines.embedded.pauses import PAUSES, Pauses
from refdesk.engines.embedded.tenant_store import TenantStore
from refdesk.engines.storage import queue, records
from refdesk.engines.storage.folders import translated
from refdesk.engines.storage.intake import Intake
from refdesk.engines.storage.queue import Arrived, Task
from refdesk.errors import DependencyError, Overloaded, ToolFailure
from refdesk.telemetry import Metrics

MOST_ATTEMPTS = 4
"""On what may be better later, such as a page on the web."""

INDEX_PAUSE = 4.0
"""Times as long as writing the indexes took, before they are written again while documents are being read."""

READ_FIRST_SECONDS = 10.0
"""While documents wait to be read, embedding has a turn this often: to be found by words comes first."""

NO_VECTORS = np.empty((0, 0), np.float32)
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

T = TypeVar("T")


class Writer:
    """Works through a tenant's queue."""

    def __init__(
        self,
        store: TenantStore,
        intake: Intake,
        embedder: Embedder | None,
        readers: int,
        metrics: Metrics,
        told: Callable[[], None],
        pauses: Pauses = PAUSES,
    ) -> None:
        """`told` is called whenever there is something new to find."""
        self._store = store
        self._intake = intake
        self._embedder = embedder
        self._readers = readers
        self._metrics = metrics
        self._told = told
        self._pauses = pauses
        self._index_thread = CapacityLimiter(1)
        """The indexes are for one thread at a time."""
        self._threads = CapacityLimiter(readers + 1)
        """Apart from those that searches run in, which are not to wait for this."""
        self._taken: set[int] = set()
        self._claiming = anyio.Lock()
        self._news = anyio.Event()
        self._clock: Callable[[], float] = time.time
        self._embedded_at = 0.0

    def nudge(self) -> None:
        """There is more to do."""
        self._news.set()
        self._news = anyio.Event()

    async def run(self) -> bool:
        """Work until nothing is left; False when another process is at it."""
        with self._store.writing() as is_ours:
            if not is_ours:
                return False
            indexes = await self._in_thread(lambda: Indexes(self._store.folder, self._embedder))
            try:
                await self._work(indexes)
                if self._store.is_to_be_reindexed:
                    await self._in_thread(indexes.clear)
                    await self._work(indexes)
                    await self._in_thread(self._store.end_reindex)
            finally:
                with CancelScope(shield=True):
                    await self._in_thread(indexes.close)
                    self._store.converting.clear()
            return True

    async def _work(self, indexes: Indexes) -> None:
        if (model := self._embedder) is not None:
            await self._record(lambda database: embedding_queue.adopt(database, model.name))
        await self._index(indexes)
        async with anyio.create_task_group() as tasks:
            for _ in range(self._readers):
                tasks.start_soon(self._for_ever, self._read_next)
            if self._embedder is not None:
                tasks.start_soon(self._for_ever, self._embed_next)
            await self._keep_indexing(indexes)
            tasks.cancel_scope.cancel()
        await self._record(embedding_queue.sweep)

    async def _for_ever(self, step: Callable[[], Awaitable[bool]]) -> None:
        """One step after another; when there is none to take, wait for news."""
        while True:
            news = self._news
            if not await step():
                with anyio.move_on_after(LONGEST_PAUSE):
                    await news.wait()

    async def _keep_indexing(self, indexes: Indexes) -> None:
        """Write the indexes again and again, until nothing is under way."""
        while True:
            news = self._news
            began = anyio.current_time()
            followed = await self._index(indexes)
            if not followed and not await self._record(records.are_waiting):
                return
            took = anyio.current_time() - began
            if followed:
                self.nudge()  # those who embed have waited for it
                pause = took * INDEX_PAUSE if self._taken else SHORTEST_PAUSE
                await anyio.sleep(min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE))
            else:
                with anyio.move_on_after(LONGEST_PAUSE):
                    await news.wait()

    async def _index(self, indexes: Indexes) -> bool:
        followed = await self._store.run(indexes.follow, self._index_thread)
        if followed:
            await self._store.refresh()
            self._told()
        return followed

    async def _read_next(self) -> bool:
        task = await self._claim()
        if task is None:
            return False
        try:
            await self._read(task)
        finally:
            self._taken.discard(task.key)
            self._store.converting.pop(task.key, None)
        self.nudge()
        return True

    async def _claim(self) -> Task | None:
        # One reader looks at a time: what another took and finished meanwhile would be found once more.
        async with self._claiming:
            taken, at = tuple(self._taken), self._clock()
            for task in await self._record(lambda database: queue.next_tasks(database, at, 1, taken)):
                self._taken.add(task.key)
                self._store.converting[task.key] = 0.0
                return task
        return None

    async def _read(self, task: Task) -> None:
        def told(share: float) -> None:
            self._store.converting[task.key] = share

        try:
            arrived = await self._intake.receive(self._store.tenant, task, told, is_own=self._store.is_shared)
            await self._keep(task, arrived)
        except (ToolFailure, Overloaded) as failure:
            await self._fail(task, failure.detail, self._retry_at(task.attempts) if failure.retryable else None)
        except DependencyError:
            raise
        except Exception as error:  # noqa: BLE001  what nobody foresaw in one document must not hold the others up
            await self._fail(task, f"An unforeseen failure: {error!r}", None)

    async def _fail(self, task: Task, why: str, retry_at: float | None) -> None:
        await self._record(partial(_failed, task, why, retry_at))
        self._metrics.documents.labels("failed" if retry_at is None else "postponed").inc()

    async def _keep(self, task: Task, arrived: Arrived) -> None:
        if arrived.packed is None:
            has_model = self._embedder is not None
            await self._record(lambda database: queue.keep_unchanged(database, task, arrived, has_model=has_model))
            self._metrics.documents.labels("unchanged").inc()
            return
        packed = arrived.packed

        def keep(database: sqlite3.Connection) -> None:
            with Shelf.of(packed) as shelf:
                document_blobs.keep(database, task, arrived, document_blobs.compressed(packed), shelf)

        await self._record(keep)
        self._metrics.documents.labels("indexed").inc()

    async def _embed_next(self) -> bool:
        at = self._clock()
        if self._taken and at - self._embedded_at < READ_FIRST_SECONDS:
            return False
        batch = await self._record(lambda database: embedding_queue.next_batch(database, at))
        if self._embedder is None:
            return False
        if batch is None:
            return await self._meet_model(self._embedder)
        try:
            vectors = await self._embedder.embed_passages(batch.texts) if batch.texts else NO_VECTORS
        except DependencyError as error:
            why = f"The text is found by its words, not yet by its meaning: {error.detail}"
            first_retry = self._pauses.first_retry
            await self._record(lambda database: embedding_queue.postpone(database, batch, why, at, first_retry))
            return True
        await self._record(lambda database: embedding_queue.keep_vectors(database, batch, vectors))
        self._embedded_at = self._clock()
        self._metrics.embedded_chunks.inc(len(batch.texts))
        self.nudge()
        return True

    async def _meet_model(self, embedder: Embedder) -> bool:
        """Have a model elsewhere answer once: without its dimensions no vectors can be indexed."""
        if embedder.dimensions:
            return False
        try:
            await embedder.embed_query("?")
        except DependencyError:
            return False  # it is asked again after a while; who waits for a document is told by its batch
        self.nudge()
        return True

    def _retry_at(self, attempts: int) -> float | None:
        if attempts + 1 >= MOST_ATTEMPTS:
            return None
        return self._clock() + self._pauses.first_retry * float(3**attempts)

    async def _record(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await self._store.run(work, self._threads)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def run() -> T:
            with translated("the index failed"):
                return work()

        return await to_thread.run_sync(run, limiter=self._index_thread)


def _failed(task: Task, why: str, retry_at: float | None, database: sqlite3.Connection) -> None:
    queue.fail(database, task, why, retry_at)
