"""Queue of documents to convert. A document's row is its own queue entry; its stage says what to do next."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from refdesk.engines.base import NotToBeRetried
from refdesk.engines.storage.records import IS_IN_PROGRESS, fetch_dicts, now, transaction

MAX_ATTEMPTS = 4
"""Attempts for errors that may be temporary, such as an unreachable web page."""


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
        f"SELECT {TASK_COLUMNS} FROM documents WHERE {IS_IN_PROGRESS} AND stage = 'pending' AND retry_at <= ? "
        f"AND key NOT IN ({marks}) ORDER BY attempts, key LIMIT ?",
        [at, *taken, limit],
    )
    return [IngestTask(**row) for row in fetch_dicts(rows)]


def mark_unchanged(database: sqlite3.Connection, task: IngestTask, content: SourceContent, has_model: bool) -> None:
    """Mark a document as unchanged. Its version or metadata may differ, which needs no indexing.

    It moves on to embedding only if there is a model.
    """
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = CASE WHEN ? AND embedded < chunks THEN 'embedding' ELSE 'success' END, "
            "stamp = ?, given = NULL, error = NULL, attempts = 0, updated_at = ? WHERE key = ? AND request = ?",
            (has_model, content.stamp, now(), task.key, task.request),
        )


def record_failure(database: sqlite3.Connection, task: IngestTask, error: str, retry_at: float | None) -> None:
    """Record a failed conversion and when to retry it. The previous version stays searchable."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = ?, error = ?, attempts = attempts + 1, retry_at = ?, updated_at = ? "
            "WHERE key = ? AND request = ?",
            ("pending" if retry_at is not None else "failed", error, retry_at or 0, now(), task.key, task.request),
        )


def compute_retry_delay(task: IngestTask, first_retry: float, max_attempts: int = MAX_ATTEMPTS) -> float | None:
    """Return the seconds until the next attempt, which triple with each, or None if no attempt is left."""
    return first_retry * float(3**task.attempts) if task.attempts + 1 < max_attempts else None


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
