"""The queue of documents to be read: a document is its own entry in it, and its stage says what is to be done next."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from refdesk.engines.base import NotToBeRetried
from refdesk.engines.storage.rows import IS_UNDER_WAY, named, now, transaction


@dataclass(frozen=True, slots=True)
class Task:
    """A document that waits to be read."""

    key: int
    id: str
    request: int
    """Which asking this is the answer to."""
    kind: str
    source: str
    root: str
    given: bytes | None
    title: str
    digest: str
    stamp: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a source gave: a packed document, or None when it has not changed."""

    packed: bytes | None
    digest: str
    stamp: str
    size: int


TASK_COLUMNS = "key, id, request, kind, source, root, given, title, digest, stamp, attempts"


def next_tasks(database: sqlite3.Connection, at: float, limit: int, taken: Sequence[int]) -> list[Task]:
    """The documents to read next: those that have failed least, in the order in which they were asked for."""
    marks = ", ".join("?" * len(taken))
    rows = database.execute(
        f"SELECT {TASK_COLUMNS} FROM documents WHERE {IS_UNDER_WAY} AND stage = 'pending' AND retry_at <= ? "
        f"AND key NOT IN ({marks}) ORDER BY attempts, key LIMIT ?",
        [at, *taken, limit],
    )
    return [Task(**row) for row in named(rows)]


def keep_unchanged(database: sqlite3.Connection, task: Task, arrived: Arrived, *, has_model: bool) -> None:
    """Note that a document is still what it was; its version or metadata may have changed, which need no index.

    It goes on to be embedded only if there is a model to embed it.
    """
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = CASE WHEN ? AND embedded < chunks THEN 'embedding' ELSE 'success' END, "
            "stamp = ?, given = NULL, error = NULL, attempts = 0, updated_at = ? WHERE key = ? AND request = ?",
            (has_model, arrived.stamp, now(), task.key, task.request),
        )


def fail(database: sqlite3.Connection, task: Task, why: str, retry_at: float | None) -> None:
    """Note that a document could not be read, and when it is tried again; what was there before goes on answering."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = ?, error = ?, attempts = attempts + 1, retry_at = ?, updated_at = ? "
            "WHERE key = ? AND request = ?",
            ("pending" if retry_at is not None else "failed", why, retry_at or 0, now(), task.key, task.request),
        )


def retry(database: sqlite3.Connection, id: str) -> bool:
    """Put a document that has failed back into the queue, with all its attempts before it; whether it is there."""
    with transaction(database):
        row = database.execute("SELECT stage FROM documents WHERE id = ?", (id,)).fetchone()
        if row is None:
            return False
        if row[0] != "failed":
            how = "is in" if row[0] == "success" else "is on its way in"
            raise NotToBeRetried(f"{id} {how}; only a document that has failed is tried again.")
        database.execute(
            "UPDATE documents SET stage = 'pending', request = request + 1, attempts = 0, retry_at = 0, error = NULL, "
            "updated_at = ? WHERE id = ?",
            (now(), id),
        )
    return True
