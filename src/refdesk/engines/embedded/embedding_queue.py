"""The second half of a document's way in: its chunks are embedded, the shortest document first.

A text that is embedded already, in whatever document, is not embedded again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import orjson
from numpy.typing import NDArray

from refdesk.engines.embedded.embedded_text import embedded_text, hash_of, packed_vector
from refdesk.engines.storage.rows import now, transaction

BATCH_TEXTS = 256
"""Embedded and kept at a time: some seconds of work, which is what an interruption costs."""

BATCH_DOCUMENTS = 64

LONGEST_RETRY_SECONDS = 300.0
"""Between two attempts to have a model's answer."""


def model_of(database: sqlite3.Connection) -> str:
    """The model that chunks are hashed for; it stays in mind while search is by words alone."""
    return str(database.execute("SELECT model FROM owner").fetchone()[0])


def is_to_be_embedded(database: sqlite3.Connection, model: str) -> bool:
    """Whether documents are in that this model has not embedded, though nobody waits for it."""
    unembedded = "SELECT EXISTS (SELECT 1 FROM documents WHERE stage = 'success' AND embedded < chunks)"
    return model_of(database) != model or bool(database.execute(unembedded).fetchone()[0])


def adopt(database: sqlite3.Connection, model: str) -> None:
    """Have whatever this model has not embedded embedded: all of it, if the model is another one than before."""
    with transaction(database):
        if model_of(database) != model:
            database.execute("UPDATE owner SET model = ?", (model,))
            for key, title in database.execute("SELECT key, title FROM documents").fetchall():
                _hash_anew(database, model, key, title)
        database.execute(
            "UPDATE documents SET stage = 'embedding', attempts = 0, retry_at = 0 "
            "WHERE stage IN ('success', 'finishing') AND embedded < chunks"
        )


def _hash_anew(database: sqlite3.Connection, model: str, document: int, title: str) -> None:
    rows = database.execute("SELECT key, path, text FROM chunks WHERE document = ?", (document,)).fetchall()
    database.executemany(
        "UPDATE chunks SET hash = ? WHERE key = ?",
        ((hash_of(model, title, orjson.loads(path), text), key) for key, path, text in rows),
    )
    database.execute(
        "UPDATE documents SET embedded = (SELECT count(*) FROM chunks JOIN embeddings USING (hash) "
        "WHERE document = documents.key) WHERE key = ?",
        (document,),
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts to embed, each with the hash that its vector is kept under."""

    documents: Sequence[int]
    hashes: Sequence[bytes]
    texts: Sequence[str]


def next_batch(database: sqlite3.Connection, at: float) -> Batch | None:
    """What is to be embedded next; None when nothing waits."""
    rows = database.execute(
        "SELECT key, title FROM documents WHERE stage = 'embedding' AND retry_at <= ? ORDER BY attempts, chunks, key "
        "LIMIT ?",
        (at, BATCH_DOCUMENTS),
    ).fetchall()
    found: dict[bytes, str] = {}
    documents: list[int] = []
    for key, title in rows:
        documents.append(key)
        missing = database.execute(
            "SELECT c.hash, c.path, c.text FROM chunks c LEFT JOIN embeddings e ON e.hash = c.hash "
            "WHERE c.document = ? AND e.hash IS NULL ORDER BY c.ordinal LIMIT ?",
            (key, BATCH_TEXTS - len(found)),
        )
        found |= {hash: embedded_text(title, orjson.loads(path), text) for hash, path, text in missing}
        if len(found) >= BATCH_TEXTS:
            break
    return Batch(documents, list(found), list(found.values())) if documents else None


def keep_vectors(database: sqlite3.Connection, batch: Batch, vectors: NDArray[np.float32]) -> None:
    """Keep what was embedded, and move the documents on that have all of theirs; one transaction."""
    with transaction(database):
        database.executemany(
            "INSERT OR REPLACE INTO embeddings VALUES (?, ?)",
            ((hash, packed_vector(vector)) for hash, vector in zip(batch.hashes, vectors, strict=True)),
        )
        for key in batch.documents:
            _count(database, key)


def _count(database: sqlite3.Connection, document: int) -> None:
    row = database.execute(
        "UPDATE documents SET updated_at = ?, error = NULL, embedded = (SELECT count(*) FROM chunks JOIN embeddings "
        "USING (hash) WHERE document = documents.key) WHERE key = ? AND stage = 'embedding' "
        "RETURNING embedded >= chunks",
        (now(), document),
    ).fetchone()
    if row is not None and row[0]:
        database.execute("UPDATE documents SET stage = 'finishing' WHERE key = ?", (document,))
        database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'vectors')", (document,))


def postpone(database: sqlite3.Connection, batch: Batch, why: str, at: float, first_retry: float) -> None:
    """Note that the model could not be had, and when it is asked again: ever later, but without end.

    `first_retry` is the pause before the second attempt, in seconds.
    """
    with transaction(database):
        for key in batch.documents:
            row = database.execute("SELECT attempts FROM documents WHERE key = ?", (key,)).fetchone()
            wait = min(first_retry * 3 ** min(row[0], 10), LONGEST_RETRY_SECONDS) if row else 0
            database.execute(
                "UPDATE documents SET error = ?, attempts = attempts + 1, retry_at = ?, updated_at = ? "
                "WHERE key = ? AND stage = 'embedding'",
                (why, at + wait, now(), key),
            )


def sweep(database: sqlite3.Connection) -> None:
    """Forget the vectors of texts that no document holds any more, once there are some for certain."""
    kept, used = database.execute("SELECT (SELECT count(*) FROM embeddings), (SELECT count(*) FROM chunks)").fetchone()
    if kept <= used:
        return
    with transaction(database):
        database.execute(
            "DELETE FROM embeddings WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.hash = embeddings.hash)"
        )
