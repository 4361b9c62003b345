"""Queue of documents to convert, and reader of their sources, which is the first stage of ingestion.

A document's row is its own queue entry; its stage says what to do next.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions, File, download_to_file
from refdesk.documents.fetch import Progress
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import OpenedFile, Roots, open_local_file
from refdesk.documents.packed_document import PackedDocument
from refdesk.documents.scratch import scratch_file
from refdesk.engines.base import NotToBeRetried
from refdesk.engines.storage.records import IS_IN_PROGRESS, fetch_dicts, now, transaction
from refdesk.engines.storage.source_rows import decode_path, format_stamp
from refdesk.errors import (
    CannotOpen,
    CannotReach,
    ConverterCrashed,
    ConverterKilled,
    ConverterUnavailable,
    EngineError,
    RefdeskError,
)
from refdesk.support.fs import find_machine_fault

MAX_ATTEMPTS = 4
"""Attempts for errors that may be temporary, such as an unreachable web page."""

MAX_ATTEMPTS_OF: Mapping[type[RefdeskError], int] = {ConverterCrashed: 2, ConverterKilled: 8}
"""Attempts for errors whose cause may be elsewhere: a converter runs many documents, and other programs can kill it."""


MAX_RETRY_SECONDS = 7_200
"""Longest delay before another attempt. A later time was set before the clock was put back, so the attempt is due."""

IS_DUE = f"retry_at NOT BETWEEN ? AND ? + {MAX_RETRY_SECONDS}"
"""Condition of documents to convert or embed now. Both parameters are the current time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Intervals of a worker in seconds."""

    queue_poll: float = 2.0
    """Polling interval for work that another process has queued or left behind."""
    error: float = 5.0
    """Delay before work continues after an error such as a full disk, or while a service is unreachable."""
    first_retry: float = 2.0
    """Delay before the second attempt to convert or embed a document. It triples with each further attempt."""


PAUSES = Pauses()


@dataclass(frozen=True, slots=True)
class IngestTask:
    """Document waiting to be converted."""

    key: int
    id: str
    request: int
    """Number of the ingest request this task belongs to."""
    kind: str
    source: str
    root: str
    given: bytes | None
    title: str
    digest: str
    stamp: str
    attempts: int


@dataclass(frozen=True, slots=True)
class SourceContent:
    """Content of a source: a packed document, or None if it is unchanged."""

    packed: bytes | None
    digest: str
    stamp: str
    size: int


TASK_COLUMNS = "key, id, request, kind, source, root, given, title, digest, stamp, attempts"


def next_tasks(database: sqlite3.Connection, at: float, limit: int, taken: Sequence[int]) -> list[IngestTask]:
    """Return the documents to convert next: fewest attempts first, then in queue order."""
    marks = ", ".join("?" * len(taken))
    rows = database.execute(
        f"SELECT {TASK_COLUMNS} FROM documents WHERE {IS_IN_PROGRESS} AND stage = 'pending' AND {IS_DUE} "
        f"AND key NOT IN ({marks}) ORDER BY attempts, key LIMIT ?",
        [at, at, *taken, limit],
    )
    return [IngestTask(**row) for row in fetch_dicts(rows)]


def mark_unchanged(database: sqlite3.Connection, task: IngestTask, content: SourceContent, has_model: bool) -> None:
    """Mark a document as unchanged. Its version or metadata may differ, which needs no indexing.

    It moves on to embedding only if there is a model.
    """
    database.execute(
        "UPDATE documents SET stage = CASE WHEN ? AND embedded < chunks THEN 'embedding' ELSE 'success' END, "
        "stamp = ?, given = NULL, error = NULL, attempts = 0, updated_at = ? WHERE key = ? AND request = ?",
        (has_model, content.stamp, now(), task.key, task.request),
    )


def record_failure(database: sqlite3.Connection, task: IngestTask, error: str, retry_at: float | None) -> None:
    """Record a failed conversion and when to retry it. The previous version, if any, stays searchable."""
    database.execute(
        "UPDATE documents SET stage = ?, error = iif(indexed_at IS NULL, '', 'The previous version is shown. ') || ?, "
        "attempts = attempts + 1, retry_at = ?, updated_at = ? WHERE key = ? AND request = ?",
        ("pending" if retry_at is not None else "failed", error, retry_at or 0, now(), task.key, task.request),
    )


def compute_retry_time(
    task: IngestTask, failure: RefdeskError, first_retry: float, max_attempts: int = MAX_ATTEMPTS
) -> float | None:
    """Return the time of the next attempt, or None if there is none. The delay in seconds triples with each attempt."""
    has_attempts = task.attempts + 1 < MAX_ATTEMPTS_OF.get(type(failure), max_attempts)
    return time.time() + first_retry * 3**task.attempts if failure.retryable and has_attempts else None


def retry(database: sqlite3.Connection, id: str) -> bool:
    """Queue a failed document again with all attempts left. Returns False if it doesn't exist."""
    with transaction(database):
        row = database.execute("SELECT stage FROM documents WHERE id = ?", (id,)).fetchone()
        if row is None:
            return False
        if row[0] != "failed":
            how = "is indexed" if row[0] == "success" else "is in progress"
            raise NotToBeRetried(f"{id} {how}; only failed documents can be retried.")
        database.execute(
            "UPDATE documents SET stage = 'pending', request = request + 1, attempts = 0, retry_at = 0, error = NULL, "
            "updated_at = ? WHERE id = ?",
            (now(), id),
        )
    return True


