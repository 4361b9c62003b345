"""Scheduler that starts ingest workers for queued documents, whichever process queued them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from refdesk.calls import TenantId
from refdesk.engines.embedded import document_blobs, embedding_queue
from refdesk.engines.embedded.embedding import Embedder
from refdesk.engines.embedded.ingest_worker import IngestWorker, Pauses
from refdesk.engines.embedded.tenant_store import StorePool, TenantStore
from refdesk.engines.storage import records
from refdesk.errors import DependencyError
from refdesk.telemetry import Log

E = TypeVar("E", bound=Exception)

MAX_WORKERS = 4
"""Tenants whose documents are ingested concurrently. Each takes some tens of megabytes."""


class IngestScheduler:
    """Starts one ingest worker per tenant with pending work."""

    def __init__(
        self,
        stores: StorePool,
        embedder: Embedder | None,
        make_worker: Callable[[TenantStore], IngestWorker],
        log: Log,
        pauses: Pauses,
    ) -> None:
        self._stores = stores
        self._embedder = embedder
        self._make_worker = make_worker
        self._log = log
        self._pauses = pauses
        self._workers: dict[TenantId, IngestWorker] = {}
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
            if await store.refresh_if_changed():
                self._stores.notify(store.tenant)
            if store.tenant in self._workers:
                return
            await self._queue_outdated(store)
            if await self._has_work(store):
                self._workers[store.tenant] = self._make_worker(store)
                tasks.start_soon(self._run_worker, store)
            else:
                store.error = None
        except DependencyError as error:
            self._report_error(store, error.detail)

    async def _queue_outdated(self, store: TenantStore) -> None:
        """Convert documents of an older version again, the first time that this process sees the tenant."""
        if store.tenant in self._checked:
            return
        if count := await store.run(document_blobs.queue_outdated):
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
                or (model and embedding_queue.has_unembedded(database, model.name))
            ):
                return True
            return store.is_behind(records.read_last_change(database), has_vectors=has_vectors)

        return await store.run(check)

    async def _run_worker(self, store: TenantStore) -> None:
        store.busy += 1
        has_worked = False
        try:
            async with self._slots:
                has_worked = await self._workers[store.tenant].run()
            store.error = None
        except* DependencyError as failures:
            self._report_error(store, _get_first(failures).detail)
            await anyio.sleep(self._pauses.error)
        except* Exception as failures:  # noqa: BLE001  the scheduler must survive any failure
            # Unexpected. Other tenants continue, and this one is retried.
            self._report_error(store, f"unexpected error: {_get_first(failures)!r}")
            await anyio.sleep(self._pauses.error)
        finally:
            store.busy -= 1
            del self._workers[store.tenant]
            self._stores.notify(store.tenant)
            if has_worked:
                self._wakeup.set()  # documents may have been queued while it finished


def _get_first(failures: BaseExceptionGroup[E]) -> E:
    """Return one of the failures; the others have the same cause."""
    for failure in failures.exceptions:
        return _get_first(failure) if isinstance(failure, BaseExceptionGroup) else failure
    raise AssertionError("a group of exceptions is never empty")
