"""Conversion between database rows and values."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import orjson

from refdesk.engines.base import IN_PROGRESS, CollectionInfo, DocumentInfo, DocumentStatus, Status

STATUS_OF_STAGE: Mapping[str, Status] = {
    "pending": "pending",
    "converting": "converting",
    "indexing": "converting",
    "embedding": "embedding",
    "finishing": "embedding",
    "success": "success",
    "failed": "failed",
}
"""Public status of each internal stage. `indexing` and `finishing` wait for an index to be written."""

IS_IN_PROGRESS = "stage NOT IN ('success', 'failed')"
"""Condition of the partial index `documents_under_way`, verbatim: SQLite only uses the index for this exact
expression."""

CONVERSION_SHARE = 0.4
"""Share of reading and converting in a document's progress. Embedding is the rest."""

DOCUMENT_COLUMNS = (
    "d.key, d.id, d.title, d.source, d.media_type, d.size_bytes, d.metadata, d.version, d.digest, d.stage, d.chunks, "
    "d.embedded, d.error, d.attempts, d.created_at, d.updated_at, d.indexed_at, c.id AS collection"
)
INFO_COLUMNS = (
    "d.id, c.id AS collection, d.title, d.version, d.indexed_at, d.digest, d.source, d.media_type, d.size_bytes, "
    "d.metadata"
)
"""Arguments of `build_document_info`, in order."""

SHORT_DIGEST = 12


def fetch_dicts(cursor: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    """Yield rows as dictionaries by column name."""
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield dict(zip(names, row, strict=True))


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Run the block in a transaction: all or nothing, on disk when it ends."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def now() -> str:
    """Return the current time in the format of rows."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def parse_chunk_number(chunk_id: str, document_id: str) -> int | None:
    """Return the number of a chunk of this document, or None if it isn't the id of one."""
    owner, _, name = chunk_id.rpartition("#")
    number = re.fullmatch(r"c(\d{1,9})", name)
    return int(number[1]) if number is not None and owner == document_id else None


def dump_json(value: Any) -> str:
    """Serialize a value as JSON with sorted keys."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of some bytes as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def build_document_info(*row: Any) -> DocumentInfo:
    """Build a DocumentInfo from `INFO_COLUMNS`."""
    id, collection, title, version, indexed_at, digest, source, media_type, size_bytes, metadata = row
    at = datetime.fromisoformat(indexed_at)
    about = source, media_type, size_bytes, orjson.loads(metadata)
    return DocumentInfo(id, collection, title, version, at, digest[:SHORT_DIGEST], *about)


def build_document_status(row: Mapping[str, Any], conversion_progress: Mapping[int, float]) -> DocumentStatus:
    """Build a DocumentStatus from a row. `conversion_progress` maps document keys to running conversions."""
    return DocumentStatus(
        id=row["id"],
        collection=row["collection"],
        title=row["title"],
        status=STATUS_OF_STAGE[row["stage"]],
        progress=_compute_progress(row, conversion_progress.get(row["key"], 0.0)),
        created_at=datetime.fromisoformat(row["created_at"]),
        updated_at=datetime.fromisoformat(row["updated_at"]),
        size_bytes=row["size_bytes"],
        chunks=row["chunks"],
        embedded=row["embedded"],
        error=row["error"],
        attempts=row["attempts"],
        source=row["source"],
        metadata=orjson.loads(row["metadata"]),
    )


def _compute_progress(row: Mapping[str, Any], conversion_progress: float) -> float:
    match row["stage"]:
        case "success":
            return 1.0
        case "pending" | "failed":
            return 0.0
        case "converting":
            return round(CONVERSION_SHARE * conversion_progress, 3)
    share = row["embedded"] / row["chunks"] if row["chunks"] else 0.0
    return round(CONVERSION_SHARE + (1 - CONVERSION_SHARE) * min(share, 1.0) * 0.99, 3)


def sum_counts(counts: Collection[Mapping[Status, int]]) -> dict[Status, int]:
    """Sum the unfinished documents of several tenants by status."""
    return {status: sum(count[status] for count in counts) for status in IN_PROGRESS}


PENDING_COUNT = (
    f"(SELECT count(*) FROM documents d WHERE d.collection = c.key AND {IS_IN_PROGRESS} "
    "AND stage IN ('pending', 'converting', 'indexing')) AS pending"
)
"""Column with the number of a collection's documents that no search finds yet."""


def build_collection_info(row: Mapping[str, Any], *, shared: bool) -> CollectionInfo:
    """Build a CollectionInfo from a row that includes its document counts."""
    return CollectionInfo(
        id=row["id"],
        name=row["name"],
        description=row["description"],
        documents=row["documents"],
        created_at=datetime.fromisoformat(row["created_at"]),
        updated_at=datetime.fromisoformat(row["updated_at"]),
        version=row["version"],
        shared=shared,
        pending=row["pending"],
    )
