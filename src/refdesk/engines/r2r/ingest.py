"""Ingest worker of the R2R engine: sends queued documents to R2R and deletes obsolete ones.

One process at a time does it for all tenants. Each step can be interrupted and resumed: a document's R2R id is derived
from its content, so that sending it again is idempotent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import orjson
from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.model import Chunk
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import INGESTION_MODE, strip_provenance
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.catalogue import Database, LocalDb, LocalDbPool
from refdesk.engines.r2r.client import SLOW_MODES, OutgoingDocument, R2RClient
from refdesk.engines.r2r.schemas import (
    MAX_TITLE,
    RemoteDocument,
    encode_chunks,
    make_document_uuid,
    strip_unsafe,
    strip_unsafe_values,
)
from refdesk.engines.storage import ingest_queue
from refdesk.engines.storage.databases import hold_writer_lock
from refdesk.engines.storage.ingest_queue import IngestTask, Pauses, SourceContent, SourceReader
from refdesk.engines.storage.records import REMOTE, now, transaction
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
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics

MAX_SEND_ATTEMPTS = 2
"""Attempts for documents that R2R fails on. It has retried its models several times by then."""

PLACEMENT_CHECKS = 5
"""Checks whether a document is in its collection: R2R reports success a moment before it adds it there."""

POSTPONING_ERRORS = (BreakerOpen, R2RMisconfigured, R2RUnreachable, Refused)
"""Errors that aren't caused by the document: it stays queued."""


@dataclass(frozen=True, slots=True, kw_only=True)
class R2RPauses(Pauses):
    """Intervals of the ingest worker in seconds."""

    poll: float = 0.5
    """Polling interval for a document that R2R is processing."""
    stalled: float = 60.0
    """Time without progress after which a document sent by an earlier process is sent again: R2R was restarted."""


R2R_PAUSES = R2RPauses()


@dataclass(frozen=True, slots=True)
class Job:
    """Document to ingest: its task and the labels to send with it."""

    task: IngestTask
    collection: str
    """Id of its collection in R2R."""
    name: str
    """Path within the collection."""
    version: str
    metadata: Mapping[str, Any]
    current: str | None
    """R2R id of the version that is searchable until then."""

    def make_uuid(self, tenant: TenantId, digest: str) -> str:
        """Return the R2R id of a document with this content and these labels."""
        metadata = strip_provenance(self.metadata)
        labels = orjson.dumps([digest, self.version, metadata], option=orjson.OPT_SORT_KEYS, default=str)
        return make_document_uuid(tenant, self.collection, self.name, sha256(labels).hexdigest())

    def make_task(self, tenant: TenantId) -> IngestTask:
        """Return the task. If the labels have changed, the source is read again, since they are sent with the text."""
        is_same = bool(self.task.digest) and self.current == self.make_uuid(tenant, self.task.digest)
        return self.task if is_same else replace(self.task, digest="", stamp="")


def start_job(database: Database, task: IngestTask) -> Job | None:
    """Start a task. Returns None if it was deleted or requested again.

    Raises R2RUnreachable if its collection isn't in R2R yet, which was down when it was made.
    """
    with transaction(database):
        row = database.execute(
            "UPDATE documents SET stage = 'converting' WHERE key = ? AND request = ? "
            "RETURNING id, version, metadata, collection",
            (task.key, task.request),
        ).fetchone()
        if row is None:
            return None
        id, version, metadata, collection = row
        slug, uuid = database.execute(
            "SELECT c.id, r.uuid FROM collections c LEFT JOIN remote_collections r ON r.collection = c.key "
            "WHERE c.key = ?",
            (collection,),
        ).fetchone()
        if uuid is None:
            raise R2RUnreachable(f"R2R doesn't have the collection {slug!r} yet. Refdesk creates it when R2R is back.")
    current = catalogue.read_uuid(database, task.key)
    return Job(task, uuid, id.removeprefix(f"{slug}/"), version, orjson.loads(metadata), current)


def requeue_interrupted(database: Database) -> None:
    """Queue documents again that an earlier process had started."""
    database.execute(
        "UPDATE documents SET stage = 'pending', retry_at = 0 WHERE stage IN ('converting', 'embedding') AND kind <> ?",
        (REMOTE,),
    )


