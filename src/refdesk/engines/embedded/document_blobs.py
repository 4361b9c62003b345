"""Converted documents in the record: put in whole and in chunks, and opened again."""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

from refdesk.documents.model import Chunk
from refdesk.documents.packed_document import About, Shelf
from refdesk.engines.embedded.embedded_text import hash_of
from refdesk.engines.embedded.embedding_queue import model_of
from refdesk.engines.storage.queue import Arrived, Task
from refdesk.engines.storage.rows import json_text, now, transaction

COMPRESSION = 1
"""Of packed documents: the fastest; they shrink to a quarter, and more effort gains little."""


def keep(database: sqlite3.Connection, task: Task, arrived: Arrived, body: bytes, shelf: Shelf) -> None:
    """Put a document in place of what was there, in one transaction; nothing when it was asked for anew meanwhile."""
    about = shelf.about
    chunks = shelf.window("c1", 0, about.chunks) or []
    model = model_of(database)
    with transaction(database):
        updated = database.execute(
            "UPDATE documents SET stage = 'indexing', title = ?, media_type = ?, size_bytes = ?, stamp = ?, "
            "digest = ?, chunks = ?, embedded = 0, given = NULL, error = NULL, updated_at = ?, indexed_at = ? "
            "WHERE key = ? AND request = ? RETURNING collection",
            (_title(task, about), about.media_type, arrived.size, arrived.stamp, arrived.digest, len(chunks),
             now(), now(), task.key, task.request),
        ).fetchone()  # fmt: skip
        if updated is None:
            return
        database.execute("DELETE FROM chunks WHERE document = ?", (task.key,))
        database.executemany(
            "INSERT INTO chunks (document, ordinal, section, path, anchors, page, text, hash) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _chunk_row(task.key, ordinal, chunk, _title(task, about), model)
                for ordinal, chunk in enumerate(chunks, 1)
            ),
        )
        database.execute(
            "UPDATE documents SET embedded = (SELECT count(*) FROM chunks JOIN embeddings USING (hash) "
            "WHERE document = documents.key) WHERE key = ?",
            (task.key,),
        )
        database.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (task.key, body))
        database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'text')", (task.key,))
        database.execute("UPDATE collections SET updated_at = ? WHERE key = ?", (now(), *updated))


def _title(task: Task, about: About) -> str:
    return about.title or task.title


def _chunk_row(document: int, ordinal: int, chunk: Chunk, title: str, model: str) -> tuple[Any, ...]:
    hash = hash_of(model, title, chunk.path, chunk.text)
    return (document, ordinal, chunk.section, json_text(chunk.path), json_text(chunk.anchors), chunk.first_page,
            chunk.text, hash)  # fmt: skip


def compressed(packed: bytes) -> bytes:
    """A packed document as it is kept."""
    return zlib.compress(packed, COMPRESSION)


def shelf_of(body: bytes) -> Shelf:
    """A document that is kept, open."""
    return Shelf.of(zlib.decompress(body))
