"""Local SQLite database of a tenant's R2R documents: queue and catalogue.

It shares its tables with the embedded engine, so that queueing, listing and filtering are the same, and adds R2R's ids.
R2R is the source of truth for ingested documents: the local copy can be rebuilt.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter

from refdesk.calls import TenantId
from refdesk.documents.model import slug_of
from refdesk.engines.base import CollectionInfo, Status
from refdesk.engines.r2r.schemas import OwnMetadata, RemoteCollection, RemoteDocument, decode_description, decode_name
from refdesk.engines.storage import records
from refdesk.engines.storage.databases import TenantDatabase, TenantPool, translate_errors
from refdesk.engines.storage.filters import DOCUMENT_TYPES, Condition
from refdesk.engines.storage.records import (
    COLLECTION_COLUMNS,
    REMOTE,
    build_collection_info,
    dump_json,
    fetch_dicts,
    transaction,
)
from refdesk.engines.storage.source_rows import make_document_id, pick_free

Database = sqlite3.Connection

NEVER = 1e18
"""Retry time of documents that are not ours to ingest."""

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
"""Local stage for each of R2R's ingestion statuses."""

MEDIA_TYPES = {
    **{type: media_type for media_type, type in DOCUMENT_TYPES.items()},
    "htm": "text/html",
    "jpg": "image/jpeg",
}
"""Media types of documents of other R2R users, by R2R's document type."""


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """Document of the catalogue with its local id and its id in R2R."""

    id: str
    uuid: str
    collection: str
    """Id of its collection in R2R."""
    title: str


# Collections


def update_collections(database: Database, remote: Sequence[RemoteCollection]) -> bool:
    """Store the collections found in R2R. Returns whether anything changed."""
    with transaction(database):
        known = dict(database.execute("SELECT uuid, collection FROM remote_collections").fetchall())
        changes = [
            _update_collection(database, each, known) for each in sorted(remote, key=lambda each: each.created_at)
        ]
    return any(changes)


def forget_collection(database: Database, uuid: str) -> None:
    """Delete a collection that no longer exists in R2R. Nothing is left to delete there."""
    with transaction(database):
        for (key,) in database.execute("SELECT collection FROM remote_collections WHERE uuid = ?", (uuid,)).fetchall():
            database.execute(
                "DELETE FROM remote_documents WHERE document IN (SELECT key FROM documents WHERE collection = ?)",
                (key,),
            )
            database.execute("DELETE FROM collections WHERE key = ?", (key,))


def drop_collection(database: Database, slug: str) -> None:
    """Delete a collection and its documents, which are then also deleted from R2R."""
    with transaction(database):
        # Delete the documents first: the trigger needs their collection.
        database.execute(
            "DELETE FROM documents WHERE collection IN (SELECT key FROM collections WHERE id = ?)", (slug,)
        )
        database.execute("DELETE FROM collections WHERE id = ?", (slug,))


def _update_collection(database: Database, remote: RemoteCollection, known: Mapping[str, int]) -> bool:
    name = decode_name(remote.name)[1]
    description, version = decode_description(remote.description)
    fields = (name, description, version, remote.updated_at.isoformat())
    if remote.id in known:
        cursor = database.execute(
            "UPDATE collections SET name = ?, description = ?, version = ?, updated_at = ? "
            "WHERE key = ? AND (name, description, version, updated_at) IS NOT (?, ?, ?, ?)",
            (*fields, known[remote.id], *fields),
        )
        return cursor.rowcount > 0
    planned = database.execute(f"SELECT key FROM collections c WHERE name = ? AND {_IS_PLANNED}", (name,)).fetchone()
    if planned is not None:
        database.execute("INSERT INTO remote_collections (collection, uuid) VALUES (?, ?)", (planned[0], remote.id))
        return True
    slug = pick_free(slug_of(name) or "collection", records.list_collection_ids(database))
    key = database.execute(
        "INSERT INTO collections (id, name, description, version, updated_at, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?) RETURNING key",
        (slug, *fields, remote.created_at.isoformat()),
    ).fetchone()[0]
    database.execute("INSERT INTO remote_collections (collection, uuid) VALUES (?, ?)", (key, remote.id))
    return True


def list_collections(database: Database) -> tuple[list[CollectionInfo], dict[str, str]]:
    """Return the collections ordered by id, and the ids in R2R of those that exist there."""
    rows = database.execute(
        f"SELECT coalesce(r.uuid, '') AS external_id, {COLLECTION_COLUMNS}, "
        "max(coalesce(r.total, 0), (SELECT count(*) FROM documents d WHERE d.collection = c.key)) AS documents "
        "FROM collections c LEFT JOIN remote_collections r ON r.collection = c.key ORDER BY c.id"
    )
    found = [build_collection_info(row, shared=False) for row in fetch_dicts(rows)]
    return found, {info.id: info.external_id for info in found if info.external_id}