def prepare_upload(tenant: TenantId, job: Job, content: SourceContent, packed: bytes) -> OutgoingDocument:
    """Return the document to send to R2R."""
    with PackedDocument.of(packed) as opened:
        about = opened.about
        chunks = opened.window("c1", 0, about.chunks) or []
    title = strip_unsafe(about.title or job.task.title or job.name)
    own = {
        "name": job.name,
        "title": title,
        "version": job.version,
        "digest": content.digest,
        "source": strip_unsafe(job.task.source),
        "media_type": about.media_type,
        "size": content.size,
        "chunks": len(chunks),
        "page_kind": about.page_kind,
        "indexed_at": now(),
        "metadata": strip_unsafe_values(job.metadata),
    }
    # Without text, the same file may have some another time, when text recognition is installed.
    uuid = job.make_uuid(tenant, content.digest if chunks else f"{content.digest} without text")
    # R2R rejects documents without text.
    chunks = chunks or [Chunk("c1", title, (), "start", None, None, 0)]
    mode = job.metadata.get(INGESTION_MODE)
    return OutgoingDocument(
        uuid, job.collection, title[:MAX_TITLE], encode_chunks(chunks), own, mode if mode in SLOW_MODES else "fast"
    )


def mark_sent(database: Database, job: Job, sent: OutgoingDocument) -> bool:
    """Record that a document is about to be sent. Returns False if it is no longer wanted."""
    own = sent.own
    with transaction(database):
        # The same content may have been deleted before.
        catalogue.remove_tombstone(database, sent.id)
        updated = database.execute(
            "UPDATE documents SET stage = 'embedding', title = ?, media_type = ?, size_bytes = ?, chunks = ?, "
            "embedded = 0, updated_at = ? WHERE key = ? AND request = ?",
            (own["title"], own["media_type"], own["size"], own["chunks"], now(), job.task.key, job.task.request),
        )
        return updated.rowcount > 0


def switch_to(database: Database, job: Job, sent: OutgoingDocument) -> bool:
    """Make the sent document the searchable version. Returns False if it is no longer wanted."""
    with transaction(database):
        current = catalogue.read_uuid(database, job.task.key)
        wanted = database.execute(
            "SELECT 1 FROM documents WHERE key = ? AND request = ?", (job.task.key, job.task.request)
        ).fetchone()
        if wanted is None:
            if current != sent.id:
                catalogue.add_tombstone(database, sent.id, sent.collection)
            return False
        if current is not None and current != sent.id:
            catalogue.add_tombstone(database, current, sent.collection)
        database.execute("INSERT OR REPLACE INTO remote_documents VALUES (?, ?)", (job.task.key, sent.id))
    return True


def finish_job(database: Database, job: Job, content: SourceContent, sent: OutgoingDocument) -> None:
    """Mark a document as ingested."""
    database.execute(
        "UPDATE documents SET stage = 'success', embedded = ?, stamp = ?, digest = ?, given = NULL, error = NULL, "
        "attempts = 0, updated_at = ?, indexed_at = ? WHERE key = ? AND request = ?",
        (sent.own["chunks"], content.stamp, content.digest, now(), sent.own["indexed_at"], job.task.key,
         job.task.request),
    )  # fmt: skip


def postpone_job(database: Database, task: IngestTask, error: str, retry_at: float) -> None:
    """Queue a document again while R2R is unreachable, without counting an attempt."""
    database.execute(
        "UPDATE documents SET stage = 'pending', error = ?, retry_at = ?, updated_at = ? WHERE key = ? AND request = ?",
        (error, retry_at, now(), task.key, task.request),
    )


