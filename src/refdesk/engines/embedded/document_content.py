"""Content of the documents in a tenant's database: packed documents, chunks, and the queue of chunks to embed.

The shortest document is embedded first. A text that was already embedded, in any document, isn't embedded again. The
model's input is a chunk's text below its headings. A vector is stored as one scale and one byte per dimension, which
has no measurable effect on search quality.
"""

from __future__ import annotations

import hashlib
import sqlite3
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION, PackedDocument
from refdesk.engines import analyzer
from refdesk.engines.base import Document, Passage
from refdesk.engines.storage.ingest_queue import IS_DUE, IngestTask, SourceContent
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


# Queue of chunks to embed


BATCH_TEXTS = 256
"""Texts embedded and stored at a time: a few seconds of work, which is what an interruption costs."""

BATCH_DOCUMENTS = 64

LONGEST_RETRY_SECONDS = 300.0
"""Maximum delay between attempts to reach the model."""

EMBEDDED_COUNT = "(SELECT count(*) FROM chunks JOIN embeddings USING (hash) WHERE document = documents.key)"
"""Number of a document's chunks that have a vector."""


def read_model(database: sqlite3.Connection) -> str:
    """Return the model chunks are hashed for. It is remembered while semantic search is disabled."""
    return str(database.execute("SELECT model FROM owner").fetchone()[0])


def has_unembedded(database: sqlite3.Connection, model: str) -> bool:
    """Whether indexed documents have chunks this model hasn't embedded."""
    unembedded = "SELECT EXISTS (SELECT 1 FROM documents WHERE stage = 'success' AND embedded < chunks)"
    return read_model(database) != model or bool(database.execute(unembedded).fetchone()[0])


def adopt_model(database: sqlite3.Connection, model: str) -> None:
    """Queue all documents this model hasn't embedded. If the model has changed, rehash all chunks first."""
    with transaction(database):
        if read_model(database) != model:
            database.execute("UPDATE owner SET model = ?", (model,))
            for key, title in database.execute("SELECT key, title FROM documents").fetchall():
                rows = database.execute("SELECT key, path, text FROM chunks WHERE document = ?", (key,)).fetchall()
                database.executemany(
                    "UPDATE chunks SET hash = ? WHERE key = ?",
                    ((hash_text(model, title, orjson.loads(path), text), chunk) for chunk, path, text in rows),
                )
                database.execute(f"UPDATE documents SET embedded = {EMBEDDED_COUNT} WHERE key = ?", (key,))
        database.execute(
            "UPDATE documents SET stage = 'embedding', attempts = 0, retry_at = 0 "
            "WHERE stage IN ('success', 'finishing') AND embedded < chunks"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts to embed, each with the hash its vector is stored under."""

    documents: Sequence[int]
    hashes: Sequence[bytes]
    texts: Sequence[str]


def next_batch(database: sqlite3.Connection, at: float) -> Batch | None:
    """Return the texts to embed next, or None if no document is due."""
    rows = database.execute(
        f"SELECT key, title FROM documents WHERE stage = 'embedding' AND {IS_DUE} "
        "ORDER BY attempts, chunks, key LIMIT ?",
        (at, at, BATCH_DOCUMENTS),
    ).fetchall()
    texts: dict[bytes, str] = {}
    documents: list[int] = []
    for key, title in rows:
        documents.append(key)
        missing = database.execute(
            "SELECT c.hash, c.path, c.text FROM chunks c LEFT JOIN embeddings e ON e.hash = c.hash "
            "WHERE c.document = ? AND e.hash IS NULL ORDER BY c.ordinal LIMIT ?",
            (key, BATCH_TEXTS - len(texts)),
        )
        texts |= {hash: build_embedding_text(title, orjson.loads(path), text) for hash, path, text in missing}
        if len(texts) >= BATCH_TEXTS:
            break
    return Batch(documents, list(texts), list(texts.values())) if documents else None


def store_vectors(database: sqlite3.Connection, batch: Batch, vectors: NDArray[np.float32]) -> None:
    """Store the vectors of a batch, and advance documents that are complete, in one transaction."""
    with transaction(database):
        database.executemany(
            "INSERT OR REPLACE INTO embeddings VALUES (?, ?)",
            ((hash, pack_vector(vector)) for hash, vector in zip(batch.hashes, vectors, strict=True)),
        )
        for key in batch.documents:
            row = database.execute(
                f"UPDATE documents SET updated_at = ?, error = NULL, embedded = {EMBEDDED_COUNT} "
                "WHERE key = ? AND stage = 'embedding' RETURNING embedded >= chunks",
                (now(), key),
            ).fetchone()
            if row is not None and row[0]:
                database.execute("UPDATE documents SET stage = 'finishing' WHERE key = ?", (key,))
                database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'vectors')", (key,))


def postpone(database: sqlite3.Connection, batch: Batch, error: str, at: float, first_retry: float) -> None:
    """Record that the model failed and schedule a retry, with increasing delays and no limit on attempts.

    `first_retry` is the delay before the second attempt, in seconds.
    """
    with transaction(database):
        for key in batch.documents:
            row = database.execute("SELECT attempts FROM documents WHERE key = ?", (key,)).fetchone()
            wait = min(first_retry * 3 ** min(row[0], 10), LONGEST_RETRY_SECONDS) if row else 0
            database.execute(
                "UPDATE documents SET error = ?, attempts = attempts + 1, retry_at = ?, updated_at = ? "
                "WHERE key = ? AND stage = 'embedding'",
                (error, at + wait, now(), key),
            )


def delete_unused_vectors(database: sqlite3.Connection) -> None:
    """Delete the vectors of texts that no document contains any more.

    Skipped unless there are more vectors than chunks.
    """
    stored, used = database.execute(
        "SELECT (SELECT count(*) FROM embeddings), (SELECT count(*) FROM chunks)"
    ).fetchone()
    if stored > used:
        database.execute(
            "DELETE FROM embeddings WHERE NOT EXISTS (SELECT 1 FROM chunks WHERE chunks.hash = embeddings.hash)"
        )


HASH_BYTES = 16
"""Enough to avoid accidental collisions within a tenant."""


def build_embedding_text(title: str, path: Sequence[str], text: str) -> str:
    """Return a chunk's text without markup and link targets, below the document's title and its headings."""
    return "\n".join([*analyzer.build_heading_path(title, path), analyzer.strip_markdown(text)])


def hash_text(model: str, title: str, path: Sequence[str], text: str) -> bytes:
    """Return the key of a vector: a hash of the model and its input."""
    content = f"{model}\0{build_embedding_text(title, path, text)}"
    return hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=HASH_BYTES).digest()


def pack_vector(vector: NDArray[np.float32]) -> bytes:
    """Encode a vector for storage."""
    scale = max(float(np.abs(vector).max()) / 127, 1e-12)
    steps: NDArray[np.int8] = np.rint(vector / scale).astype(np.int8)
    return struct.pack("<f", scale) + steps.tobytes()


def unpack_vector(body: bytes) -> NDArray[np.float32]:
    """Decode a stored vector and normalize it."""
    vector = np.frombuffer(body, np.int8, offset=4).astype(np.float32) * np.frombuffer(body, np.float32, 1)
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)
