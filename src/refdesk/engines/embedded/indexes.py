"""The derived indexes follow the record: whatever has changed since their last mark is read from it and written anew.

Following is idempotent. A process that dies at any moment leaves indexes at some mark, and the next one goes on there.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from refdesk.engines.embedded.damage import IndexDamaged
from refdesk.engines.embedded.embedded_text import unpacked_vector
from refdesk.engines.embedded.embedding.base import Embedder
from refdesk.engines.embedded.fulltext import Entry, FullTextWriter
from refdesk.engines.embedded.vectors import Row, VectorWriter
from refdesk.engines.storage import records
from refdesk.engines.storage.rows import named, now, transaction
from refdesk.errors import EngineError

ROWS_PER_COMMIT = 20_000
"""Of vectors: what waits in memory to be written, some 30 MB."""


class Indexes:
    """Both indexes of a tenant, open for the one who writes; for one thread at a time."""

    def __init__(self, folder: Path, embedder: Embedder | None) -> None:
        """Without an embedder there is no vector index; with one elsewhere, not before it has answered once."""
        self._folder = folder
        self._embedder = embedder
        self._fulltext = _open_fulltext(folder / "fulltext")
        self._vectors: VectorWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        if self._vectors is not None:
            self._vectors.close()
        with _written():
            self._fulltext.close()

    def clear(self) -> None:
        """Have everything written anew when next they follow; till then readers find what they found before."""
        self._fulltext.clear()
        if (vectors := self._vector_writer()) is not None:
            vectors.clear()

    def follow(self, database: sqlite3.Connection) -> bool:
        """Write what has changed; whether anything had."""
        text = self._follow_text(database)
        vectors = self._follow_vectors(database)
        return text or vectors

    def _follow_text(self, database: sqlite3.Connection) -> bool:
        writer = self._fulltext
        last = records.last_change(database)
        behind = writer.mark < last
        if behind:
            with _written():
                for document in _changed(database, writer.mark, last, ("text",)):
                    writer.replace(document, _entries(database, document))
                writer.commit(last)
        _advance(database, "indexing", "embedding" if self._embedder else "success", last)
        return behind

    def _follow_vectors(self, database: sqlite3.Connection) -> bool:
        writer = self._vector_writer()
        if writer is None:
            return False
        last = records.last_change(database)
        behind = writer.mark < last
        if behind:
            self._write_vectors(database, writer, last)
        _advance(database, "finishing", "success", last)
        return behind

    def _vector_writer(self) -> VectorWriter | None:
        model = self._embedder
        if self._vectors is None and model is not None and model.dimensions:
            self._vectors = _open_vectors(self._folder / "vectors", model.name, model.dimensions)
        return self._vectors

    def _write_vectors(self, database: sqlite3.Connection, writer: VectorWriter, last: int) -> None:
        waiting = 0
        for document in _changed(database, writer.mark, last, ("text", "vectors")):
            writer.remove(document)
            rows = _vector_rows(database, document)
            writer.add(rows)
            waiting += len(rows)
            if waiting >= ROWS_PER_COMMIT:
                # The mark stays: what is written so far is simply written again if this ends here.
                writer.commit(writer.mark)
                waiting = 0
        writer.commit(last)


@contextmanager
def _written() -> Iterator[None]:
    """What tantivy says, by a `ValueError`, of a disk that takes nothing more, or of files that are gone."""
    try:
        yield
    except (ValueError, IndexDamaged) as error:
        raise EngineError(f"the full-text index cannot be written: {error}") from error


def _open_fulltext(folder: Path) -> FullTextWriter:
    try:
        return FullTextWriter(folder)
    except IndexDamaged:
        shutil.rmtree(folder)
        return FullTextWriter(folder)


def _open_vectors(folder: Path, model: str, dimensions: int) -> VectorWriter:
    try:
        return VectorWriter(folder, model, dimensions)
    except IndexDamaged:
        shutil.rmtree(folder)
        return VectorWriter(folder, model, dimensions)


def _changed(database: sqlite3.Connection, after: int, last: int, kinds: Sequence[str]) -> list[int]:
    marks = ", ".join("?" * len(kinds))
    rows = database.execute(
        f"SELECT DISTINCT document FROM changes WHERE number > ? AND number <= ? AND kind IN ({marks})",
        (after, last, *kinds),
    )
    return [row[0] for row in rows]


def _entries(database: sqlite3.Connection, document: int) -> Iterator[Entry]:
    rows = database.execute(
        "SELECT c.key, d.key AS document, d.collection, d.title, c.path, c.text "
        "FROM documents d JOIN chunks c ON c.document = d.key WHERE d.key = ? ORDER BY c.ordinal",
        (document,),
    )
    for row in named(rows):
        yield Entry(**{**row, "path": tuple(orjson.loads(row["path"]))})


def _vector_rows(database: sqlite3.Connection, document: int) -> list[Row]:
    """The rows of a document, once all of it is embedded."""
    rows = database.execute(
        "SELECT c.key, d.collection, e.vector FROM documents d JOIN chunks c ON c.document = d.key "
        "LEFT JOIN embeddings e ON e.hash = c.hash WHERE d.key = ? ORDER BY c.ordinal",
        (document,),
    ).fetchall()
    if any(vector is None for _, _, vector in rows):
        return []  # the rest follows when all of it is embedded
    return [Row(key, document, collection, unpacked_vector(vector)) for key, collection, vector in rows]


def _advance(database: sqlite3.Connection, stage: str, following: str, last: int) -> None:
    """Move documents on whose last change is in the index now."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = ?, updated_at = ? WHERE stage = ? AND NOT EXISTS "
            "(SELECT 1 FROM changes WHERE document = documents.key AND number > ?)",
            (following, now(), stage, last),
        )
