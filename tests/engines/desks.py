"""An embedded engine on a folder, opened for tests, and what its files hold when looked at from outside of it."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
import tantivy

from refdesk.config.models import ConvertConfig
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.embedded.embedding import Embedder, Vector, Vectors
from refdesk.engines.embedded.engine import EmbeddedEngine, open_embedded
from refdesk.engines.embedded.fulltext import FullText
from refdesk.engines.embedded.vectors.reader import open_state
from refdesk.engines.storage.ingest_queue import Pauses
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics

SHORT_PAUSES = Pauses(queue_poll=0.05, error=0.05, first_retry=0.05)

ACME_FOLDER = "n-acme"
"""Where the tenant `acme` has its files, beneath `tenants`."""


class WordSums:
    """A model that costs nothing: a text is the sum of its words. For tests of what becomes of vectors."""

    name = "word-sums"
    dimensions = 64
    dependency = None

    async def embed_query(self, text: str) -> Vector:
        return self._vector(text)

    async def embed_passages(self, texts: Sequence[str]) -> Vectors:
        return np.stack([self._vector(text) for text in texts])

    def embed_query_sync(self, text: str) -> Vector:
        return self._vector(text)

    def _vector(self, text: str) -> Vector:
        total = np.ones(self.dimensions, np.float64)
        for word in text.lower().split():
            seed = int.from_bytes(blake2b(word.encode("utf-8", "replace"), digest_size=8).digest())
            total += np.random.default_rng(seed).standard_normal(self.dimensions)
        return (total / np.linalg.norm(total)).astype(np.float32)


@asynccontextmanager
async def engine_on(
    data: Path, conversions: Conversions, embedder: Embedder | None = None, *, pauses: Pauses = SHORT_PAUSES
) -> AsyncIterator[EmbeddedEngine]:
    """The engine whose files are in `data`."""
    with closing(Log("error")) as log:
        async with open_embedded(
            data / "tenants",
            data / "shared",
            embedder or WordSums(),
            conversions,
            log=log,
            metrics=Metrics(),
            pauses=pauses,
        ) as engine:
            yield engine


@asynccontextmanager
async def lone_engine_on(data: Path) -> AsyncIterator[EmbeddedEngine]:
    """As above, with conversions of its own."""
    async with (
        open_conversions(ConvertConfig(), data, Metrics()) as conversions,
        engine_on(data, conversions) as engine,
    ):
        yield engine


@dataclass(frozen=True)
class OnDisk:
    """What a tenant's files hold: read without the engine, which might make it right in passing."""

    documents: dict[str, tuple[str, int]]
    """Stage and number of chunks, by id."""
    texts: dict[str, list[str]]
    """The chunks' texts, by their document's id."""
    chunks: Counter[int]
    """The keys of the chunks, of which each is there once: in the record, …"""
    in_fulltext: Counter[int]
    """… in the full-text index, …"""
    in_vectors: Counter[int]
    """… and in the vector index."""

    @classmethod
    def read(cls, data: Path, tenant: str = ACME_FOLDER) -> OnDisk:
        """The files of a tenant."""
        folder = data / "tenants" / tenant
        with closing(sqlite3.connect(folder / "knowledge.db")) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
            rows = database.execute("SELECT id, stage, chunks FROM documents").fetchall()
            chunks = database.execute(
                "SELECT c.key, d.id, c.text FROM chunks c JOIN documents d ON d.key = c.document ORDER BY c.key"
            ).fetchall()
        texts: dict[str, list[str]] = {id: [] for id, _, _ in rows}
        for _, id, text in chunks:
            texts[id].append(text)
        return cls(
            {id: (stage, count) for id, stage, count in rows},
            texts,
            Counter(key for key, _, _ in chunks),
            keys_in_fulltext(folder / "fulltext"),
            keys_in_vectors(folder / "vectors"),
        )

    def require_agreement(self) -> None:
        """The indexes hold every chunk of the record once, and nothing else."""
        assert self.in_fulltext == self.chunks
        assert self.in_vectors == self.chunks
        assert all(len(self.texts[id]) == count for id, (_, count) in self.documents.items())


def is_in_step(data: Path, tenant: str = ACME_FOLDER) -> bool:
    """Whether both indexes hold the last change of the record, so that nothing is left to do for them."""
    folder = data / "tenants" / tenant
    with closing(sqlite3.connect(folder / "knowledge.db")) as database:
        [last] = database.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()
    marks = FullText(folder / "fulltext").mark, open_state(folder / "vectors", {}).manifest.mark
    return min(marks) >= int(last)


def keys_in_fulltext(folder: Path) -> Counter[int]:
    """The key of every entry that searches can find."""
    if not folder.exists():
        return Counter()
    searcher = tantivy.Index.open(str(folder)).searcher()
    hits = searcher.search(tantivy.Query.all_query(), max(searcher.num_docs, 1), count=False).hits
    keys = searcher.fast_field_values("key", [address for _, address in hits])
    return Counter(int(key) for key in keys if key is not None)


def keys_in_vectors(folder: Path) -> Counter[int]:
    """The key of every row that searches can find."""
    found: Counter[int] = Counter()
    for view in open_state(folder, {}).views:
        table = view.segment.table
        found.update(table.keys[table.list_rows(view.alive)].tolist())
    return found
