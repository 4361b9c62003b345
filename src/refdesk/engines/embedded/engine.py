"""The embedded engine: SQLite with full-text search, many reading threads and processes, one writer at a time.

Everything that touches the file runs in a thread of its own limiter, so that the event loop never waits for a disk.
"""

from __future__ import annotations

import hashlib
import sqlite3
from asyncio import CancelledError
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from anyio import CancelScope, CapacityLimiter, to_thread

from refdesk.calls import TenantId
from refdesk.documents.markdown import parse_sections, passages, title_of
from refdesk.documents.query import match_expression
from refdesk.engines.embedded.connections import Connections
from refdesk.engines.port import SHARED, Document, DocumentationSet, DocumentInfo, Hit, Passage
from refdesk.errors import EngineError

SCHEMA_VERSION = 1
READING_THREADS = 4
"""More would only wait for each other: a query is a few hundred microseconds of CPU."""

TITLE_WEIGHT, HEADING_WEIGHT, TEXT_WEIGHT = 2.0, 4.0, 1.0
"""A word in a heading says what the passage is about; tried on the manual's own questions."""

SPARE = 4
"""How many more passages are ranked than are asked for: a long section can match in several."""

PATH_SEPARATOR = "\x1f"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """A Markdown text to be indexed under an id."""

    id: str
    text: str


class EmbeddedEngine:
    """See `engines.port.Engine`; made by `open_embedded`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limiter = CapacityLimiter(READING_THREADS)
        self._connections = Connections(path)
        self._sets: tuple[tuple[TenantId, DocumentationSet], ...] = ()

    async def search(self, tenant: TenantId, query: str, *, limit: int, doc_type: str | None = None) -> Sequence[Hit]:
        expression = match_expression(query)
        if expression is None:
            return []
        return await self._run(lambda database: _search(database, tenant, expression, limit, doc_type))

    async def read(self, tenant: TenantId, document_id: str) -> Document | None:
        return await self._run(lambda database: _read(database, tenant, document_id))

    async def document_ids(self, tenant: TenantId, *, prefix: str = "", limit: int = 100) -> Sequence[str]:
        return await self._run(lambda database: _document_ids(database, tenant, prefix, limit))

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> Sequence[Passage] | None:
        return await self._run(lambda database: _window(database, tenant, document_id, chunk_id, before, after))

    def sets(self, tenant: TenantId) -> Sequence[DocumentationSet]:
        return [entry for owner, entry in self._sets if owner in (SHARED, tenant)]

    async def check(self) -> str:
        count = await self._run(lambda database: database.execute("SELECT count(*) FROM documents").fetchone()[0])
        return f"{count} documents"

    async def replace_set(self, tenant: TenantId, entry: DocumentationSet, documents: Sequence[SourceDocument]) -> int:
        """Make the set hold exactly these documents; answers how many were written or removed."""
        changed = await self._run(lambda database: _replace_set(database, tenant, entry, documents))
        await self.refresh()
        return changed

    async def refresh(self) -> None:
        """Read the list of sets again, after this or another process has changed it."""
        self._sets = await self._run(_load_sets)

    def prepare(self) -> None:
        """Create or check the schema; a file of another version is refused, never guessed at."""
        with _translated(f"cannot use {self._path}"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._connections.borrow(self) as database:
                self._prepare(database)

    def _prepare(self, database: sqlite3.Connection) -> None:
        found = database.execute("PRAGMA user_version").fetchone()[0]
        if found not in (0, SCHEMA_VERSION):
            raise EngineError(
                f"{self._path} was written by another version of Refdesk (schema {found}, this one reads "
                f"{SCHEMA_VERSION}); use another --data folder or remove the file to index anew"
            )
        if found == 0:
            schema = resources.files(__package__).joinpath("schema.sql").read_text("utf-8")
            database.executescript(f"BEGIN IMMEDIATE; {schema} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")

    def close(self) -> None:
        """Stop what is under way and close the file."""
        self._connections.close()

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        call = object()

        def run() -> T:
            with _translated("the document store failed"), self._connections.borrow(call) as database:
                return work(database)

        try:
            return await to_thread.run_sync(run, limiter=self._limiter)
        except CancelledError:
            # A cancelled task leaves its thread behind; nobody waits for what it would find.
            self._connections.interrupt(call)
            raise


@asynccontextmanager
async def open_embedded(folder: Path) -> AsyncIterator[EmbeddedEngine]:
    """The engine on the files in this folder, which is made when it is missing."""
    engine = EmbeddedEngine(folder / "refdesk.db")
    try:
        await to_thread.run_sync(engine.prepare)
        await engine.refresh()
        yield engine
    finally:
        with CancelScope(shield=True):
            await to_thread.run_sync(engine.close)


@contextmanager
def _translated(what: str) -> Iterator[None]:
    """The one place where an error of the store becomes ours."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise EngineError(f"{what}: {error}") from error


