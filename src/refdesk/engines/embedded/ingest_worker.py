"""Ingest workers, each of which converts, indexes and embeds a tenant's documents until its queue is empty.

The scheduler starts them for queued documents, whichever process queued them.

Three loops run concurrently: conversion (as many at a time as there are converters), embedding, and index updates. They
only share the document store, so each can be interrupted at any moment and resumed by another process.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

import anyio
import numpy as np
from anyio import CancelScope, CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from refdesk.calls import TenantId
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.embedded import document_content
from refdesk.engines.embedded.embedding import Embedder
from refdesk.engines.embedded.indexes import Indexes
from refdesk.engines.embedded.tenant_store import StorePool, TenantStore
from refdesk.engines.storage import ingest_queue, records
from refdesk.engines.storage.databases import hold_writer_lock, translate_errors
from refdesk.engines.storage.ingest_queue import PAUSES, IngestTask, Pauses, SourceContent, SourceReader
from refdesk.errors import DependencyError, Overloaded, ToolFailure
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics

INDEX_PAUSE_FACTOR = 4.0
"""Pause between index updates while documents are being converted, as a multiple of the last update's duration."""

EMBED_INTERVAL_SECONDS = 10.0
"""Minimum interval between embedding batches while documents are being converted: full-text search comes first."""

