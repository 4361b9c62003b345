"""A document's way from its source to what is sent to R2R, as SQL and values."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.documents.model import Chunk
from refdesk.documents.packed_document import Shelf
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.client import Sent
from refdesk.engines.r2r.naming import MAX_TITLE, all_without_unsafe, document_uuid, sent_text, without_unsafe
from refdesk.engines.storage.queue import Arrived, Task
from refdesk.engines.storage.rows import digest_of, named, now, transaction


@dataclass(frozen=True, slots=True)
class Job:
    """A document that is to be brought in: the task as the queue has it, and how it is to be labelled."""

    task: Task
    collection: str
    """The id of its collection at R2R."""
    name: str
    """Its path within the collection."""
    version: str
    metadata: Mapping[str, Any]
    current: str | None
    """The id at R2R of what answers to searches till then."""

    def uuid(self, tenant: TenantId, digest: str) -> str:
        """The id at R2R of the document with this content and these labels."""
        labels = orjson.dumps([digest, self.version, self.metadata], option=orjson.OPT_SORT_KEYS, default=str)
        return document_uuid(tenant, self.collection, self.name, digest_of(labels))

    def to_read(self, tenant: TenantId) -> Task:
        """The task; what is labelled anew is read as if it had never been, since the labels are sent with the text."""
        is_same = bool(self.task.digest) and self.current == self.uuid(tenant, self.task.digest)
        return self.task if is_same else replace(self.task, digest="", stamp="")


def begin(database: sqlite3.Connection, task: Task) -> Job | None:
    """Take a task on; None when it is gone, or asked for anew meanwhile."""
    with transaction(database):
        rows = named(
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
    current = catalogue.uuid_of(database, task.key)
    return Job(task, uuid, name, row["version"], orjson.loads(row["metadata"]), current)


def take_up_again(database: sqlite3.Connection) -> None:
    """Queue what an earlier process was at when it ended."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = 'pending', retry_at = 0 WHERE stage IN ('converting', 'embedding') "
            "AND kind <> ?",
            (catalogue.REMOTE,),
        )


def made_ready(tenant: TenantId, job: Job, arrived: Arrived, packed: bytes) -> tuple[Sent, int]:
    """What is sent to R2R, and how many chunks it has."""
    with Shelf.of(packed) as shelf:
        about = shelf.about
        chunks = shelf.window("c1", 0, about.chunks) or []
    title = without_unsafe(about.title or job.task.title or job.name)
    # R2R takes no document without text.
    chunks = chunks or [Chunk("c1", title, (), "start", None, None, 0)]
    own = {
        "name": job.name,
        "title": title,
        "version": job.version,
        "digest": arrived.digest,
        "source": without_unsafe(job.task.source),
        "media_type": about.media_type,
        "size": arrived.size,
        "chunks": len(chunks),
        "page_kind": about.page_kind,
        "indexed_at": now(),
        "metadata": all_without_unsafe(job.metadata),
    }
    uuid = job.uuid(tenant, arrived.digest)
    return Sent(uuid, job.collection, title[:MAX_TITLE], sent_text(chunks), own), len(chunks)


def note_sent(database: sqlite3.Connection, job: Job, sent: Sent, chunks: int) -> bool:
    """A document is about to go to R2R; False when it is no longer wanted."""
    own = sent.own
    with transaction(database):
        # It may have been given up in just this state before.
        catalogue.is_gone(database, sent.id)
        updated = database.execute(
            "UPDATE documents SET stage = 'embedding', title = ?, media_type = ?, size_bytes = ?, chunks = ?, "
            "embedded = 0, updated_at = ? WHERE key = ? AND request = ?",
            (own["title"], own["media_type"], own["size"], chunks, now(), job.task.key, job.task.request),
        )
        return updated.rowcount > 0


def replace_by(database: sqlite3.Connection, job: Job, sent: Sent) -> bool:
    """What was sent answers to searches from now on, and no longer what did before. False when it is not wanted."""
    with transaction(database):
        current = catalogue.uuid_of(database, job.task.key)
        wanted = database.execute(
            "SELECT 1 FROM documents WHERE key = ? AND request = ?", (job.task.key, job.task.request)
        ).fetchone()
        if wanted is None:
            if current != sent.id:
                catalogue.give_up(database, sent.id, sent.collection)
            return False
        if current is not None and current != sent.id:
            catalogue.give_up(database, current, sent.collection)
        database.execute("INSERT OR REPLACE INTO remote_documents VALUES (?, ?)", (job.task.key, sent.id))
    return True


def finish(database: sqlite3.Connection, job: Job, arrived: Arrived, sent: Sent, chunks: int) -> None:
    """A document has come in, and nothing is left to be done about it."""
    task = job.task
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = 'success', embedded = ?, stamp = ?, digest = ?, given = NULL, error = NULL, "
            "attempts = 0, updated_at = ?, indexed_at = ? WHERE key = ? AND request = ?",
            (chunks, arrived.stamp, arrived.digest, now(), sent.own["indexed_at"], task.key, task.request),
        )


def postpone(database: sqlite3.Connection, task: Task, why: str, retry_at: float) -> None:
    """R2R cannot be asked just now: the document waits, and no attempt is counted."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = 'pending', error = ?, retry_at = ?, updated_at = ? "
            "WHERE key = ? AND request = ?",
            (why, retry_at, now(), task.key, task.request),
        )