def _search(
    database: sqlite3.Connection, tenant: TenantId, expression: str, limit: int, doc_type: str | None
) -> list[Hit]:
    rows = database.execute(
        """
        SELECT d.*, p.key AS passage, p.section, p.path, p.page, p.text AS passage_text,
               -bm25(words, ?, ?, ?) AS score
        FROM words
        JOIN passages p ON p.key = words.rowid
        JOIN documents d ON d.key = p.document
        WHERE words MATCH ? AND d.tenant IN (?, ?) AND (? IS NULL OR d.doc_type = ?)
        ORDER BY score DESC, p.key
        LIMIT ?
        """,
        (TITLE_WEIGHT, HEADING_WEIGHT, TEXT_WEIGHT, expression, SHARED, tenant, doc_type, doc_type, limit * SPARE),
    )
    best: dict[tuple[int, str], Hit] = {}
    for row in _named(rows):
        best.setdefault((row["key"], row["section"]), _hit(row))
    return list(best.values())[:limit]


def _read(database: sqlite3.Connection, tenant: TenantId, document_id: str) -> Document | None:
    rows = database.execute(
        # The tenant's own document hides a shared one of the same id.
        "SELECT * FROM documents WHERE id = ? AND tenant IN (?, ?) ORDER BY tenant = ? DESC LIMIT 1",
        (document_id, SHARED, tenant, tenant),
    )
    for row in _named(rows):
        return Document(_info(row), row["text"])
    return None


def _window(
    database: sqlite3.Connection, tenant: TenantId, document_id: str, chunk_id: str, before: int, after: int
) -> list[Passage] | None:
    id, _, key = chunk_id.rpartition("#")
    if id != document_id or not (key.isascii() and key.isdigit() and len(key) < 19):
        return None
    anchor = database.execute(
        "SELECT p.document, p.ordinal FROM passages p JOIN documents d ON d.key = p.document "
        "WHERE p.key = ? AND d.id = ? AND d.tenant IN (?, ?)",
        (int(key), document_id, SHARED, tenant),
    ).fetchone()
    if anchor is None:
        return None
    document, ordinal = anchor
    rows = database.execute(
        "SELECT key, section, path, page, text FROM passages WHERE document = ? AND ordinal BETWEEN ? AND ? "
        "ORDER BY ordinal",
        (document, ordinal - before, ordinal + after),
    )
    return [
        Passage(f"{document_id}#{key}", section, _path(path), page, text) for key, section, path, page, text in rows
    ]


def _document_ids(database: sqlite3.Connection, tenant: TenantId, prefix: str, limit: int) -> list[str]:
    rows = database.execute(
        "SELECT DISTINCT id FROM documents WHERE tenant IN (?, ?) AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?",
        (SHARED, tenant, len(prefix), prefix, limit),
    )
    return [row[0] for row in rows]


