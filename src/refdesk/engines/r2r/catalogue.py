"""The SQL over a tenant's record that has to do with R2R: what is where there, and what was seen there."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from refdesk.documents.model import slug_of
from refdesk.engines.base import CollectionInfo, DocumentInfo, Status
from refdesk.engines.r2r.naming import free_slug, read_description, read_name
from refdesk.engines.r2r.schemas import RemoteCollection, RemoteDocument
from refdesk.engines.storage import records
from refdesk.engines.storage.filters import Condition
from refdesk.engines.storage.rows import (
    INFO_COLUMNS,
    collection_info,
    document_info,
    json_text,
    named,
    transaction,
)
from refdesk.engines.storage.sources import document_id

Database = sqlite3.Connection

REMOTE = "r2r"
"""The kind of a document that was seen at R2R and not brought in from here."""

NEVER = 1e18
"""When a document is to be read that is not ours to read."""

STAGES: Mapping[str, str] = {
    "pending": "pending",
    "parsing": "converting",
    "extracting": "converting",
    "chunking": "converting",
    "augmenting": "embedding",
    "embedding": "embedding",
    "storing": "embedding",
    "enriching": "embedding",
    "success": "success",
    "failed": "failed",
}
"""R2R's words for how far a document is, in those of the record."""

ORDERLY_MEDIA = {"txt": "text/plain", "md": "text/markdown", "html": "text/html", "pdf": "application/pdf"}


@dataclass(frozen=True, slots=True)
class Known:
    """A document of the catalogue: its ids here and at R2R."""

    key: int
    id: str
    uuid: str
    collection: str
    """The id of its collection at R2R."""
    title: str


# Collections


def see_collections(database: Database, seen: Sequence[RemoteCollection]) -> bool:
    """Note the collections that were seen at R2R; whether anything is different now."""
    with transaction(database):
        known = dict(database.execute("SELECT uuid, collection FROM remote_collections").fetchall())
        changes = [_see_collection(database, each, known) for each in sorted(seen, key=lambda each: each.created_at)]
    return any(changes)


def forget_collection(database: Database, uuid: str) -> None:
    """It is gone from R2R: nothing of it is ours to remove there any more."""
    with transaction(database):
        for (key,) in database.execute("SELECT collection FROM remote_collections WHERE uuid = ?", (uuid,)).fetchall():
            database.execute(
                "DELETE FROM remote_documents WHERE document IN (SELECT key FROM documents WHERE collection = ?)",
                (key,),
            )
            database.execute("DELETE FROM collections WHERE key = ?", (key,))


def drop_collection(database: Database, slug: str) -> None:
    """Give a collection up with its documents, which are to be removed at R2R too."""
    with transaction(database):
        # Each by itself, while it is known where it was.
        database.execute(
            "DELETE FROM documents WHERE collection IN (SELECT key FROM collections WHERE id = ?)", (slug,)
        )
        database.execute("DELETE FROM collections WHERE id = ?", (slug,))


def _see_collection(database: Database, seen: RemoteCollection, known: Mapping[str, int]) -> bool:
    name = read_name(seen.name)[1]
    description, version = read_description(seen.description)
    told = (name, description, version, seen.updated_at.isoformat())
    if seen.id in known:
        cursor = database.execute(
            "UPDATE collections SET name = ?, description = ?, version = ?, updated_at = ? "
            "WHERE key = ? AND (name, description, version, updated_at) IS NOT (?, ?, ?, ?)",
            (*told, known[seen.id], *told),
        )
        return cursor.rowcount > 0
    taken = {row[0] for row in database.execute("SELECT id FROM collections")}
    slug = free_slug(slug_of(name) or "collection", taken)
    key = database.execute(
        "INSERT INTO collections (id, name, description, version, updated_at, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?) RETURNING key",
        (slug, *told, seen.created_at.isoformat()),
    ).fetchone()[0]
    database.execute("INSERT INTO remote_collections (collection, uuid) VALUES (?, ?)", (key, seen.id))
    return True