@dataclass(eq=False, repr=False)
class R2RIngestWorker:
    """Worker that processes the queues of all tenants."""

    _client: R2RClient
    _local_dbs: LocalDbPool
    _source_reader: SourceReader
    _folder: Path
    _ingest_seconds: float
    _concurrency: int
    _log: Log
    _metrics: Metrics
    _pauses: R2RPauses

    def __post_init__(self) -> None:
        self._claimed: set[tuple[TenantId, int]] = set()
        self._removal_lock = asyncio.Lock()
        """Prevents deleting a document that is being ingested again."""
        self._delete_leftovers_at = 0.0
        """Time of the next attempt to delete leftovers."""
        self._stranded: set[TenantId] = set()
        """Tenants with documents whose failure couldn't be recorded."""
        self._wakeup = anyio.Event()

    def wake(self) -> None:
        """Look for work now."""
        self._wakeup.set()

    async def run(self) -> None:
        """Work forever, while this process holds the writer lock."""
        while True:
            with hold_writer_lock(self._folder) as is_ours:
                pause = self._pauses.queue_poll
                try:
                    if is_ours:
                        await self._work()
                except* Exception as failures:  # noqa: BLE001  the worker must survive any failure
                    # Unexpected. Interrupted documents are resumed.
                    self._log.events.error("engine.stopped", detail=f"unexpected error: {failures.exceptions[0]!r}")
                    pause = self._pauses.error
                # Not inside of `except*`, where Python 3.11.2 wraps a cancellation in a group.
                await anyio.sleep(pause)

    async def _work(self) -> None:
        await self._local_dbs.open_new()
        for local_db in self._local_dbs:
            await local_db.run(requeue_interrupted)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wakeup = anyio.Event()
                try:
                    for local_db in self._local_dbs:
                        if time.monotonic() >= self._delete_leftovers_at:
                            await self.delete_leftovers(local_db)
                        await self._start_tasks(tasks, local_db)
                    await self._local_dbs.open_new()
                except DependencyError as error:
                    self._log.events.error("engine.stopped", detail=error.detail)
                with anyio.move_on_after(self._pauses.queue_poll):
                    await self._wakeup.wait()

    async def _start_tasks(self, tasks: asyncio.TaskGroup, local_db: LocalDb) -> None:
        room = self._concurrency - len(self._claimed)
        if room <= 0:
            return
        claimed = [key for tenant, key in self._claimed if tenant == local_db.tenant]
        if local_db.tenant in self._stranded and not claimed:
            await local_db.run(requeue_interrupted)
            self._stranded.discard(local_db.tenant)
        at = time.time()
        for task in await local_db.run(ingest_queue.next_tasks, at, room, claimed):
            self._claimed.add((local_db.tenant, task.key))
            tasks.create_task(self._process(local_db, task))

    async def _process(self, local_db: LocalDb, task: IngestTask) -> None:
        local_db.conversion_progress[task.key] = 0.0
        try:
            await self._ingest_or_fail(local_db, task)
        except DependencyError as error:
            # The disk failed, not R2R: nothing can be recorded, but the task is still queued.
            self._log.events.error("engine.stopped", tenant=local_db.tenant, detail=error.detail)
            self._stranded.add(local_db.tenant)
            await anyio.sleep(self._pauses.error)
        finally:
            self._claimed.discard((local_db.tenant, task.key))
            local_db.conversion_progress.pop(task.key, None)
            self._local_dbs.notify(local_db.tenant)
            self.wake()

    async def _ingest_or_fail(self, local_db: LocalDb, task: IngestTask) -> None:
        try:
            await self._ingest(local_db, task)
        except POSTPONING_ERRORS as error:
            detail, at = error.detail, time.time() + max(error.retry_after or 0.0, self._pauses.error)
            await local_db.run(postpone_job, task, detail, at)
            self._metrics.documents.labels("postponed").inc()
        except (ToolFailure, EngineError) as failure:
            max_attempts = MAX_SEND_ATTEMPTS if isinstance(failure, EngineError) else ingest_queue.MAX_ATTEMPTS
            retry_at = ingest_queue.compute_retry_time(task, failure, self._pauses.first_retry, max_attempts)
            await self._record_failure(local_db, task, failure.detail, retry_at)
        except Exception as error:  # noqa: BLE001  one document must not block the others
            await self._record_failure(local_db, task, f"Unexpected error: {error!r}", None)

    async def _ingest(self, local_db: LocalDb, task: IngestTask) -> None:
        job = await local_db.run(start_job, task)
        if job is None:
            return
        self._local_dbs.notify(local_db.tenant)
        report_progress = partial(local_db.conversion_progress.__setitem__, task.key)
        content = await self._source_reader.load(
            local_db.tenant, job.make_task(local_db.tenant), report_progress, is_own=False
        )
        if content.packed is None:
            await local_db.run(ingest_queue.mark_unchanged, task, content, False)
            self._metrics.documents.labels("unchanged").inc()
            return
        await self._send(local_db, job, content, content.packed)

    async def _send(self, local_db: LocalDb, job: Job, content: SourceContent, packed: bytes) -> None:
        outgoing = await to_thread.run_sync(prepare_upload, local_db.tenant, job, content, packed)
        async with self._removal_lock:
            is_wanted = await local_db.run(mark_sent, job, outgoing)
        if not is_wanted:
            return
        self._local_dbs.notify(local_db.tenant)
        await self._ensure_collection(outgoing, await self._deliver(outgoing))
        is_wanted = await local_db.run(switch_to, job, outgoing)
        await self.delete_leftovers(local_db)
        if is_wanted:
            await local_db.run(finish_job, job, content, outgoing)
            self._metrics.documents.labels("indexed").inc()
        local_db.mark_changed()

    async def _deliver(self, outgoing: OutgoingDocument) -> RemoteDocument:
        """Send a text to R2R and wait until it is ingested."""
        try:
            document = await self._upload(outgoing)
            if document is None:
                # R2R started it once and isn't processing it any more.
                await self._client.delete_document(outgoing.id)
                document = await self._upload(outgoing)
        except R2RRefused as error:
            if error.status == 400:
                # R2R's status if its embedding model fails.
                raise EngineError(error.detail) from error
            raise
        if document is None:
            raise EngineError("R2R lost the document during ingestion.")
        if document.status == "failed":
            raise EngineError(f"R2R could not ingest the document: {document.failure[:500] or 'no reason given'}.")
        return document

    async def _upload(self, outgoing: OutgoingDocument) -> RemoteDocument | None:
        is_new = await self._client.ingest(outgoing)
        return await self._wait_until_done(outgoing.id, self._ingest_seconds if is_new else self._pauses.stalled)

    async def _wait_until_done(self, id: str, stall_seconds: float) -> RemoteDocument | None:
        """Return the document once R2R has finished it, or None if it is gone or has stalled."""
        last, since = "", time.monotonic()
        while True:
            document = await self._client.get_document(id)
            if document is None or document.status in ("success", "failed"):
                return document
            if document.status != last:
                last, since = document.status, time.monotonic()
            elif time.monotonic() - since > stall_seconds:
                return None
            await anyio.sleep(self._pauses.poll)

    async def _ensure_collection(self, outgoing: OutgoingDocument, document: RemoteDocument) -> None:
        """Ensure that a document and its chunks are in their collection and in no other."""
        for _ in range(PLACEMENT_CHECKS):
            if outgoing.collection in document.collections:
                chunks = await self._client.get_chunks(outgoing.id, 0, 1)
                if any(outgoing.collection in chunk.collections for chunk in chunks):
                    break
            await self._client.assign(outgoing.collection, outgoing.id)
            await anyio.sleep(self._pauses.poll)
            document = await self._client.get_document(outgoing.id) or document
        else:
            raise EngineError("R2R did not add the document to its collection.")
        for other in document.collections:
            if other != outgoing.collection:
                await self._client.unassign(other, outgoing.id)

    async def delete_leftovers(self, local_db: LocalDb) -> None:
        """Delete obsolete documents from R2R. Failures are retried later."""
        left = await local_db.run(catalogue.list_leftovers)
        local_db.tombstones = frozenset(left)
        for uuid, collection in left.items():
            try:
                async with self._removal_lock:
                    if uuid in await local_db.run(catalogue.list_leftovers):
                        await self._delete_remote(uuid, collection)
                        await local_db.run(catalogue.remove_tombstone, uuid)
            except RefdeskError as error:
                self._log.events.warning("r2r.not_removed", document=uuid, detail=error.detail)
                self._delete_leftovers_at = time.monotonic() + self._pauses.error
                return

    async def _delete_remote(self, uuid: str, collection: str) -> None:
        document = await self._client.get_document(uuid)
        if document is None:
            return
        if document.own is None and set(document.collections) - {collection}:
            await self._client.unassign(collection, uuid)
        else:
            await self._client.delete_document(uuid)

    async def _record_failure(self, local_db: LocalDb, task: IngestTask, error: str, retry_at: float | None) -> None:
        await local_db.run(ingest_queue.record_failure, task, error, retry_at)
        self._metrics.documents.labels("failed" if retry_at is None else "postponed").inc()