_IS_PLANNED = "NOT EXISTS (SELECT 1 FROM remote_collections r WHERE r.collection = c.key)"
"""Condition of a collection that was made while R2R was down, and isn't in R2R yet."""


def list_planned(database: Database) -> list[tuple[str, str, str]]:
    """Return name, description and version of the collections to create in R2R."""
    return database.execute(f"SELECT name, description, version FROM collections c WHERE {_IS_PLANNED}").fetchall()


def set_total(database: Database, uuid: str, total: int) -> None:
    """Store the number of a collection's documents in R2R."""
    database.execute("UPDATE remote_collections SET total = ? WHERE uuid = ? AND total <> ?", (total, uuid, total))


# Documents


def update_documents(database: Database, uuid: str, remote: Sequence[RemoteDocument], since: str) -> bool:
    """Replace a collection's documents by those found in R2R at `since`. Returns whether any differ.

    Documents being ingested from here, or added after `since`, are left unchanged.
    """
    with transaction(database):
        row = database.execute(
            "SELECT c.key, c.id FROM collections c JOIN remote_collections r ON r.collection = c.key WHERE r.uuid = ?",
            (uuid,),
        ).fetchone()
        if row is None:
            return False
        key, slug = row
        tombstones = list_leftovers(database)
        live = [each for each in remote if each.id not in tombstones]
        known = {found["id"]: found for found in fetch_dicts(database.execute(_KNOWN, (key,)))}
        ids = {each.id for each in live}
        latest = {
            make_document_id(slug, each.own.name) if each.own else f"{slug}/{each.id}": each
            for each in sorted(live, key=lambda each: each.created_at)
        }
        changes = [_update_document(database, key, id, each, known.get(id), ids) for id, each in latest.items()]
        gone = [
            found["key"]
            for found in known.values()
            if found["id"] not in latest and found["updated_at"] < since and _is_settled(found)
        ]
        for document in gone:
            database.execute("DELETE FROM remote_documents WHERE document = ?", (document,))
            database.execute("DELETE FROM documents WHERE key = ?", (document,))
        set_total(database, uuid, len(latest))
    return bool(gone) or any(changes)


_KNOWN = (
    "SELECT d.key, d.id, d.kind, d.stage, d.updated_at, coalesce(r.uuid, '') AS uuid "
    "FROM documents d LEFT JOIN remote_documents r ON r.document = d.key WHERE d.collection = ?"
)


def _is_settled(row: Mapping[str, Any]) -> bool:
    """Whether R2R alone determines the state of a document."""
    return bool(row["kind"] == REMOTE or (row["stage"] == "success" and row["uuid"]))


def _update_document(
    database: Database, collection: int, id: str, remote: RemoteDocument, row: Mapping[str, Any] | None, ids: set[str]
) -> bool:
    stage = STAGES.get(remote.status, "pending")
    if row is not None:
        is_replaced = row["kind"] != REMOTE and row["uuid"] in ids
        if is_replaced or not _is_settled(row) or (row["uuid"], row["stage"]) == (remote.id, stage):
            return False
    own = remote.own or OwnMetadata(name=id, size=remote.size, indexed_at=remote.updated_at, metadata=remote.metadata)
    key = database.execute(
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
        (id, collection, own.title or remote.title or id, own.source, own.version, dump_json(own.metadata),
         own.media_type or MEDIA_TYPES.get(remote.kind, ""), own.size, own.digest or remote.id.replace("-", ""),
         own.chunks, own.chunks if stage == "success" else 0, stage, NEVER, remote.failure or None,
         remote.created_at.isoformat(), remote.updated_at.isoformat(),
         own.indexed_at.isoformat() if stage == "success" else None),
    ).fetchone()[0]  # fmt: skip
    database.execute("INSERT OR REPLACE INTO remote_documents VALUES (?, ?)", (key, remote.id))
    return True


def find_document(database: Database, id: str) -> CatalogueEntry | None:
    """Return an ingested document by its local id or its id in R2R."""
    rows = fetch_dicts(
        database.execute(
            "SELECT d.id, r.uuid, c.uuid AS collection, d.title FROM documents d "
            "JOIN remote_documents r ON r.document = d.key JOIN remote_collections c ON c.collection = d.collection "
            "WHERE d.id = ? OR r.uuid = ?",
            (id, id.lower()),
        )
    )
    return next((CatalogueEntry(**row) for row in rows), None)


