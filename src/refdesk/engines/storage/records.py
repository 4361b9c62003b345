"""Document store of one tenant: SQL for collections and documents, and conversion between their rows and values.

Functions take an open connection. Every change is one transaction that is on disk when the function returns.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path
from typing import Any

import orjson

from refdesk.documents.model import slug_of
from refdesk.engines.base import (
    IN_PROGRESS,
    NOTHING_TO_INDEX,
    CollectionInfo,
    DocumentInfo,
    DocumentStatus,
    FileSource,
    FolderSync,
    Listing,
    NewDocument,
    Status,
    TextSource,
    strip_provenance,
)
from refdesk.engines.storage.source_rows import (
    SourceRow,
    decode_path,
    escape_invalid,
    is_below,
    make_document_id,
    pick_free,
    read_stamp,
)
from refdesk.errors import DocumentNotFound, NameTaken, Overloaded

Database = sqlite3.Connection

MAX_PENDING = 100_000
"""Maximum number of a tenant's documents that wait for conversion."""

BUSY_RETRY_SECONDS = 30.0

_FROM_DOCUMENTS = "FROM documents d JOIN collections c ON c.key = d.collection"


# Rows and values


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

STATUS_COLUMNS = (
    "d.id, c.id AS collection, d.title, d.created_at, d.updated_at, d.size_bytes, d.chunks, d.embedded, d.error, "
    "d.attempts, d.source, d.metadata, d.key, d.stage, d.kind"
)
"""Fields of `DocumentStatus`, with the key, stage and kind that its status, progress and warning are computed from."""

REMOTE = "r2r"
"""Kind of a document that was found in R2R and not ingested from here. How many chunks it has is unknown."""

INFO_COLUMNS = (
    "d.id, c.id AS collection, d.title, d.version, d.indexed_at, d.digest, d.source, d.media_type, d.size_bytes, "
    "d.metadata"
)
"""Arguments of `build_document_info`, in order."""

COLLECTION_COLUMNS = (
    "c.id, c.name, c.description, c.version, c.created_at, c.updated_at, "
    f"(SELECT count(*) FROM documents d WHERE d.collection = c.key AND {IS_IN_PROGRESS} "
    "AND stage IN ('pending', 'converting', 'indexing')) AS pending, "
    "c.key || '.' || coalesce((SELECT number FROM collection_revisions n WHERE n.collection = c.key), 0) AS revision"
)
"""Fields of `CollectionInfo` but its number of documents."""

SHORT_DIGEST = 12


def fetch_dicts(cursor: sqlite3.Cursor) -> list[dict[str, Any]]:
    """Return all rows as dictionaries by column name, and end the query."""
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


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


def build_document_info(*row: Any) -> DocumentInfo:
    """Build a DocumentInfo from `INFO_COLUMNS`."""
    id, collection, title, version, indexed_at, digest, source, media_type, size_bytes, metadata = row
    at = datetime.fromisoformat(indexed_at)
    about = source, media_type, size_bytes, orjson.loads(metadata)
    return DocumentInfo(id, collection, title, version, at, digest[:SHORT_DIGEST], *about)


def build_document_status(row: Mapping[str, Any], conversion_progress: Mapping[int, float]) -> DocumentStatus:
    """Build a DocumentStatus from `STATUS_COLUMNS`. `conversion_progress` maps document keys to running conversions."""
    fields = _parse_times(row) | {"metadata": orjson.loads(row["metadata"])}
    key, stage, kind = fields.pop("key"), fields.pop("stage"), fields.pop("kind")
    progress = _compute_progress(row, conversion_progress.get(key, 0.0))
    is_empty = stage == "success" and not row["chunks"] and kind != REMOTE
    warning = NOTHING_TO_INDEX if is_empty else None
    return DocumentStatus(**fields, status=STATUS_OF_STAGE[stage], progress=progress, warning=warning)


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


def build_collection_info(row: Mapping[str, Any], *, shared: bool) -> CollectionInfo:
    """Build a CollectionInfo from `COLLECTION_COLUMNS` and the number of its documents."""
    return CollectionInfo(**_parse_times(row), shared=shared)


def _parse_times(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: datetime.fromisoformat(row[name]) for name in ("created_at", "updated_at")}}


# Collections


def list_collections(database: Database, *, shared: bool) -> list[CollectionInfo]:
    """Return all collections in the order of their ids."""
    rows = database.execute(
        f"SELECT {COLLECTION_COLUMNS}, (SELECT count(*) FROM documents d WHERE d.collection = c.key) AS documents "
        "FROM collections c ORDER BY c.id"
    )
    return [build_collection_info(row, shared=shared) for row in fetch_dicts(rows)]


