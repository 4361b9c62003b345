"""Reading of documents from the document store."""

from __future__ import annotations

import re
import sqlite3
from itertools import starmap

import orjson

from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import Document, DocumentInfo, Passage
from refdesk.engines.embedded.document_blobs import shelf_of
from refdesk.engines.storage.rows import INFO_COLUMNS, build_document_info

_CHUNK = re.compile(r"c(\d{1,9})")


def load_document(database: sqlite3.Connection, id: str) -> Document | None:
    """Return a document with its text."""
    rows = database.execute(
        f"SELECT body, {INFO_COLUMNS} FROM documents d JOIN collections c ON c.key = d.collection "
        "JOIN contents ON document = d.key WHERE d.id = ?",
        (id,),
    )
    for body, *row in rows:
        with shelf_of(body) as opened:
            return Document(build_document_info(*row), to_markdown(opened.document()))
    return None


def load_info(database: sqlite3.Connection, id: str) -> DocumentInfo | None:
    """Return the metadata of an indexed document."""
    rows = database.execute(
        f"SELECT {INFO_COLUMNS} FROM documents d JOIN collections c ON c.key = d.collection "
        "WHERE d.id = ? AND d.indexed_at IS NOT NULL",
        (id,),
    )
    return next(starmap(build_document_info, rows), None)


def open_packed_document(database: sqlite3.Connection, id: str) -> PackedDocument | None:
    """Open a document to be read in parts."""
    row = database.execute(
        "SELECT body FROM documents d JOIN contents ON document = d.key WHERE d.id = ?", (id,)
    ).fetchone()
    return shelf_of(row[0]) if row else None


def load_window(database: sqlite3.Connection, id: str, chunk_id: str, before: int, after: int) -> list[Passage] | None:
    """Return the chunks around one."""
    owner, _, name = chunk_id.rpartition("#")
    number = _CHUNK.fullmatch(name)
    if owner != id or number is None:
        return None
    ordinal = int(number[1])
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
