"""Brings queued documents to R2R, in the background, whichever process has queued them; and removes what is given up.

One process at a time does it for all. Each step can be cut off at any moment and taken up again: what was sent has an
id that follows from its content, so that sending it again finds it there.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions
from refdesk.engines.r2r import catalogue, ingest_queue
from refdesk.engines.r2r.client import R2RClient, Sent
from refdesk.engines.r2r.ingest_queue import Job
from refdesk.engines.r2r.local_db import Record, Records
from refdesk.engines.r2r.schemas import RemoteDocument
from refdesk.engines.storage import queue
from refdesk.engines.storage.intake import Intake
from refdesk.engines.storage.queue import Arrived, Task
from refdesk.errors import (
    BreakerOpen,
    DependencyError,
    EngineError,
    R2RMisconfigured,
    R2RRefused,
    R2RUnreachable,
    RefdeskError,
    Refused,
    ToolFailure,
)
from refdesk.telemetry import Log, Metrics

MOST_ATTEMPTS = 4
"""On what may be better later, such as a page on the web."""

MOST_SENDINGS = 2
"""Of what R2R fails on: it has asked its models several times by then, and taken its time over it."""

PLACED_LOOKS = 5
"""At whether a document is in its collection: R2R calls it done a moment before it puts it there."""

UNSENT = (BreakerOpen, R2RMisconfigured, R2RUnreachable, Refused)
"""What says nothing about the document: it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPauses:
    """The intervals between the writer's attempts, in seconds."""

    look: float = 2.0
    """Between two looks for work that another process has queued or left behind."""
    poll: float = 0.5
    """Between two looks at a document that R2R is at."""
    stalled: float = 60.0
    """After which a document that nobody here has sent, and on which nothing moves, is sent anew: R2R was restarted."""
    first_retry: float = 2.0
    """Before the second attempt; each further one waits three times as long."""
    away: float = 5.0
    """Before a document is sent to R2R again that could not be reached."""


WRITER_PAUSES = WriterPauses()


