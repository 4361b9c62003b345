"""What anybody would write first, on the same chunks: SQLite's FTS5 for words, numpy for vectors."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from corpora.measuring import Stopwatch, Times
from corpora.records import IndexBuilt
from refdesk.engines.analyzer import STOP_WORDS
from refdesk.engines.embedded.document_content import unpack_vector

LIMIT = 10


def build_fts5(record: Path, index: Path) -> IndexBuilt:
    """An index of the chunks beneath their headings, stemmed; its text is in the index, as FTS5 does by default."""
    index.unlink(missing_ok=True)
    cpu, wall = time.process_time(), time.perf_counter()
    with closing(sqlite3.connect(index, isolation_level=None)) as database:
        database.execute("PRAGMA synchronous = OFF")
        database.execute("ATTACH ? AS record", (str(record),))
        database.execute("CREATE VIRTUAL TABLE found USING fts5 (path, text, tokenize = 'porter unicode61')")
        database.execute("BEGIN")
        database.execute("INSERT INTO found (rowid, path, text) SELECT key, path, text FROM record.chunks")
        database.execute("COMMIT")
    return IndexBuilt(time.process_time() - cpu, time.perf_counter() - wall, index.stat().st_size)


def search_fts5(index: Path, questions: Sequence[str], *, all_words: bool) -> Times:
    """Any of the words, best by BM25 first."""
    watch = Stopwatch()
    with closing(sqlite3.connect(index)) as database:
        for warm in (True, False):
            watch = Stopwatch()
            for question in questions[:20] if warm else questions:
                with watch.timing():
                    database.execute(
                        "SELECT rowid, path, text FROM found WHERE found MATCH ? ORDER BY rank LIMIT ?",
                        (any_of(question, all_words=all_words), LIMIT),
                    ).fetchall()
    return watch.times()


def any_of(question: str, *, all_words: bool) -> str:
    """A question for FTS5: its words joined by OR, with or without those that every text has."""
    words = re.findall(r"\w+", question.lower())
    telling = words if all_words else [word for word in words if word not in STOP_WORDS] or words
    return " OR ".join(f'"{word}"' for word in dict.fromkeys(telling))


def search_numpy(record: Path, queries: NDArray[np.float32]) -> Times:
    """Every vector against the query, in one multiplication."""
    with closing(sqlite3.connect(record)) as database:
        rows = database.execute("SELECT vector FROM chunks JOIN embeddings USING (hash)")
        vectors = np.stack([unpack_vector(row[0]) for row in rows])
    for query in queries[:5]:
        _nearest(vectors, query)
    watch = Stopwatch()
    for query in queries:
        with watch.timing():
            _nearest(vectors, query)
    return watch.times()


def _nearest(vectors: NDArray[np.float32], query: NDArray[np.float32]) -> list[int]:
    near = vectors @ query
    best = np.argpartition(near, -LIMIT)[-LIMIT:]
    found: list[int] = best[np.argsort(-near[best])].tolist()
    return found