def find_local_ids(database: Database, uuids: Collection[str]) -> dict[str, str]:
    """Return the local ids of documents by their ids in R2R."""
    marks = ", ".join("?" * len(uuids))
    query = (
        f"SELECT r.uuid, d.id FROM documents d JOIN remote_documents r ON r.document = d.key WHERE r.uuid IN ({marks})"
    )
    return dict(database.execute(query, list(uuids)).fetchall())


def is_foreign(database: Database, id: str) -> bool:
    """Whether a document was found in R2R and not ingested from here."""
    row = database.execute("SELECT kind FROM documents WHERE id = ?", (id,)).fetchone()
    return row is not None and row[0] == REMOTE


def find_matching(database: Database, condition: Condition, slugs: Sequence[str]) -> list[str]:
    """Return the R2R ids of the documents in some collections that match a filter."""
    marks = ", ".join("?" * len(slugs))
    rows = database.execute(
        "SELECT DISTINCT r.uuid FROM documents d JOIN collections c ON c.key = d.collection "
        f"JOIN remote_documents r ON r.document = d.key WHERE c.id IN ({marks}) AND {condition.sql}",
        [*slugs, *condition.parameters],
    )
    return [row[0] for row in rows]


def count_pending(database: Database) -> Mapping[Status, int]:
    """Count the documents being ingested from here, by status. Foreign documents are not included."""
    return records.count_pending(database, f"kind <> '{REMOTE}'")


def read_uuid(database: Database, key: int) -> str | None:
    """Return the R2R id of a document's searchable version."""
    row = database.execute("SELECT uuid FROM remote_documents WHERE document = ?", (key,)).fetchone()
    return row[0] if row else None


# Tombstones


def list_leftovers(database: Database) -> dict[str, str]:
    """Return the R2R ids of documents that are deleted here but still exist in R2R, with their former collections."""
    return dict(database.execute("SELECT uuid, collection FROM leftovers").fetchall())


def add_tombstone(database: Database, uuid: str, collection: str) -> None:
    """Mark a document for deletion from R2R."""
    database.execute("INSERT OR IGNORE INTO leftovers VALUES (?, ?)", (uuid, collection))


def remove_tombstone(database: Database, uuid: str) -> None:
    """Unmark a document, because it is deleted from R2R or used again."""
    database.execute("DELETE FROM leftovers WHERE uuid = ?", (uuid,))


# Databases


SCHEMA_VERSION = 3001
"""Version of the database schema: that of the shared tables times a thousand, plus that of the R2R tables."""

CHANGED_FILE = "changed"
"""File that is touched whenever search results may differ, as a signal to other processes."""

THREADS = 8
"""Threads for database access. SQLite allows one writer at a time anyway."""


class LocalDb(TenantDatabase):
    """Database of one tenant."""

    schema_package = __package__
    schema_version = SCHEMA_VERSION
    other_version_hint = "use another --data folder, or remove the file: Refdesk lists R2R's content again"

    def __init__(self, folder: Path, tenant: TenantId, limiter: CapacityLimiter) -> None:
        super().__init__(folder, tenant, limiter)
        self.uuids: dict[str, str] = {}
        """R2R ids of its collections, by local id."""
        self.tombstones: frozenset[str] = frozenset()
        """R2R ids of documents that are deleted here but still exist in R2R."""
        self._known_revision: Hashable = None
        self._marker = f"{folder}/{CHANGED_FILE}"

    @property
    def is_behind(self) -> bool:
        """Whether another process has changed data that is cached here."""
        return self.revision != self._known_revision

    async def refresh(self) -> None:
        self._known_revision = self.revision
        collections, self.uuids = await self.run(list_collections)
        self.collections = tuple(collections)
        self.tombstones = frozenset(await self.run(list_leftovers))

    def resolve_slug(self, collection: str) -> str:
        """Return the local id of a collection given by its local id or its id in R2R."""
        return next((slug for slug, uuid in self.uuids.items() if uuid == collection.lower()), collection)

    def has_collection(self, collection: str) -> bool:
        """Whether a collection exists, here or also in R2R, by its local id or its id in R2R."""
        slug = self.resolve_slug(collection)
        return any(info.id == slug for info in self.collections)

    @property
    def revision(self) -> Hashable:
        """Value that changes whenever a process on this machine has changed what can be found."""
        try:
            return os.stat(self._marker).st_mtime_ns
        except FileNotFoundError:
            return None

    def mark_changed(self) -> None:
        """Signal that search results may differ."""
        with translate_errors(f"cannot write to {self.folder}"):
            was_behind, before = self.is_behind, self.revision
            Path(self._marker).touch()
            if self.revision == before and isinstance(before, int):
                os.utime(self._marker, ns=(before + 1, before + 1))
            if not was_behind:
                self._known_revision = self.revision


LocalDbPool = TenantPool[LocalDb]
"""Databases of all tenants."""