class Writer:
    """Works through all tenants' queues."""

    def __init__(
        self,
        client: R2RClient,
        records: Records,
        conversions: Conversions,
        folder: Path,
        *,
        ingest_seconds: float,
        log: Log,
        metrics: Metrics,
        at_once: int = 2,
        closed: Sequence[Path] = (),
        pauses: WriterPauses = WRITER_PAUSES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._records = records
        self._intake = Intake(conversions, closed)
        self._lock = folder / "writer.lock"
        self._ingest_seconds = ingest_seconds
        self._log = log
        self._metrics = metrics
        self._at_once = at_once
        self._pauses = pauses
        self._clock = clock
        self._taken: set[tuple[TenantId, int]] = set()
        self._removals = asyncio.Lock()
        """So that nothing is removed that is just asked for again."""
        self._sweep_at = 0.0
        """When it is next tried to remove what could not be removed."""
        self._stranded: set[TenantId] = set()
        """Tenants with documents of which it could not even be noted that they failed."""
        self._news = anyio.Event()
        self._told: Callable[[Record], None] = lambda _: None

    def listen(self, told: Callable[[Record], None]) -> None:
        """Have `told` called whenever something about a tenant's documents is different."""
        self._told = told

    def nudge(self) -> None:
        """There is work."""
        self._news.set()

    async def run(self) -> None:
        """Work for as long as this process is the one that does; for ever."""
        while True:
            lock = await to_thread.run_sync(_lock, self._lock)
            if lock is None:
                await anyio.sleep(self._pauses.look)
                continue
            try:
                await self._work()
            except* Exception as failures:  # noqa: BLE001  the loop that supervises is the place for it
                # Nobody foresaw it. What was under way is taken up again.
                self._log.events.error("engine.stopped", detail=f"an unforeseen failure: {failures.exceptions[0]!r}")
                await anyio.sleep(self._pauses.away)
            finally:
                os.close(lock)

    async def _work(self) -> None:
        await self._records.prepare()
        for record in self._records:
            await record.run(ingest_queue.take_up_again)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._news = anyio.Event()
                try:
                    for record in self._records:
                        if self._clock() >= self._sweep_at:
                            await self.sweep(record)
                        await self._start(tasks, record)
                    await self._records.prepare()
                except DependencyError as error:
                    self._log.events.error("engine.stopped", detail=error.detail)
                with anyio.move_on_after(self._pauses.look):
                    await self._news.wait()

    async def _start(self, tasks: asyncio.TaskGroup, record: Record) -> None:
        room = self._at_once - len(self._taken)
        if room <= 0:
            return
        taken = [key for tenant, key in self._taken if tenant == record.tenant]
        if record.tenant in self._stranded and not taken:
            await record.run(ingest_queue.take_up_again)
            self._stranded.discard(record.tenant)
        at = self._clock()
        for task in await record.run(lambda database: queue.next_tasks(database, at, room, taken)):
            self._taken.add((record.tenant, task.key))
            tasks.create_task(self._bring(record, task))

    async def _bring(self, record: Record, task: Task) -> None:
        record.converting[task.key] = 0.0
        try:
            await self._bring_or_fail(record, task)
        except DependencyError as error:
            # The disk, not R2R: nothing can be noted, and the queue still has it.
            self._log.events.error("engine.stopped", tenant=record.tenant, detail=error.detail)
            self._stranded.add(record.tenant)
            await anyio.sleep(self._pauses.away)
        finally:
            self._taken.discard((record.tenant, task.key))
            record.converting.pop(task.key, None)
            self._told(record)
            self.nudge()

    async def _bring_or_fail(self, record: Record, task: Task) -> None:
        try:
            await self._bring_in(record, task)
        except UNSENT as error:
            await self._postpone(record, task, error)
        except (ToolFailure, EngineError) as failure:
            most = MOST_SENDINGS if isinstance(failure, EngineError) else MOST_ATTEMPTS
            again = self._retry_at(task.attempts, most) if failure.retryable else None
            await self._fail(record, task, failure.detail, again)
        except Exception as error:  # noqa: BLE001  what nobody foresaw in one document must not hold the others up
            await self._fail(record, task, f"An unforeseen failure: {error!r}", None)

    async def _bring_in(self, record: Record, task: Task) -> None:
        job = await record.run(lambda database: ingest_queue.begin(database, task))
        if job is None:
            return
        self._told(record)

        def told(share: float) -> None:
            record.converting[task.key] = share

        arrived = await self._intake.receive(record.tenant, job.to_read(record.tenant), told, is_own=False)
        if arrived.packed is None:
            await record.run(lambda database: queue.keep_unchanged(database, task, arrived, has_model=False))
            self._metrics.documents.labels("unchanged").inc()
            return
        await self._send(record, job, arrived, arrived.packed)

    async def _send(self, record: Record, job: Job, arrived: Arrived, packed: bytes) -> None:
        sent, chunks = await to_thread.run_sync(ingest_queue.made_ready, record.tenant, job, arrived, packed)
        async with self._removals:
            is_wanted = await record.run(lambda database: ingest_queue.note_sent(database, job, sent, chunks))
        if not is_wanted:
            return
        self._told(record)
        await self._place(sent, await self._deliver(sent))
        is_wanted = await record.run(lambda database: ingest_queue.replace_by(database, job, sent))
        await self.sweep(record)
        if is_wanted:
            await record.run(lambda database: ingest_queue.finish(database, job, arrived, sent, chunks))
            self._metrics.documents.labels("indexed").inc()
        record.touch()

    async def _deliver(self, sent: Sent) -> RemoteDocument:
        """Have R2R take a text in, and wait until it has."""
        try:
            found = await self._taken_in(sent)
            if found is None:
                # R2R began with it once, and nobody is at it any more.
                await self._client.delete_document(sent.id)
                found = await self._taken_in(sent)
        except R2RRefused as error:
            if error.status == 400:
                # What R2R says when the model that it has its embeddings from fails.
                raise EngineError(error.detail) from error
            raise
        if found is None:
            raise EngineError("R2R began with the document and then lost it.")
        if found.status == "failed":
            raise EngineError(f"R2R could not take the document in: {found.failure[:500] or 'it does not say why'}.")
        return found

    async def _taken_in(self, sent: Sent) -> RemoteDocument | None:
        is_new = await self._client.ingest(sent)
        return await self._settled(sent.id, self._ingest_seconds if is_new else self._pauses.stalled)

    async def _settled(self, id: str, patience: float) -> RemoteDocument | None:
        """The document once R2R is done with it; None when it is gone, or nothing has moved for so long."""
        last, since = "", time.monotonic()
        while True:
            found = await self._client.document(id)
            if found is None or found.status in ("success", "failed"):
                return found
            if found.status != last:
                last, since = found.status, time.monotonic()
            elif time.monotonic() - since > patience:
                return None
            await anyio.sleep(self._pauses.poll)

    async def _place(self, sent: Sent, found: RemoteDocument) -> None:
        """See to it that a document and its chunks are in their collection, and in no other."""
        for _ in range(PLACED_LOOKS):
            if sent.collection in found.collections and await self._is_found_in(sent):
                break
            await self._client.assign(sent.collection, sent.id)
            await anyio.sleep(self._pauses.poll)
            found = await self._client.document(sent.id) or found
        else:
            raise EngineError("R2R did not put the document into its collection.")
        for other in found.collections:
            if other != sent.collection:
                await self._client.unassign(other, sent.id)

    async def _is_found_in(self, sent: Sent) -> bool:
        chunks = await self._client.chunks(sent.id, 0, 1)
        return any(sent.collection in chunk.collections for chunk in chunks)

    async def sweep(self, record: Record) -> None:
        """Remove from R2R what is given up; what cannot be removed now is tried again."""
        left = await record.run(catalogue.leftovers)
        record.given_up = frozenset(uuid for uuid, _ in left)
        for uuid, collection in left:
            try:
                async with self._removals:
                    if uuid in await record.run(catalogue.given_up):
                        await self._remove(uuid, collection)
                        await record.run(partial(catalogue.is_gone, uuid=uuid))
            except RefdeskError as error:
                self._log.events.warning("r2r.not_removed", document=uuid, detail=error.detail)
                self._sweep_at = self._clock() + self._pauses.away
                return

    async def _remove(self, uuid: str, collection: str) -> None:
        found = await self._client.document(uuid)
        if found is None:
            return
        if found.own is None and set(found.collections) - {collection}:
            await self._client.unassign(collection, uuid)
        else:
            await self._client.delete_document(uuid)

    async def _postpone(self, record: Record, task: Task, error: RefdeskError) -> None:
        at = self._clock() + max(error.retry_after or 0.0, self._pauses.away)
        await record.run(lambda database: ingest_queue.postpone(database, task, error.detail, at))
        self._metrics.documents.labels("postponed").inc()

    async def _fail(self, record: Record, task: Task, why: str, retry_at: float | None) -> None:
        await record.run(lambda database: queue.fail(database, task, why, retry_at))
        self._metrics.documents.labels("failed" if retry_at is None else "postponed").inc()

    def _retry_at(self, attempts: int, most: int) -> float | None:
        if attempts + 1 >= most:
            return None
        return self._clock() + self._pauses.first_retry * float(3**attempts)


def _lock(path: Path) -> int | None:
    """The writer's lock, as an open file; None when another process has it. The kernel frees it when a process ends."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