def collections(database: Database) -> tuple[list[CollectionInfo], dict[str, str]]:
    """The collections in the order of their ids, and their ids at R2R."""
    rows = database.execute(
        "SELECT c.*, r.uuid, max(r.total, (SELECT count(*) FROM documents d WHERE d.collection = c.key)) AS documents "
        "FROM collections c JOIN remote_collections r ON r.collection = c.key ORDER BY c.id"
    )
    found = list(named(rows))
    return [collection_info(row, shared=False) for row in found], {row["id"]: row["uuid"] for row in found}


def note_total(database: Database, uuid: str, total: int) -> None:
    """How many documents of a collection there are at R2R."""
    database.execute("UPDATE remote_collections SET total = ? WHERE uuid = ? AND total <> ?", (total, uuid, total))


# Documents


def see_documents(database: Database, uuid: str, seen: Sequence[RemoteDocument], since: str) -> bool:
    """Make the record's documents of a collection those that were seen at R2R from `since` on; whether any differ.

    What is on its way in from here stays as it is, as does what came in after the look at R2R had begun.
    """
    with transaction(database):
        row = database.execute(
            "SELECT c.key, c.id FROM collections c JOIN remote_collections r ON r.collection = c.key WHERE r.uuid = ?",
            (uuid,),
        ).fetchone()
        if row is None:
            return False
        key, slug = row
        given_up = {found[0] for found in database.execute("SELECT uuid FROM leftovers")}
        there = [each for each in seen if each.id not in given_up]
        known = {found["id"]: found for found in named(database.execute(_KNOWN, (key,)))}
        ids = {each.id for each in there}
        latest = {id_of(slug, each): each for each in sorted(there, key=lambda each: each.created_at)}
        changes = [_see_document(database, key, id, each, known.get(id), ids) for id, each in latest.items()]
        gone = [
            found["key"]
            for found in known.values()
            if found["id"] not in latest and found["updated_at"] < since and _is_settled(found)
        ]
        forget(database, gone)
        note_total(database, uuid, len(latest))
    return bool(gone) or any(changes)


_KNOWN = (
    "SELECT d.key, d.id, d.kind, d.stage, d.updated_at, coalesce(r.uuid, '') AS uuid "
    "FROM documents d LEFT JOIN remote_documents r ON r.document = d.key WHERE d.collection = ?"
)


def _is_settled(row: Mapping[str, Any]) -> bool:
    """Whether R2R alone decides on what becomes of it."""
    return bool(row["kind"] == REMOTE or (row["stage"] == "success" and row["uuid"]))


def id_of(slug: str, seen: RemoteDocument) -> str:
    """What a document at R2R is called here: by the name that Refdesk gave it, or by its id there."""
    return document_id(slug, seen.own["name"]) if seen.own else f"{slug}/{seen.id}"


def _see_document(
    database: Database,
    collection: int,
    id: str,
    seen: RemoteDocument,
    row: Mapping[str, Any] | None,
    ids: set[str],
) -> bool:
    stage = STAGES.get(seen.status, "pending")
    if row is not None:
        is_replaced = row["kind"] != REMOTE and row["uuid"] in ids
        if is_replaced or not _is_settled(row) or (row["uuid"], row["stage"]) == (seen.id, stage):
            return False
    key = _keep_seen(database, collection, id, seen, stage)
    database.execute("INSERT OR REPLACE INTO remote_documents VALUES (?, ?)", (key, seen.id))
    return True


def _keep_seen(database: Database, collection: int, id: str, seen: RemoteDocument, stage: str) -> int:
    own = seen.own or {}
    indexed_at = own.get("indexed_at") or seen.updated_at.isoformat()
    chunks = own.get("chunks", 0)
    row = database.execute(
        """
        INSERT INTO documents (id, collection, title, kind, source, root, folder, version, metadata, media_type,
                               size_bytes, digest, chunks, embedded, stage, retry_at, error, created_at, updated_at,
                               indexed_at)
        VALUES (?, ?, ?, 'r2r', ?, '', '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (id) DO UPDATE SET
            title = excluded.title, kind = excluded.kind, source = excluded.source, root = '', folder = '',
            given = NULL, stamp = '', version = excluded.version, metadata = excluded.metadata,
            media_type = excluded.media_type, size_bytes = excluded.size_bytes, digest = excluded.digest,
            chunks = excluded.chunks, embedded = excluded.embedded, stage = excluded.stage,
            retry_at = excluded.retry_at, error = excluded.error, updated_at = excluded.updated_at,
            indexed_at = excluded.indexed_at
        RETURNING key
        """,
        (id, collection, own.get("title") or seen.title or id, own.get("source", ""), own.get("version", ""),
         json_text(own.get("metadata", {}) if own else seen.metadata),
         own.get("media_type") or ORDERLY_MEDIA.get(seen.kind, ""), own.get("size", seen.size),
         own.get("digest") or seen.id.replace("-", ""), chunks, chunks if stage == "success" else 0, stage, NEVER,
         seen.failure or None, seen.created_at.isoformat(), seen.updated_at.isoformat(),
         indexed_at if stage == "success" else None),
    ).fetchone()  # fmt: skip
    return int(row[0])