@dataclass(frozen=True, slots=True)
class SourceReader:
    """Reads and converts the sources of queued documents."""

    _conversions: Conversions
    _blocked: Sequence[Path] = ()
    """Files and folders of the server itself, which are never read."""

    async def load(
        self, tenant: TenantId, task: IngestTask, on_progress: Callable[[float], None], *, is_own: bool
    ) -> SourceContent:
        """Return the current content of a document's source.

        `on_progress` gets the share of the conversion that is done.
        """

        async def progress(done: float, total: float | None, _doing: str) -> None:
            on_progress(done / total if total else 0.0)

        try:
            match task.kind:
                case "file":
                    return await self._load_file(task, progress, is_own)
                case "url":
                    return await self._load_url(task, progress)
                case "shelf":
                    return await self._load_converted(tenant, task)
                case _:
                    return await self._load_text(task, progress, is_own)
        except (ConverterUnavailable, MemoryError) as error:
            raise EngineError(f"cannot convert {task.id}: {error or 'out of memory'}") from error
        except (OSError, CannotReach) as error:
            if fault := find_machine_fault(error):
                # Stops all work until there is room again: no document fails because of it.
                raise EngineError(f"cannot convert {task.id}: {fault}") from error
            if isinstance(error, CannotReach):
                raise
            raise CannotOpen(f"{task.source or task.id} cannot be read: {error.strerror or error}.") from error

    async def _load_file(self, task: IngestTask, progress: Progress, is_own: bool) -> SourceContent:
        with await to_thread.run_sync(self._open, task) as opened:
            digest, stamp = await to_thread.run_sync(_digest_and_stamp, opened.fd)
            if digest == task.digest:
                return SourceContent(None, digest, stamp, opened.size)
            name = clean_name(opened.name) or "document"
            packed = await self._conversions.pack(File(opened.fd, name, opened.size, is_own=is_own), progress)
            if format_stamp(os.fstat(opened.fd)) != stamp:
                # Modified while it was converted: the digest may not match the content, so never treat it as unchanged.
                digest, stamp = hashlib.sha256(packed).hexdigest(), ""
        return SourceContent(packed, digest, stamp, opened.size)

    def _open(self, task: IngestTask) -> OpenedFile:
        if task.root:
            return Roots([Path(task.root)], self._blocked).open(task.source)
        return open_local_file(decode_path(task.source))

    async def _load_url(self, task: IngestTask, progress: Progress) -> SourceContent:
        etag, _, modified = task.stamp.partition("\n")
        async with self._conversions.open_download(task.source, etag, modified, progress) as fetched:
            if fetched.not_modified:
                return SourceContent(None, task.digest, task.stamp, fetched.size)
            stamp = f"{fetched.etag or ''}\n{fetched.last_modified or ''}"
            digest, _ = await to_thread.run_sync(_digest_and_stamp, fetched.file.fileno())
            if digest == task.digest:
                return SourceContent(None, digest, stamp, fetched.size)
            packed = await self._conversions.pack(download_to_file(fetched), progress)
        return SourceContent(packed, digest, stamp, fetched.size)

    async def _load_converted(self, tenant: TenantId, task: IngestTask) -> SourceContent:
        packed = await self._conversions.packed(tenant, task.source)
        if packed is None:
            raise CannotOpen(f"The converted document {task.source} has expired. Convert it again.")
        digest = hashlib.sha256(packed).hexdigest()
        size = await to_thread.run_sync(_read_original_size, packed)
        return SourceContent(None if digest == task.digest else packed, digest, "", size)

    async def _load_text(self, task: IngestTask, progress: Progress, is_own: bool) -> SourceContent:
        body = task.given or b""
        digest = hashlib.sha256(body).hexdigest()
        if digest == task.digest:
            return SourceContent(None, digest, "", len(body))
        packed = await pack_text(self._conversions, f"{task.title or 'text'}.md", body, progress, is_own=is_own)
        return SourceContent(packed, digest, "", len(body))


async def pack_text(conversions: Conversions, name: str, body: bytes, progress: Progress, *, is_own: bool) -> bytes:
    """Convert a text in memory to a packed document."""

    def write() -> None:
        file.write(body)
        file.flush()

    async with scratch_file() as file:
        await to_thread.run_sync(write)
        return await conversions.pack(File(file.fileno(), name, len(body), is_own=is_own), progress)


def _read_original_size(packed: bytes) -> int:
    """Return the size of the file a document was converted from, or the packed size if that is unknown."""
    with PackedDocument.of(packed) as opened:
        return opened.about.size or len(packed)


def _digest_and_stamp(fd: int) -> tuple[str, str]:
    """Return the SHA-256 of an open file, and its stamp from before reading, so that a later change is detected."""
    stamp = format_stamp(os.fstat(fd))
    os.lseek(fd, 0, os.SEEK_SET)
    with open(fd, "rb", buffering=0, closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest(), stamp
