"""Packed documents and their chunks in the document store: storage and reading."""

from __future__ import annotations

import sqlite3
import zlib
from pathlib import Path

import orjson

from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION, PackedDocument
from refdesk.engines.base import Document, Passage
from refdesk.engines.embedded.embedding_queue import EMBEDDED_COUNT, hash_text, read_model
from refdesk.engines.storage.queue import IngestTask, SourceContent
from refdesk.engines.storage.records import (
    INFO_COLUMNS,
    build_document_info,
    dump_json,
    now,
    parse_chunk_number,
    transaction,
)
from refdesk.engines.storage.source_rows import decode_path

COMPRESSION = 1
"""Zlib level of packed documents: the fastest one. They shrink to a quarter; higher levels gain little."""

VERSION_BYTES = 512
"""Compressed bytes that hold the first 64 bytes of a packed document."""


def store_document(
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
            [(task.key, ordinal, chunk.section, dump_json(chunk.path), dump_json(chunk.anchors), chunk.first_page,
              chunk.text, hash_text(model, title, chunk.path, chunk.text)) for ordinal, chunk in enumerate(chunks, 1)],
        )  # fmt: skip
        database.execute(f"UPDATE documents SET embedded = {EMBEDDED_COUNT} WHERE key = ?", (task.key,))
        database.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (task.key, body))
        database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'text')", (task.key,))
        database.execute("UPDATE collections SET updated_at = ? WHERE key = ?", (now(), *updated))


def compress(packed: bytes) -> bytes:
    """Compress a packed document for storage."""
    return zlib.compress(packed, COMPRESSION)


def open_blob(body: bytes) -> PackedDocument:
    """Open a stored packed document."""
    return PackedDocument.of(zlib.decompress(body))


def queue_outdated(database: sqlite3.Connection) -> int:
    """Queue files and web pages that an older version converted, once per database. Returns their number.

    They stay searchable until then, and also if their source is gone. The database's application id is the version.
    """
    if database.execute("PRAGMA application_id").fetchone()[0] == PACKED_DOCUMENT_VERSION:
        return 0
    rows = database.execute(
        "SELECT document, kind, root, source, substr(body, 1, ?) FROM contents JOIN documents ON key = document "
        "WHERE kind IN ('file', 'url') AND stage = 'success'",
        (VERSION_BYTES,),
    )
    outdated = [
        (key,)
        for key, kind, root, source, start in rows
        if _read_version(start) != PACKED_DOCUMENT_VERSION
        and (kind == "url" or (Path(root) / decode_path(source)).exists())
    ]
    with transaction(database):
        database.executemany(
            "UPDATE documents SET stage = 'pending', request = request + 1, attempts = 0, retry_at = 0, stamp = '', "
            "digest = '' WHERE key = ?",
            outdated,
        )
        database.execute(f"PRAGMA application_id = {PACKED_DOCUMENT_VERSION}")
    return len(outdated)


def _read_version(body: bytes) -> int:
    """Return the version of a stored packed document from its first bytes: the user version in SQLite's header."""
    return int.from_bytes(zlib.decompressobj().decompress(body, 64)[60:64], "big")


def load_document(database: sqlite3.Connection, id: str) -> Document | None:
    """Return a document with its text."""
    rows = database.execute(
        f"SELECT body, {INFO_COLUMNS} FROM documents d JOIN collections c ON c.key = d.collection "
        "JOIN contents ON document = d.key WHERE d.id = ?",
        (id,),
    )
    for body, *row in rows:
        with open_blob(body) as opened:
            return Document(build_document_info(*row), to_markdown(opened.document()))
    return None


def open_packed_document(database: sqlite3.Connection, id: str) -> PackedDocument | None:
    """Open a document to be read in parts."""
    row = database.execute(
        "SELECT body FROM documents d JOIN contents ON document = d.key WHERE d.id = ?", (id,)
    ).fetchone()
    return open_blob(row[0]) if row else None


def load_window(database: sqlite3.Connection, id: str, chunk_id: str, before: int, after: int) -> list[Passage] | None:
    """Return the chunks around one."""
    ordinal = parse_chunk_number(chunk_id, id)
    if ordinal is None:
        return None
    rows = database.execute(
        "SELECT c.ordinal, c.section, c.path, c.page, c.text FROM chunks c JOIN documents d ON d.key = c.document "
        "WHERE d.id = ? AND c.ordinal BETWEEN ? AND ? ORDER BY c.ordinal",
        (id, ordinal - before, ordinal + after),
    ).fetchall()
    if not any(row[0] == ordinal for row in rows):
        return None
    return [
        Passage(f"{id}#c{place}", section, tuple(orjson.loads(path)), page, text)
        for place, section, path, page, text in rows
    ]