def forget(database: Database, keys: Sequence[int]) -> None:
    """Take documents out of the catalogue that are gone from R2R; nothing is left to remove there."""
    for key in keys:
        database.execute("DELETE FROM remote_documents WHERE document = ?", (key,))
        database.execute("DELETE FROM documents WHERE key = ?", (key,))


def find(database: Database, id: str) -> Known | None:
    """A document of the catalogue that has come in, by its id here or at R2R."""
    rows = named(
        database.execute(
            "SELECT d.key, d.id, r.uuid, c.uuid AS collection, d.title FROM documents d "
            "JOIN remote_documents r ON r.document = d.key JOIN remote_collections c ON c.collection = d.collection "
            "WHERE d.id = ? OR r.uuid = ?",
            (id, id.lower()),
        )
    )
    return next((Known(**row) for row in rows), None)


def id_for(database: Database, id: str) -> str:
    """A document's id here, where R2R's is given; any other as it is."""
    found = find(database, id)
    return found.id if found else id


def info(database: Database, key: int) -> DocumentInfo | None:
    """What is known of a document besides its text."""
    rows = database.execute(
        f"SELECT {INFO_COLUMNS} FROM documents d JOIN collections c ON c.key = d.collection "
        "WHERE d.key = ? AND d.indexed_at IS NOT NULL",
        (key,),
    )
    return next(starmap(document_info, rows), None)


def is_of_others(database: Database, id: str) -> bool:
    """Whether a document was seen at R2R and not brought in from here."""
    row = database.execute("SELECT kind FROM documents WHERE id = ?", (id,)).fetchone()
    return row is not None and row[0] == REMOTE


def matching(database: Database, condition: Condition, slugs: Sequence[str]) -> list[str]:
    """The ids at R2R of the documents that meet a filter, in some collections."""
    marks = ", ".join("?" * len(slugs))
    rows = database.execute(
        "SELECT DISTINCT r.uuid FROM documents d JOIN collections c ON c.key = d.collection "
        f"JOIN remote_documents r ON r.document = d.key WHERE c.id IN ({marks}) AND {condition.sql}",
        [*slugs, *condition.parameters],
    )
    return [row[0] for row in rows]


def waiting(database: Database) -> Mapping[Status, int]:
    """How many documents are on their way in from here, by status; others' are not ours to see to."""
    return records.waiting(database, f"kind <> '{REMOTE}'")


def uuid_of(database: Database, key: int) -> str | None:
    """What answers to searches for a document now."""
    row = database.execute("SELECT uuid FROM remote_documents WHERE document = ?", (key,)).fetchone()
    return row[0] if row else None


# What is to go


def given_up(database: Database) -> frozenset[str]:
    """The ids at R2R of documents that nobody is to find any more."""
    return frozenset(row[0] for row in database.execute("SELECT uuid FROM leftovers"))


def leftovers(database: Database) -> list[tuple[str, str]]:
    """Documents that are still at R2R, with the collections that they were in."""
    return database.execute("SELECT uuid, collection FROM leftovers").fetchall()


def give_up(database: Database, uuid: str, collection: str) -> None:
    """Have a document at R2R removed, soon."""
    database.execute("INSERT OR IGNORE INTO leftovers VALUES (?, ?)", (uuid, collection))


def is_gone(database: Database, uuid: str) -> None:
    """A document is no longer at R2R."""
    database.execute("DELETE FROM leftovers WHERE uuid = ?", (uuid,))
