"""Ingestion state of documents on their way to R2R."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.documents.model import Chunk
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.client import OutgoingDocument
from refdesk.engines.r2r.naming import MAX_TITLE, encode_chunks, make_document_uuid, strip_unsafe, strip_unsafe_values
from refdesk.engines.storage.queue import IngestTask, SourceContent
from refdesk.engines.storage.records import fetch_dicts, now, transaction


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
        labels = orjson.dumps([digest, self.version, self.metadata], option=orjson.OPT_SORT_KEYS, default=str)
        return make_document_uuid(tenant, self.collection, self.name, sha256(labels).hexdigest())

    def make_task(self, tenant: TenantId) -> IngestTask:
        """Return the task. If the labels have changed, the source is read again, since they are sent with the text."""
        is_same = bool(self.task.digest) and self.current == self.make_uuid(tenant, self.task.digest)
        return self.task if is_same else replace(self.task, digest="", stamp="")


def start(database: sqlite3.Connection, task: IngestTask) -> Job | None:
    """Start a task. Returns None if it was deleted or requested again."""
    with transaction(database):
        rows = fetch_dicts(
            database.execute(
                "UPDATE documents SET stage = 'converting' WHERE key = ? AND request = ? "
                "RETURNING id, version, metadata, collection",
                (task.key, task.request),
            )
        )
        row = next(rows, None)
        if row is None:
            return None
        slug, uuid = database.execute(
            "SELECT c.id, r.uuid FROM collections c JOIN remote_collections r ON r.collection = c.key WHERE c.key = ?",
            (row["collection"],),
        ).fetchone()
    name = str(row["id"]).removeprefix(f"{slug}/")
    current = catalogue.read_uuid(database, task.key)
    return Job(task, uuid, name, row["version"], orjson.loads(row["metadata"]), current)


def requeue_interrupted(database: sqlite3.Connection) -> None:
    """Queue documents again that an earlier process had started."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = 'pending', retry_at = 0 WHERE stage IN ('converting', 'embedding') "
            "AND kind <> ?",
            (catalogue.REMOTE,),
        )


def prepare_upload(tenant: TenantId, job: Job, content: SourceContent, packed: bytes) -> tuple[OutgoingDocument, int]:
    """Return the document to send to R2R, and its number of chunks."""
    with PackedDocument.of(packed) as opened:
        about = opened.about
        chunks = opened.window("c1", 0, about.chunks) or []
    title = strip_unsafe(about.title or job.task.title or job.name)
    # R2R rejects documents without text.
    chunks = chunks or [Chunk("c1", title, (), "start", None, None, 0)]
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
    uuid = job.make_uuid(tenant, content.digest)
    return OutgoingDocument(uuid, job.collection, title[:MAX_TITLE], encode_chunks(chunks), own), len(chunks)


def mark_sent(database: sqlite3.Connection, job: Job, sent: OutgoingDocument, chunks: int) -> bool:
    """Record that a document is about to be sent. Returns False if it is no longer wanted."""
    own = sent.own
    with transaction(database):
        # The same content may have been deleted before.
        catalogue.remove_tombstone(database, sent.id)
        updated = database.execute(
            "UPDATE documents SET stage = 'embedding', title = ?, media_type = ?, size_bytes = ?, chunks = ?, "
            "embedded = 0, updated_at = ? WHERE key = ? AND request = ?",
            (own["title"], own["media_type"], own["size"], chunks, now(), job.task.key, job.task.request),
        )
        return updated.rowcount > 0


def switch_to(database: sqlite3.Connection, job: Job, sent: OutgoingDocument) -> bool:
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


def finish(database: sqlite3.Connection, job: Job, content: SourceContent, sent: OutgoingDocument, chunks: int) -> None:
    """Mark a document as ingested."""
    task = job.task
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = 'success', embedded = ?, stamp = ?, digest = ?, given = NULL, error = NULL, "
            "attempts = 0, updated_at = ?, indexed_at = ? WHERE key = ? AND request = ?",
            (chunks, content.stamp, content.digest, now(), sent.own["indexed_at"], task.key, task.request),
        )


def postpone(database: sqlite3.Connection, task: IngestTask, error: str, retry_at: float) -> None:
    """Queue a document again while R2R is unreachable, without counting an attempt."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = 'pending', error = ?, retry_at = ?, updated_at = ? "
            "WHERE key = ? AND request = ?",
            (error, retry_at, now(), task.key, task.request),
        )