def create_collection(database: Database, name: str, description: str, version: str, taken: Iterable[str] = ()) -> str:
    """Return the id of the collection with this name, creating or updating it.

    The write lock is only taken if something changes: every start of a server asks for the collection of the manual.
    """
    find = "SELECT id, description, version FROM collections WHERE name = ? OR id = ?"
    found = database.execute(find, (name, name)).fetchone()
    if found and description in ("", found[1]) and version in ("", found[2]):
        return str(found[0])
    with transaction(database):
        found = database.execute(find, (name, name)).fetchone()
        if found:
            database.execute(
                "UPDATE collections SET description = coalesce(nullif(?, ''), description), "
                "version = coalesce(nullif(?, ''), version) WHERE id = ?",
                (description, version, found[0]),
            )
            return str(found[0])
        id = pick_free(slug_of(name) or "collection", {*taken, *list_collection_ids(database)})
        database.execute(
            "INSERT INTO collections (id, name, description, version, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (id, name, description, version, now(), now()),
        )
    return id


def list_collection_ids(database: Database) -> list[str]:
    """Return the ids of all collections."""
    return [row[0] for row in database.execute("SELECT id FROM collections")]


def delete_collection(database: Database, collection: str) -> bool:
    """Delete a collection and its documents. Returns whether it existed."""
    with transaction(database):
        found = database.execute("SELECT key FROM collections WHERE id = ?", (collection,)).fetchone()
        if found is None:
            return False
        database.execute(
            "INSERT OR REPLACE INTO changes (document, kind) SELECT key, 'text' FROM documents WHERE collection = ?",
            found,
        )
        database.execute("DELETE FROM collections WHERE key = ?", found)
    return True


# Documents


def queue_documents(database: Database, documents: Sequence[NewDocument]) -> list[str]:
    """Queue documents in one transaction. Returns their ids."""
    with transaction(database):
        _require_capacity(database, len(documents))
        keys = dict(database.execute("SELECT id, key FROM collections").fetchall())
        ids = []
        for document in documents:
            if document.collection not in keys:
                raise DocumentNotFound(f"There is no collection {document.collection!r}; create it first.")
            ids.append(_queue_document(database, keys[document.collection], document, ""))
    return ids


def _queue_document(database: Database, collection: int, document: NewDocument, folder: str) -> str:
    source_row = SourceRow.from_source(document.source)
    id = make_document_id(document.collection, source_row.name)
    if isinstance(document.source, TextSource) and not document.source.name:
        id = _pick_text_id(database, id, source_row)
    if _is_current(database, id, document, source_row):
        return id
    _require_same_file(database, id, document)
    timestamp = now()
    # The document is converted again unless its source is unchanged. Until then the previous version stays searchable.
    database.execute(
        """
        INSERT INTO documents (id, collection, title, kind, source, root, folder, given, version, metadata, stage,
                               created_at, updated_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?)
        ON CONFLICT (id) DO UPDATE SET
            kind = excluded.kind, source = excluded.source, root = excluded.root, folder = excluded.folder,
            given = excluded.given, version = excluded.version, metadata = excluded.metadata, stage = 'pending',
            digest = iif(chunks = 0, '', digest), stamp = iif(chunks = 0, '', stamp),
            request = request + 1, attempts = 0, retry_at = 0, error = NULL, updated_at = excluded.updated_at
        """,
        (id, collection, escape_invalid(source_row.title), source_row.kind, source_row.source, source_row.root, folder,
         source_row.given, document.version, dump_json(document.metadata), timestamp, timestamp),
    )  # fmt: skip
    return id


def _is_current(database: Database, id: str, document: NewDocument, source_row: SourceRow) -> bool:
    """Whether a document is indexed or queued exactly as requested."""
    rows = database.execute(
        "SELECT stamp, stage, version, metadata, digest, given FROM documents WHERE id = ? "
        "AND (chunks > 0 OR stage <> 'success')",  # text recognition may have been installed since
        (id,),
    )
    for row in fetch_dicts(rows):
        same_text = source_row.given is not None and (
            row["digest"] == source_row.digest or row["given"] == source_row.given
        )
        return (same_text and _is_same_request(row, document)) or _is_unchanged(row, document)
    return False


def _require_same_file(database: Database, id: str, document: NewDocument) -> None:
    """Reject a file whose id belongs to another file that still exists."""
    if not isinstance(document.source, FileSource):
        return
    row = database.execute("SELECT source FROM documents WHERE id = ? AND kind = 'file'", (id,)).fetchone()
    if row is None:
        return
    other, path = decode_path(row[0]), document.source.path
    if other != path and other.exists() and not (path.exists() and path.samefile(other)):
        raise NameTaken(f"{path} would replace {other} as {id}. Use another collection.")