def _load_sets(database: sqlite3.Connection) -> tuple[tuple[TenantId, DocumentationSet], ...]:
    rows = database.execute(
        """
        SELECT s.*, count(d.key) AS documents FROM sets s
        LEFT JOIN documents d ON d.tenant = s.tenant AND d.doc_type = s.doc_type
        GROUP BY s.tenant, s.doc_type ORDER BY s.doc_type
        """
    )
    return tuple(
        (
            TenantId(row["tenant"]),
            DocumentationSet(row["doc_type"], row["collection"], row["title"], row["version"], row["documents"]),
        )
        for row in _named(rows)
    )


def _replace_set(
    database: sqlite3.Connection, tenant: TenantId, entry: DocumentationSet, documents: Sequence[SourceDocument]
) -> int:
    known = dict(
        database.execute(
            "SELECT id, hash || version FROM documents WHERE tenant = ? AND doc_type = ?", (tenant, entry.doc_type)
        ).fetchall()
    )
    wanted = {document.id: document for document in documents}
    stale = [id for id in known if id not in wanted]
    changed = [document for document in documents if known.get(document.id) != _hash(document.text) + entry.version]
    if not stale and not changed and known:
        return 0
    with _transaction(database):
        for document_id in [*stale, *(document.id for document in changed)]:
            _remove(database, tenant, document_id)
        for document in changed:
            _insert(database, tenant, entry, document)
        database.execute(
            "INSERT OR REPLACE INTO sets VALUES (?, ?, ?, ?, ?)",
            (tenant, entry.doc_type, entry.collection, entry.title, entry.version),
        )
    return len(stale) + len(changed)


def _insert(database: sqlite3.Connection, tenant: TenantId, entry: DocumentationSet, document: SourceDocument) -> None:
    sections = parse_sections(document.text)
    title = title_of(sections, fallback=document.id)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    key = database.execute(
        "INSERT INTO documents (tenant, id, doc_type, collection, title, text, hash, version, indexed_at) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (tenant, document.id, entry.doc_type, entry.collection, title, document.text, _hash(document.text),
         entry.version, now),
    ).lastrowid  # fmt: skip
    pieces = ((section, text) for section in sections for text in passages(section))
    for ordinal, (section, text) in enumerate(pieces):
        passage = database.execute(
            "INSERT INTO passages (document, ordinal, section, path, text) VALUES (?, ?, ?, ?, ?)",
            (key, ordinal, section.id, PATH_SEPARATOR.join(section.path), text),
        ).lastrowid
        database.execute(
            "INSERT INTO words (rowid, title, headings, text) VALUES (?, ?, ?, ?)",
            (passage, title, " ".join(section.path), text),
        )


def _remove(database: sqlite3.Connection, tenant: TenantId, document_id: str) -> None:
    database.execute(
        "DELETE FROM words WHERE rowid IN (SELECT p.key FROM passages p JOIN documents d ON d.key = p.document "
        "WHERE d.tenant = ? AND d.id = ?)",
        (tenant, document_id),
    )
    database.execute("DELETE FROM documents WHERE tenant = ? AND id = ?", (tenant, document_id))


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def _named(rows: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    names = [column[0] for column in rows.description]
    for row in rows:
        yield dict(zip(names, row, strict=True))


def _hit(row: dict[str, Any]) -> Hit:
    return Hit(
        document=_info(row),
        chunk_id=f"{row['id']}#{row['passage']}",
        section=row["section"],
        path=_path(row["path"]),
        page=row["page"],
        text=row["passage_text"],
        score=round(row["score"], 4),
    )


def _path(joined: str) -> tuple[str, ...]:
    return tuple(joined.split(PATH_SEPARATOR)) if joined else ()


def _info(row: dict[str, Any]) -> DocumentInfo:
    return DocumentInfo(
        id=row["id"],
        doc_type=row["doc_type"],
        title=row["title"],
        version=row["version"],
        indexed_at=datetime.fromisoformat(row["indexed_at"]),
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
