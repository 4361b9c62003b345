"""How what the store keeps is written in its rows, and read from them."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

from refdesk.engines.base import UNDER_WAY, CollectionInfo, DocumentInfo, DocumentStatus, Status

STATUS_OF_STAGE: Mapping[str, Status] = {
    "pending": "pending",
    "converting": "converting",
    "indexing": "converting",
    "embedding": "embedding",
    "finishing": "embedding",
    "success": "success",
    "failed": "failed",
}
"""What a stage of the work is called outside: `indexing` and `finishing` wait for an index to be written."""

IS_UNDER_WAY = "stage NOT IN ('success', 'failed')"
"""The condition of the index `documents_under_way`, in its own words: by no others does SQLite know to use it."""

CONVERTED_SHARE = 0.4
"""Of all the work on a document: reading and converting it. Embedding is the rest."""

DOCUMENT_COLUMNS = (
    "d.key, d.id, d.title, d.source, d.media_type, d.size_bytes, d.metadata, d.version, d.digest, d.stage, d.chunks, "
    "d.embedded, d.error, d.attempts, d.created_at, d.updated_at, d.indexed_at, c.id AS collection"
)
INFO_COLUMNS = (
    "d.id, c.id AS collection, d.title, d.version, d.digest, d.indexed_at, d.source, d.media_type, d.size_bytes, "
    "d.metadata"
)
"""Those that `document_info` makes something of, in its order."""

SHORT_DIGEST = 12


def named(cursor: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    """Rows as mappings from their columns' names."""
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; when it ends, it is on the disk."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def now() -> str:
    """This moment, as it is written in a row."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def moment(written: str) -> datetime:
    """A moment from a row."""
    return datetime.fromisoformat(written)


def json_text(value: Any) -> str:
    """A value as JSON."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def digest_of(data: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def document_info(
    id: str,
    collection: str,
    title: str,
    version: str,
    digest: str,
    indexed_at: str,
    source: str,
    media_type: str,
    size_bytes: int,
    metadata: str,
) -> DocumentInfo:
    """A document that is indexed."""
    return DocumentInfo(
        id=id,
        collection=collection,
        title=title,
        version=version or digest[:SHORT_DIGEST],
        indexed_at=moment(indexed_at),
        source=source,
        media_type=media_type,
        size_bytes=size_bytes,
        metadata=orjson.loads(metadata),
    )


def document_status(row: Mapping[str, Any], converted: Mapping[int, float]) -> DocumentStatus:
    """A document, and how far it is; `converted` are the shares of the conversions under way here."""
    return DocumentStatus(
        id=row["id"],
        collection=row["collection"],
        title=row["title"],
        status=STATUS_OF_STAGE[row["stage"]],
        progress=_progress(row, converted.get(row["key"], 0.0)),
        created_at=moment(row["created_at"]),
        updated_at=moment(row["updated_at"]),
        size_bytes=row["size_bytes"],
        chunks=row["chunks"],
        embedded=row["embedded"],
        error=row["error"],
        attempts=row["attempts"],
        source=row["source"],
        metadata=orjson.loads(row["metadata"]),
    )


def _progress(row: Mapping[str, Any], converted: float) -> float:
    match row["stage"]:
        case "success":
            return 1.0
        case "pending" | "failed":
            return 0.0
        case "converting":
            return round(CONVERTED_SHARE * converted, 3)
    share = row["embedded"] / row["chunks"] if row["chunks"] else 0.0
    return round(CONVERTED_SHARE + (1 - CONVERTED_SHARE) * min(share, 1.0) * 0.99, 3)


def added_up(counts: Iterable[Mapping[Status, int]]) -> dict[Status, int]:
    """The documents on their way in of several tenants, by status."""
    total = dict.fromkeys(UNDER_WAY, 0)
    for count in counts:
        for status, documents in count.items():
            total[status] += documents
    return total


def collection_info(row: Mapping[str, Any], *, shared: bool) -> CollectionInfo:
    """A collection, from a row that also counts its documents."""
    return CollectionInfo(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        documents=row["documents"],
        created_at=moment(row["created_at"]),
        updated_at=moment(row["updated_at"]),
        version=row["version"],
        shared=shared,
    )