NO_VECTORS = np.empty((0, 0), np.float32)
MIN_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 2.0

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(eq=False, repr=False)
class IngestWorker:
    """Worker that processes a tenant's queue."""

    _store: TenantStore
    _source_reader: SourceReader
    _embedder: Embedder | None
    _readers: int
    _metrics: Metrics
    _on_change: Callable[[], None]
    """Called whenever search results may differ."""
    _pauses: Pauses = PAUSES

    def __post_init__(self) -> None:
        self._index_thread = CapacityLimiter(1)
        """The index writers aren't thread-safe."""
        self._threads = CapacityLimiter(self._readers + 1)
        """Separate from the search threads, so that searches don't wait for ingestion."""
        self._claimed: set[int] = set()
        self._claim_lock = anyio.Lock()
        self._wakeup = anyio.Event()
        self._embedded_at = -EMBED_INTERVAL_SECONDS

    def wake(self) -> None:
        """Wake up idle loops."""
        self._wakeup.set()
        self._wakeup = anyio.Event()

    async def run(self) -> bool:
        """Work until the queue is empty. Returns False if another process holds the writer lock."""
        with hold_writer_lock(self._store.folder) as is_ours:
            if not is_ours:
                return False
            indexes = await self._run_in_index_thread(lambda: Indexes(self._store.folder, self._embedder))
            try:
                await self._work(indexes)
                if self._store.is_reindex_requested:
                    await self._run_in_index_thread(indexes.clear)
                    await self._work(indexes)
                    await self._run_in_index_thread(self._store.clear_reindex_request)
            finally:
                with CancelScope(shield=True):
                    await self._run_in_index_thread(indexes.close)
                    self._store.conversion_progress.clear()
            return True

    async def _work(self, indexes: Indexes) -> None:
        if (model := self._embedder) is not None:
            await self._run_sql(document_content.adopt_model, model.name)
        await self._update_indexes(indexes)
        async with anyio.create_task_group() as tasks:
            for _ in range(self._readers):
                tasks.start_soon(self._repeat, self._convert_next)
            if self._embedder is not None:
                tasks.start_soon(self._repeat, self._embed_next)
            await self._index_until_idle(indexes)
            tasks.cancel_scope.cancel()
        await self._run_sql(document_content.delete_unused_vectors)

    async def _repeat(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Repeat a step; if there was nothing to do, wait for a wakeup."""
        while True:
            wakeup = self._wakeup
            if not await step():
                with anyio.move_on_after(MAX_PAUSE_SECONDS):
                    await wakeup.wait()

    async def _index_until_idle(self, indexes: Indexes) -> None:
        """Update the indexes until no document is pending."""
        while True:
            wakeup = self._wakeup
            began = anyio.current_time()
            has_changed = await self._update_indexes(indexes)
            if not has_changed and not await self._run_sql(records.has_pending):
                return
            took = anyio.current_time() - began
            if has_changed:
                self.wake()  # embedding waits for the full-text index
                pause = took * INDEX_PAUSE_FACTOR if self._claimed else MIN_PAUSE_SECONDS
                await anyio.sleep(min(max(pause, MIN_PAUSE_SECONDS), MAX_PAUSE_SECONDS))
            else:
                with anyio.move_on_after(MAX_PAUSE_SECONDS):
                    await wakeup.wait()

    async def _update_indexes(self, indexes: Indexes) -> bool:
        has_changed = await self._store.run_with(self._index_thread, indexes.follow)
        if has_changed:
            await self._store.refresh()
            self._on_change()
        return has_changed

    async def _convert_next(self) -> bool:
        # One claim at a time: a task finished by another reader meanwhile would be claimed again.
        async with self._claim_lock:
            claimed, at = tuple(self._claimed), time.time()
            tasks = await self._run_sql(ingest_queue.next_tasks, at, 1, claimed)
            self._claimed.update(task.key for task in tasks)
        for task in tasks:
            self._store.conversion_progress[task.key] = 0.0
            try:
                await self._convert(task)
            finally:
                self._claimed.discard(task.key)
                self._store.conversion_progress.pop(task.key, None)
            self.wake()
        return bool(tasks)

    async def _convert(self, task: IngestTask) -> None:
        report_progress = partial(self._store.conversion_progress.__setitem__, task.key)
        try:
            content = await self._source_reader.load(
                self._store.tenant, task, report_progress, is_own=self._store.is_shared
            )
            await self._save(task, content)
        except (ToolFailure, Overloaded) as failure:
            retry_at = ingest_queue.compute_retry_time(task, failure, self._pauses.first_retry)
            await self._record_failure(task, failure.detail, retry_at)
        except DependencyError:
            raise
        except Exception as error:  # noqa: BLE001  one document must not block the others
            await self._record_failure(task, f"Unexpected error: {error!r}", None)

    async def _record_failure(self, task: IngestTask, error: str, retry_at: float | None) -> None:
        await self._run_sql(ingest_queue.record_failure, task, error, retry_at)
        self._metrics.documents.labels("failed" if retry_at is None else "postponed").inc()

    async def _save(self, task: IngestTask, content: SourceContent) -> None:
        packed, has_model = content.packed, self._embedder is not None

        def save(database: sqlite3.Connection) -> None:
            if packed is None:
                ingest_queue.mark_unchanged(database, task, content, has_model=has_model)
                return
            with PackedDocument.of(packed) as opened:
                document_content.store_document(database, task, content, document_content.compress(packed), opened)

        await self._run_sql(save)
        self._metrics.documents.labels("unchanged" if packed is None else "indexed").inc()

    async def _embed_next(self) -> bool:
        at = time.time()
        if self._claimed and anyio.current_time() - self._embedded_at < EMBED_INTERVAL_SECONDS:
            return False
        batch = await self._run_sql(document_content.next_batch, at)
        if self._embedder is None:
            return False
        if batch is None:
            return await self._probe_model(self._embedder)
        try:
            vectors = await self._embedder.embed_passages(batch.texts) if batch.texts else NO_VECTORS
        except DependencyError as error:
            message = f"Full-text search finds it; semantic search can't yet: {error.detail}"
            first_retry = self._pauses.first_retry
            await self._run_sql(document_content.postpone, batch, message, at, first_retry)
            return True
        await self._run_sql(document_content.store_vectors, batch, vectors)
        self._embedded_at = anyio.current_time()
        self._metrics.embedded_chunks.inc(len(batch.texts))
        self.wake()
        return True

    async def _probe_model(self, embedder: Embedder) -> bool:
        """Query a remote model once: without its dimensions no vectors can be indexed."""
        if embedder.dimensions:
            return False
        try:
            await embedder.embed_query("?")
        except DependencyError:
            return False  # retried later; the batch of a waiting document reports the error
        self.wake()
        return True

    async def _run_sql(self, work: Callable[[sqlite3.Connection, *Ts], T], *args: *Ts) -> T:
        return await self._store.run_with(self._threads, work, *args)

    async def _run_in_index_thread(self, work: Callable[[], T]) -> T:
        def run() -> T:
            with translate_errors("the index failed"):
                return work()

        return await to_thread.run_sync(run, limiter=self._index_thread)


E = TypeVar("E", bound=Exception)

MAX_WORKERS = 4
"""Tenants whose documents are ingested concurrently. Each takes some tens of megabytes."""


@dataclass(eq=False, repr=False)
class IngestScheduler:
    """Starts one ingest worker per tenant with pending work."""

    _stores: StorePool
    _embedder: Embedder | None
    _make_worker: Callable[[TenantStore], IngestWorker]
    _log: Log
    _pauses: Pauses

    def __post_init__(self) -> None:
        self._workers: dict[TenantId, IngestWorker | None] = {}
        """Workers by tenant, None while they wait for a slot."""
        self._checked: set[TenantId] = set()
        """Tenants without documents of an older version."""
        self._wakeup = anyio.Event()
        self._slots = anyio.Semaphore(MAX_WORKERS)

    def wake(self, store: TenantStore) -> None:
        """Look for work of this tenant now."""
        worker = self._workers.get(store.tenant)
        if worker is not None:
            worker.wake()
        self._wakeup.set()

    async def run(self) -> None:
        """Schedule work forever: of this process, left over by an earlier one, or queued by others."""
        async with anyio.create_task_group() as tasks:
            while True:
                self._wakeup = anyio.Event()
                for store in self._stores:
                    await self._schedule(tasks, store)
                with anyio.move_on_after(self._pauses.queue_poll):
                    await self._wakeup.wait()
                await self._stores.open_new()

    async def _schedule(self, tasks: TaskGroup, store: TenantStore) -> None:
        """Start a worker if the tenant has work. Errors of one tenant don't affect the others."""
        try:
            if await to_thread.run_sync(store.is_replaced):
                await self._stores.drop(store)
                return
            if await store.refresh_if_changed():
                self._stores.notify(store.tenant)
            if store.tenant in self._workers:
                return
            await self._queue_outdated(store)
            if await self._has_work(store):
                self._workers[store.tenant] = None
                tasks.start_soon(self._run_worker, store)
            else:
                store.error = None
        except DependencyError as error:
            self._report_error(store, error.detail)

    async def _queue_outdated(self, store: TenantStore) -> None:
        """Convert documents of an older version again, the first time that this process sees the tenant."""
        if store.tenant in self._checked:
            return
        if count := await store.run(document_content.queue_outdated):
            self._log.events.info(
                "engine.converting_again",
                tenant=store.tenant,
                documents=count,
                detail="an older version converted them; they stay searchable meanwhile",
            )
        self._checked.add(store.tenant)

    def _report_error(self, store: TenantStore, detail: str) -> None:
        store.error = detail
        self._log.events.error("engine.stopped", tenant=store.tenant, detail=detail)

    async def _has_work(self, store: TenantStore) -> bool:
        model = self._embedder
        # A remote model that hasn't answered yet has no vector index.
        has_vectors = model is not None and model.dimensions > 0

        def check(database: records.Database) -> bool:
            if (
                records.has_pending(database)
                or store.is_reindex_requested
                or (model and document_content.has_unembedded(database, model.name))
            ):
                return True
            return store.is_behind(records.read_last_change(database), has_vectors=has_vectors)

        return await store.run(check)

    async def _run_worker(self, store: TenantStore) -> None:
        has_worked, error = False, ""
        try:
            try:
                async with self._slots:
                    # It may have been retired while this waited for a slot.
                    store = await self._stores.get_or_create(store.tenant)
                    worker = self._workers[store.tenant] = self._make_worker(store)
                    store.busy += 1
                    try:
                        has_worked = await worker.run()
                    finally:
                        store.busy -= 1
                store.error = None
            except* DependencyError as failures:
                error = _get_first(failures).detail
            except* Exception as failures:  # noqa: BLE001  the scheduler must survive any failure
                # Unexpected. Other tenants continue, and this one is retried.
                error = f"unexpected error: {_get_first(failures)!r}"
            if error:
                self._report_error(store, error)
                # Not inside of `except*`, where Python 3.11.2 wraps a cancellation in a group.
                await anyio.sleep(self._pauses.error)
        finally:
            del self._workers[store.tenant]
            self._stores.notify(store.tenant)
            if has_worked:
                self._wakeup.set()  # documents may have been queued while it finished


def _get_first(failures: BaseExceptionGroup[E]) -> E:
    """Return one of the failures; the others have the same cause."""
    for failure in failures.exceptions:
        return _get_first(failure) if isinstance(failure, BaseExceptionGroup) else failure
    raise AssertionError("a group of exceptions is never empty")