def _require_capacity(database: Database, more: int) -> None:
    count = f"SELECT count(*) FROM documents WHERE {IS_IN_PROGRESS} AND stage = 'pending'"
    pending = database.execute(count).fetchone()[0]
    if pending + more > MAX_PENDING:
        raise Overloaded(
            f"The queue is full: {pending} documents wait, and the limit is {MAX_PENDING}. Send fewer, or try later.",
            retry_after=BUSY_RETRY_SECONDS,
        )


def _pick_text_id(database: Database, id: str, source_row: SourceRow) -> str:
    """Return an id for a text that isn't used by another text with the same title."""
    number, free = 1, id
    while True:
        row = database.execute("SELECT digest, given FROM documents WHERE id = ?", (free,)).fetchone()
        if row is None or row[0] == source_row.digest or row[1] == source_row.given:
            return free
        number += 1
        free = f"{id}-{number}"


@dataclass(frozen=True)
class _FolderChanges:
    """Differences between a folder and the documents of its collection."""

    collection: int
    queued: Sequence[NewDocument]
    """New and changed files."""
    moved: Mapping[str, SourceRow]
    """Unchanged files of a folder that was moved or renamed."""
    report: FolderSync


def sync_folder(
    database: Database, collection: str, folder: Path, documents: Sequence[NewDocument], unseen: Sequence[str]
) -> FolderSync:
    """Queue new and changed files of a folder and delete missing ones, in one transaction.

    The write lock is only taken if there are any: every start of a server syncs the manual.
    """
    changes = _compare_folder(database, collection, folder, documents, unseen)
    if changes.queued or changes.moved or changes.report.removed:
        with transaction(database):
            # Another process may have synced the folder meanwhile.
            changes = _compare_folder(database, collection, folder, documents, unseen)
            _require_capacity(database, len(changes.report.new))
            for document in changes.queued:
                _queue_document(database, changes.collection, document, str(folder))
            database.executemany(
                "UPDATE documents SET folder = ?, source = ?, root = ? WHERE id = ?",
                [(str(folder), source_row.source, source_row.root, id) for id, source_row in changes.moved.items()],
            )
            remove(database, changes.report.removed)
    return changes.report


def _compare_folder(
    database: Database, collection: str, folder: Path, documents: Sequence[NewDocument], unseen: Sequence[str]
) -> _FolderChanges:
    row = database.execute("SELECT key FROM collections WHERE id = ?", (collection,)).fetchone()
    if row is None:
        raise DocumentNotFound(f"There is no collection {collection!r}; create it first.")
    rows = database.execute(
        "SELECT id, stamp, stage, version, metadata, folder, source FROM documents WHERE collection = ?", row
    )
    known = {found["id"]: found for found in fetch_dicts(rows)}
    new, changed, moved = dict[str, NewDocument](), dict[str, NewDocument](), dict[str, SourceRow]()
    seen = set[str]()
    for document in documents:
        source_row = SourceRow.from_source(document.source)
        id = make_document_id(collection, source_row.name)
        seen.add(id)
        if id not in known:
            new[id] = document
        elif not _is_unchanged(known[id], document):
            changed[id] = document
        elif (known[id]["folder"], known[id]["source"]) != (str(folder), source_row.source):
            moved[id] = source_row
    gone = [id for id, found in known.items() if found["folder"] == str(folder) and id not in seen]
    removed = tuple(id for id in gone if not is_below(id, collection, unseen))
    report = FolderSync(tuple(new), tuple(changed), len(documents) - len(new) - len(changed), removed)
    return _FolderChanges(row[0], [*new.values(), *changed.values()], moved, report)


def _is_unchanged(row: Mapping[str, Any], document: NewDocument) -> bool:
    """Whether a file's stamp is the same as when it was last read."""
    if not isinstance(document.source, FileSource) or not row["stamp"]:
        return False
    return _is_same_request(row, document) and str(row["stamp"]) == read_stamp(document.source.path)


def _is_same_request(row: Mapping[str, Any], document: NewDocument) -> bool:
    if row["version"] != document.version or row["stage"] == "failed":
        return False
    return dump_json(strip_provenance(orjson.loads(row["metadata"]))) == dump_json(strip_provenance(document.metadata))


def delete(database: Database, id: str) -> bool:
    """Delete a document. Returns whether it existed."""
    with transaction(database):
        return remove(database, [id]) > 0


def remove(database: Database, ids: Sequence[str]) -> int:
    """Delete documents within a transaction. Returns how many existed."""
    count = 0
    for id in ids:
        row = database.execute("DELETE FROM documents WHERE id = ? RETURNING key", (id,)).fetchone()
        if row is not None:
            database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'text')", row)
            count += 1
    return count


