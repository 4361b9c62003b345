"""Incremental update of the derived indexes from the document store.

Updates are idempotent. If the process dies, the next one continues from the marks of the indexes.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import orjson

from refdesk.engines.embedded.document_content import unpack_vector
from refdesk.engines.embedded.embedding import Embedder
from refdesk.engines.embedded.fulltext import FullTextWriter, IndexDamaged, IndexEntry
from refdesk.engines.embedded.vectors import Row, VectorWriter
from refdesk.engines.storage import records
from refdesk.engines.storage.records import fetch_dicts, now
from refdesk.errors import EngineError

W = TypeVar("W")

logger = logging.getLogger(__name__)

ROWS_PER_COMMIT = 20_000
"""Vectors buffered in memory before a commit, about 30 MB."""


class Indexes:
    """Writers of both indexes of a tenant. Not thread-safe."""

    def __init__(self, folder: Path, embedder: Embedder | None) -> None:
        """Open the indexes. There is no vector index without an embedder, or before a remote one has answered once."""
        self._folder = folder
        self._embedder = embedder
        self._fulltext = _open_or_recreate(folder / "fulltext", FullTextWriter)
        self._vectors: VectorWriter | None = None

    def close(self) -> None:
        """Release the files."""
        self._vectors = None
        with _translate_write_errors():
            self._fulltext.close()

    def clear(self) -> None:
        """Rebuild everything with the next update. Until then readers see the previous state."""
        self._fulltext.clear()
        if (vectors := self._get_vector_writer()) is not None:
            vectors.clear()

    def follow(self, database: sqlite3.Connection) -> bool:
        """Apply all changes since the last update. Returns whether there were any."""
        return self._update_fulltext(database) | self._update_vectors(database)

    def _update_fulltext(self, database: sqlite3.Connection) -> bool:
        writer = self._fulltext
        last = records.read_last_change(database)
        is_behind = writer.mark != last
        if is_behind:
            if writer.mark > last:
                # An older database was restored, or its write-ahead log was lost.
                logger.error("engine.database_older_than_index", extra={"fields": {"folder": str(self._folder)}})
                writer.clear()
            with _translate_write_errors():
                for document in _list_changed(database, writer.mark, last, ("text",)):
                    writer.replace(document, _read_entries(database, document))
                writer.commit(last)
        _advance(database, "indexing", "embedding" if self._embedder else "success", last)
        return is_behind

    def _update_vectors(self, database: sqlite3.Connection) -> bool:
        writer = self._get_vector_writer()
        if writer is None:
            return False
        last = records.read_last_change(database)
        is_behind = writer.mark != last
        if is_behind:
            if writer.mark > last:
                writer.clear()
            pending = 0
            for document in _list_changed(database, writer.mark, last, ("text", "vectors")):
                writer.remove(document)
                rows = _read_vector_rows(database, document)
                writer.add(rows)
                pending += len(rows)
                if pending >= ROWS_PER_COMMIT:
                    # The mark isn't advanced: if this is interrupted, the rows are written again.
                    writer.commit(writer.mark)
                    pending = 0
            writer.commit(last)
        _advance(database, "finishing", "success", last)
        return is_behind

    def _get_vector_writer(self) -> VectorWriter | None:
        model = self._embedder
        if self._vectors is None and model is not None and model.dimensions:
            self._vectors = _open_or_recreate(
                self._folder / "vectors", lambda folder: VectorWriter(folder, model.name, model.dimensions)
            )
        return self._vectors


@contextmanager
def _translate_write_errors() -> Iterator[None]:
    """Raise tantivy's ValueError about a full disk or missing files as EngineError."""
    try:
        yield
    except (ValueError, IndexDamaged) as error:
        raise EngineError(f"the full-text index cannot be written: {error}") from error


def _open_or_recreate(folder: Path, open_writer: Callable[[Path], W]) -> W:
    """Open the writer of an index. A damaged index is deleted, because it is rebuilt from the document store."""
    try:
        return open_writer(folder)
    except IndexDamaged as error:
        logger.error("engine.index_rebuilt", extra={"fields": {"detail": error.detail}})
        shutil.rmtree(folder)
        return open_writer(folder)


def _list_changed(database: sqlite3.Connection, after: int, last: int, kinds: Sequence[str]) -> list[int]:
    marks = ", ".join("?" * len(kinds))
    rows = database.execute(
        f"SELECT DISTINCT document FROM changes WHERE number > ? AND number <= ? AND kind IN ({marks})",
        (after, last, *kinds),
    )
    return [row[0] for row in rows]


def _read_entries(database: sqlite3.Connection, document: int) -> list[IndexEntry]:
    rows = database.execute(
        "SELECT c.key, d.key AS document, d.collection, d.title, c.path, c.text "
        "FROM documents d JOIN chunks c ON c.document = d.key WHERE d.key = ? ORDER BY c.ordinal",
        (document,),
    )
    return [IndexEntry(**{**row, "path": tuple(orjson.loads(row["path"]))}) for row in fetch_dicts(rows)]


def _read_vector_rows(database: sqlite3.Connection, document: int) -> list[Row]:
    """Return the vectors of a document, or none until all of it is embedded."""
    rows = database.execute(
        "SELECT c.key, d.collection, e.vector FROM documents d JOIN chunks c ON c.document = d.key "
        "LEFT JOIN embeddings e ON e.hash = c.hash WHERE d.key = ? ORDER BY c.ordinal",
        (document,),
    ).fetchall()
    if any(vector is None for _, _, vector in rows):
        return []  # indexed once all chunks are embedded
    return [Row(key, document, collection, unpack_vector(vector)) for key, collection, vector in rows]


def _advance(database: sqlite3.Connection, stage: str, next_stage: str, last: int) -> None:
    """Advance documents whose last change is in the index."""
    database.execute(
        "UPDATE documents SET stage = ?, updated_at = ? WHERE stage = ? AND NOT EXISTS "
        "(SELECT 1 FROM changes WHERE document = documents.key AND number > ?)",
        (next_stage, now(), stage, last),
    )
