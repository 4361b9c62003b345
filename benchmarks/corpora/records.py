"""A data folder that `refdesk serve` can be started on: the corpus in the engine's record, and its indexes.

Everything goes through the engine's own functions; only the waiting for the disk and for the model is left out. The
record is kept between runs, the indexes are made anew in each, since that is measured.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from anyio import CapacityLimiter

from corpora.documents import CACHE, Packed, packed_documents
from corpora.vectors import PreparedVectors
from refdesk.calls import LOCAL
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION
from refdesk.engines.base import ConvertedSource, NewDocument
from refdesk.engines.embedded import document_content
from refdesk.engines.embedded.embedding import Embedder
from refdesk.engines.embedded.indexes import Indexes
from refdesk.engines.embedded.tenant_store import SCHEMA_VERSION, SearchThreads, TenantStore
from refdesk.engines.storage import ingest_queue, records
from refdesk.engines.storage.databases import tenant_folder_name

TENANT = LOCAL.tenant
AT_ONCE = 1000
"""Documents that are asked for in one transaction."""


@dataclass(frozen=True, slots=True)
class IndexBuilt:
    """What making an index took."""

    cpu_seconds: float
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Built:
    """A corpus, ready to be searched."""

    data: Path
    chunks: int
    documents: int
    real_vectors: int
    record_bytes: int
    fulltext: IndexBuilt
    vectors: IndexBuilt

    @property
    def folder(self) -> Path:
        """The tenant's files."""
        return tenant_folder(self.data)


def tenant_folder(data: Path) -> Path:
    """Where the only tenant's files are."""
    return data / "tenants" / tenant_folder_name(TENANT)


async def build(size: int, embedder: Embedder, *, fresh: bool = False) -> Built:
    """A store of about so many chunks; its record is taken from an earlier run where there is one."""
    data = CACHE / f"store-{size}"
    stamp = data / "made-of"
    made_of = f"{SCHEMA_VERSION} {PACKED_DOCUMENT_VERSION} {embedder.name}"
    if fresh or not stamp.exists() or stamp.read_text("utf-8") != made_of:
        shutil.rmtree(data, ignore_errors=True)
        await _make_record(data, packed_documents(size), embedder)
        stamp.write_text(made_of, "utf-8")
    return _indexed(data, embedder)


async def _make_record(data: Path, documents: Iterator[Packed], embedder: Embedder) -> None:
    print(f"making {data.name}, once", file=sys.stderr)
    prepared = PreparedVectors(CACHE / "vectors.npz", embedder)
    with _open(data) as database:
        document_content.adopt_model(database, embedder.name)
        for number, group in groupby(enumerate(documents), lambda pair: pair[0] // AT_ONCE):
            _keep(database, [document for _, document in group])
            print(f"  {(number + 1) * AT_ONCE} documents", file=sys.stderr)
        with closing(Indexes(tenant_folder(data), embedder)) as indexes:
            indexes.follow(database)
            while (batch := document_content.next_batch(database, time.time())) is not None:
                document_content.store_vectors(database, batch, await prepared.of(batch.hashes, batch.texts))
            indexes.follow(database)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def _open(data: Path) -> Iterator[sqlite3.Connection]:
    """The record of a store that nobody else has open; not worth an fsync, since it can be made again."""
    store = TenantStore(tenant_folder(data), TENANT, CapacityLimiter(1), SearchThreads(1))
    store.prepare()
    try:
        with store.reading() as database:
            database.execute("PRAGMA synchronous = OFF")
            yield database
    finally:
        store.close()


def _keep(database: sqlite3.Connection, documents: Sequence[Packed]) -> None:
    """Bring documents in, as if their conversion had just ended."""
    for package in {document.package for document in documents}:
        records.create_collection(database, package, "", "")
    asked = [NewDocument(ConvertedSource("", one.name), _collection(database, one.package)) for one in documents]
    ids = records.queue_documents(database, asked)
    by_id: Mapping[str, Packed] = dict(zip(ids, documents, strict=True))
    for task in ingest_queue.next_tasks(database, time.time(), len(documents), ()):
        packed = by_id[task.id]
        arrived = ingest_queue.SourceContent(b"", packed.digest, "", packed.size)
        with document_content.open_blob(packed.body) as shelf:
            document_content.store_document(database, task, arrived, packed.body, shelf)


def _collection(database: sqlite3.Connection, name: str) -> str:
    return str(database.execute("SELECT id FROM collections WHERE name = ?", (name,)).fetchone()[0])


def _indexed(data: Path, embedder: Embedder) -> Built:
    """Make both indexes anew from the record, one after the other."""
    folder = tenant_folder(data)
    for name in ("fulltext", "vectors"):
        shutil.rmtree(folder / name, ignore_errors=True)
    with _open(data) as database:
        fulltext = _follow(folder, database, None, "fulltext")
        vectors = _follow(folder, database, embedder, "vectors")
        chunks = database.execute("SELECT count(*) FROM chunks").fetchone()[0]
        documents = database.execute("SELECT count(*) FROM documents").fetchone()[0]
        real = PreparedVectors(CACHE / "vectors.npz", embedder).real
    return Built(data, chunks, documents, min(real, chunks), size_of(folder / "knowledge.db"), fulltext, vectors)


def _follow(folder: Path, database: sqlite3.Connection, embedder: Embedder | None, name: str) -> IndexBuilt:
    """Let the indexes follow the record; without an embedder, only the full-text index does."""
    cpu, wall = time.process_time(), time.perf_counter()
    with closing(Indexes(folder, embedder)) as indexes:
        indexes.follow(database)
    took = time.process_time() - cpu, time.perf_counter() - wall
    return IndexBuilt(*took, bytes=size_of(folder / name))


def size_of(path: Path) -> int:
    """The bytes of a file, or of all files in a folder."""
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