def list_documents(
    database: Database, listing: Listing, conversion_progress: Mapping[int, float]
) -> tuple[list[DocumentStatus], int]:
    """Return a page of documents, and the total number of matches."""
    where, values = ["1"], list[Any]()
    if listing.collection is not None:
        where.append("c.id = ?")
        values.append(listing.collection)
    if listing.statuses:
        stages = [stage for stage, status in STATUS_OF_STAGE.items() if status in listing.statuses]
        where.append(f"d.stage IN ({', '.join('?' * len(stages))})")
        values += stages
    condition = f"{_FROM_DOCUMENTS} WHERE {' AND '.join(where)}"
    total = database.execute(f"SELECT count(*) {condition}", values).fetchone()[0]
    order = "d.updated_at DESC, d.id" if listing.newest_first else "d.id"
    rows = database.execute(
        f"SELECT {STATUS_COLUMNS} {condition} ORDER BY {order} LIMIT ? OFFSET ?",
        [*values, listing.limit, listing.offset],
    )
    return [build_document_status(row, conversion_progress) for row in fetch_dicts(rows)], total


def get_statuses(
    database: Database, ids: Sequence[str], conversion_progress: Mapping[int, float]
) -> list[DocumentStatus]:
    """Return the statuses of documents in the requested order. Deleted ones are omitted."""
    found: dict[str, DocumentStatus] = {}
    for start in range(0, len(ids), 500):
        part = ids[start : start + 500]
        rows = database.execute(
            f"SELECT {STATUS_COLUMNS} {_FROM_DOCUMENTS} WHERE d.id IN ({', '.join('?' * len(part))})", list(part)
        )
        found |= {row["id"]: build_document_status(row, conversion_progress) for row in fetch_dicts(rows)}
    return [found[id] for id in ids if id in found]


def load_info(database: Database, id: str) -> DocumentInfo | None:
    """Return the metadata of an indexed document."""
    rows = database.execute(
        f"SELECT {INFO_COLUMNS} {_FROM_DOCUMENTS} WHERE d.id = ? AND d.indexed_at IS NOT NULL", (id,)
    )
    return next(starmap(build_document_info, rows), None)


def list_document_ids(database: Database, prefix: str, parts: Sequence[str], limit: int) -> list[str]:
    """Return the sorted ids of readable documents that start with the prefix and contain one of the parts, if any."""
    patterns = ["%" + re.sub("([%_!])", r"!\1", part) + "%" for part in parts]
    contains = " OR ".join("id LIKE ? ESCAPE '!'" for _ in patterns) or "true"
    rows = database.execute(
        f"SELECT id FROM documents WHERE substr(id, 1, ?) = ? AND indexed_at IS NOT NULL AND ({contains}) "
        "ORDER BY id LIMIT ?",
        (len(prefix), prefix, *patterns, limit),
    )
    return [row[0] for row in rows]


def filter_ids(database: Database, ids: Collection[str]) -> frozenset[str]:
    """Return those of the ids that name readable documents."""
    rows = database.execute(
        "SELECT id FROM documents WHERE id IN (SELECT value FROM json_each(?)) AND indexed_at IS NOT NULL",
        (dump_json(list(ids)),),
    )
    return frozenset(row[0] for row in rows)


def count_pending(database: Database, condition: str = "true") -> dict[Status, int]:
    """Count the unfinished documents that meet a condition, by status."""
    found = dict.fromkeys(IN_PROGRESS, 0)
    rows = database.execute(
        f"SELECT stage, count(*) FROM documents WHERE {IS_IN_PROGRESS} AND {condition} GROUP BY stage"
    )
    for stage, count in rows:
        found[STATUS_OF_STAGE[stage]] += count
    return found


def has_pending(database: Database) -> bool:
    """Whether any documents are unfinished."""
    return bool(database.execute(f"SELECT EXISTS (SELECT 1 FROM documents WHERE {IS_IN_PROGRESS})").fetchone()[0])


def read_revision(database: Database) -> int:
    """Return a number that changes with every change to documents or collections."""
    return int(database.execute("SELECT number FROM revision").fetchone()[0])


def has_unindexed(database: Database) -> bool:
    """Whether queued documents have no searchable version yet."""
    row = database.execute(
        f"SELECT EXISTS (SELECT 1 FROM documents WHERE {IS_IN_PROGRESS} "
        "AND (stage = 'indexing' OR (stage = 'pending' AND digest = '' AND attempts = 0)))"
    ).fetchone()
    return bool(row[0])


def read_last_change(database: Database) -> int:
    """Return the number of the last change the indexes have to apply."""
    return int(database.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0])
