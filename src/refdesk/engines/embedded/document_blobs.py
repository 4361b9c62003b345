"""Storage of packed documents and their chunks in the document store."""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

from refdesk.documents.model import Chunk
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.embedded.embedded_text import hash_text
from refdesk.engines.embedded.embedding_queue import read_model
from refdesk.engines.storage.queue import IngestTask, SourceContent
from refdesk.engines.storage.rows import dump_json, now, transaction

COMPRESSION = 1
"""Zlib level of packed documents: the fastest one. They shrink to a quarter; higher levels gain little."""


def keep(
    database: sqlite3.Connection, task: IngestTask, content: SourceContent, body: bytes, opened: PackedDocument
) -> None:
    """Replace a document's content and chunks in one transaction. Does nothing if it was requested again meanwhile."""
    about = opened.about
    title = about.title or task.title
    chunks = opened.window("c1", 0, about.chunks) or []
    model = read_model(database)
    with transaction(database):
        updated = database.execute(
            "UPDATE documents SET stage = 'indexing', title = ?, media_type = ?, size_bytes = ?, stamp = ?, "
            "digest = ?, chunks = ?, embedded = 0, given = NULL, error = NULL, updated_at = ?, indexed_at = ? "
            "WHERE key = ? AND request = ? RETURNING collection",
            (title, about.media_type, content.size, content.stamp, content.digest, len(chunks),
             now(), now(), task.key, task.request),
        ).fetchone()  # fmt: skip
        if updated is None:
            return
        database.execute("DELETE FROM chunks WHERE document = ?", (task.key,))
        database.executemany(
            "INSERT INTO chunks (document, ordinal, section, path, anchors, page, text, hash) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (_make_chunk_row(task.key, ordinal, chunk, title, model) for ordinal, chunk in enumerate(chunks, 1)),
        )
        database.execute(
            "UPDATE documents SET embedded = (SELECT count(*) FROM chunks JOIN embeddings USING (hash) "
            "WHERE document = documents.key) WHERE key = ?",
            (task.key,),
        )
        database.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (task.key, body))
        database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'text')", (task.key,))
        database.execute("UPDATE collections SET updated_at = ? WHERE key = ?", (now(), *updated))


def _make_chunk_row(document: int, ordinal: int, chunk: Chunk, title: str, model: str) -> tuple[Any, ...]:
    hash = hash_text(model, title, chunk.path, chunk.text)
    return (document, ordinal, chunk.section, dump_json(chunk.path), dump_json(chunk.anchors), chunk.first_page,
            chunk.text, hash)  # fmt: skip


def compress(packed: bytes) -> bytes:
    """Compress a packed document for storage."""
    return zlib.compress(packed, COMPRESSION)


def shelf_of(body: bytes) -> PackedDocument:
    """Open a stored packed document."""
    return PackedDocument.of(zlib.decompress(body))
