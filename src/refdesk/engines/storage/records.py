"""The system of record of one tenant: what is kept of collections, documents and searches, as SQL.

Functions on an open connection. Whatever changes the record is one transaction, on the disk when it returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from refdesk.documents.model import slug_of
from refdesk.engines.base import (
    UNDER_WAY,
    CollectionInfo,
    DocumentStatus,
    FileSource,
    FolderSync,
    Listing,
    NewDocument,
    PastSearch,
    Status,
    TextSource,
)
from refdesk.engines.storage.rows import (
    DOCUMENT_COLUMNS,
    IS_UNDER_WAY,
    STATUS_OF_STAGE,
    collection_info,
    document_status,
    json_text,
    moment,
    named,
    now,
    transaction,
)
from refdesk.engines.storage.sources import Asked, as_text, document_id, is_beneath, path_of, stamp_of
from refdesk.errors import DocumentNotFound, NameTaken, Overloaded

Database = sqlite3.Connection

HISTORY_KEPT = 100
"""Of each user's searches: more than anybody is shown, so that a busy minute does not push out the one before."""

ALL_HISTORY_KEPT = 100_000
"""Of all users' searches together: users are named by strangers."""

MAX_WAITING = 100_000
"""Documents of a tenant that wait to be read."""

BUSY_RETRY_SECONDS = 30.0

STAGES_OF_STATUS = {
    "pending": ("pending",),
    "converting": ("converting", "indexing"),
    "embedding": ("embedding", "finishing"),
    "success": ("success",),
    "failed": ("failed",),
}
_FROM_DOCUMENTS = "FROM documents d JOIN collections c ON c.key = d.collection"


# Collections


def collections(database: Database, *, shared: bool) -> list[CollectionInfo]:
    """All of them, in the order of their ids."""
    rows = database.execute(
        "SELECT c.*, (SELECT count(*) FROM documents d WHERE d.collection = c.key) AS documents "
        "FROM collections c ORDER BY c.id"
    )
    return [collection_info(row, shared=shared) for row in named(rows)]


def create_collection(database: Database, name: str, description: str, version: str, taken: Iterable[str] = ()) -> str:
    """The id of the collection with this name, which is made when it is not there; what is given anew is kept."""
    with transaction(database):
        found = database.execute("SELECT id FROM collections WHERE name = ? OR id = ?", (name, name)).fetchone()
        if found:
            database.execute(
                "UPDATE collections SET description = coalesce(nullif(?, ''), description), "
                "version = coalesce(nullif(?, ''), version) WHERE id = ?",
                (description, version, found[0]),
            )
            return str(found[0])
        id = _free_id(database, slug_of(name) or "collection", taken)
        database.execute(
            "INSERT INTO collections (id, name, description, version, created_at, updated_at) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            (id, name, description, version, now(), now()),
        )
    return id


def _free_id(database: Database, slug: str, taken: Iterable[str]) -> str:
    used = {*taken, *(row[0] for row in database.execute("SELECT id FROM collections"))}
    number, id = 1, slug
    while id in used:
        number += 1
        id = f"{slug}-{number}"
    return id


def delete_collection(database: Database, collection: str) -> bool:
    """Remove a collection and its documents."""
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


def ask_for(database: Database, documents: Sequence[NewDocument]) -> list[str]:
    """Queue documents, in one transaction; answers their ids."""
    with transaction(database):
        _require_room(database, len(documents))
        keys = dict(database.execute("SELECT id, key FROM collections").fetchall())
        ids = []
        for document in documents:
            if document.collection not in keys:
                raise DocumentNotFound(f"There is no collection {document.collection!r}; make it first.")
            ids.append(_ask_for(database, keys[document.collection], document, ""))
    return ids


def _ask_for(database: Database, collection: int, document: NewDocument, folder: str) -> str:
    asked = Asked.of(document.source)
    id = document_id(document.collection, asked.name)
    if isinstance(document.source, TextSource) and not document.source.name:
        id = _own_id(database, id, asked)
    if _is_there(database, id, document, asked):
        return id
    _require_own_place(database, id, document)
    moment_now = now()
    # What is asked for again is done again unless it turns out to be unchanged; till then the old text answers.
    database.execute(
        """
        INSERT INTO documents (id, collection, title, kind, source, root, folder, given, version, metadata, stage,
                               created_at, updated_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending', ?, ?)
        ON CONFLICT (id) DO UPDATE SET
            kind = excluded.kind, source = excluded.source, root = excluded.root, folder = excluded.folder,
            given = excluded.given, version = excluded.version, metadata = excluded.metadata, stage = 'pending',
            request = request + 1, attempts = 0, retry_at = 0, error = NULL, updated_at = excluded.updated_at
        """,
        (id, collection, as_text(asked.title), asked.kind, asked.source, asked.root, folder, asked.given,
         document.version, json_text(document.metadata), moment_now, moment_now),
    )  # fmt: skip
    return id


def _is_there(database: Database, id: str, document: NewDocument, asked: Asked) -> bool:
    """Whether a document is in, or on its way in, just as it is asked for."""
    rows = database.execute("SELECT stamp, stage, version, metadata, digest, given FROM documents WHERE id = ?", (id,))
    for row in named(rows):
        same_text = asked.given is not None and (row["digest"] == asked.digest or row["given"] == asked.given)
        return (same_text and _is_as_asked(row, document)) or _is_unchanged(row, document)
    return False


def _require_own_place(database: Database, id: str, document: NewDocument) -> None:
    """Refuse a file that would take the place of another one, which is still where it was read."""
    if not isinstance(document.source, FileSource):
        return
    row = database.execute("SELECT source FROM documents WHERE id = ? AND kind = 'file'", (id,)).fetchone()
    if row is None:
        return
    other, path = path_of(row[0]), document.source.path
    if other != path and other.exists() and not (path.exists() and path.samefile(other)):
        raise NameTaken(f"{path} would take the place of {other} as {id}. Give it another collection.")


def _require_room(database: Database, more: int) -> None:
    """Refuse what would only wait: whoever asks for it had better come again."""
    waiting = database.execute(f"SELECT count(*) FROM documents WHERE {IS_UNDER_WAY} AND stage = 'pending'").fetchone()[
        0
    ]
    if waiting + more > MAX_WAITING:
        raise Overloaded(
            f"{waiting} documents wait to be indexed, and at most {MAX_WAITING} may. Send fewer, or send them later.",
            retry_after=BUSY_RETRY_SECONDS,
        )


def _own_id(database: Database, id: str, asked: Asked) -> str:
    """An id for a text that is not that of another one with the same title."""
    number, free = 1, id
    while True:
        row = database.execute("SELECT digest, given FROM documents WHERE id = ?", (free,)).fetchone()
        if row is None or row[0] == asked.digest or row[1] == asked.given:
            return free
        number += 1
        free = f"{id}-{number}"


def sync_folder(
    database: Database, collection: str, folder: Path, documents: Sequence[NewDocument], unseen: Sequence[str]
) -> FolderSync:
    """Queue what is new or changed in a folder, and remove what is gone from it; one transaction."""
    with transaction(database):
        row = database.execute("SELECT key FROM collections WHERE id = ?", (collection,)).fetchone()
        if row is None:
            raise DocumentNotFound(f"There is no collection {collection!r}; make it first.")
        known = {
            found["id"]: found
            for found in named(
                database.execute(
                    "SELECT id, stamp, stage, version, metadata, folder, source FROM documents WHERE collection = ?",
                    row,
                )
            )
        }
        _require_room(database, len(documents) - len(known))
        new, changed, seen = list[str](), list[str](), set[str]()
        unchanged = 0
        for document in documents:
            id = document_id(collection, Asked.of(document.source).name)
            seen.add(id)
            if id in known and _is_unchanged(known[id], document):
                unchanged += 1
                _move(database, known[id], document, folder)
                continue
            (changed if id in known else new).append(id)
            _ask_for(database, row[0], document, str(folder))
        gone = [id for id, found in known.items() if found["folder"] == str(folder) and id not in seen]
        removed = [id for id in gone if not is_beneath(id, collection, unseen)]
        remove(database, removed)
    return FolderSync(new, changed, unchanged, removed)


def _move(database: Database, row: Mapping[str, Any], document: NewDocument, folder: Path) -> None:
    """Note that a file is somewhere else now, because its folder was renamed or is named otherwise."""
    asked = Asked.of(document.source)
    if (row["folder"], row["source"]) != (str(folder), asked.source):
        database.execute(
            "UPDATE documents SET folder = ?, source = ?, root = ? WHERE id = ?",
            (str(folder), asked.source, asked.root, row["id"]),
        )


def _is_unchanged(row: Mapping[str, Any], document: NewDocument) -> bool:
    """Whether a file is still the one that was read, as far as a glance at it tells."""
    if not isinstance(document.source, FileSource) or not row["stamp"]:
        return False
    return _is_as_asked(row, document) and str(row["stamp"]) == stamp_of(document.source.path)


def _is_as_asked(row: Mapping[str, Any], document: NewDocument) -> bool:
    same = row["version"] == document.version and row["metadata"] == json_text(document.metadata)
    return bool(same) and row["stage"] != "failed"


def delete(database: Database, id: str) -> bool:
    """Remove a document."""
    with transaction(database):
        return remove(database, [id]) > 0


def remove(database: Database, ids: Sequence[str]) -> int:
    """Remove documents within a transaction; how many were there."""
    count = 0
    for id in ids:
        row = database.execute("DELETE FROM documents WHERE id = ? RETURNING key", (id,)).fetchone()
        if row is not None:
            database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'text')", row)
            count += 1
    return count


def documents(database: Database, listing: Listing, converted: Mapping[int, float]) -> tuple[list[DocumentStatus], int]:
    """Some documents, and how many match in all."""
    where, values = ["1"], list[Any]()
    if listing.collection is not None:
        where.append("c.id = ?")
        values.append(listing.collection)
    if listing.statuses:
        stages = [stage for status in listing.statuses for stage in STAGES_OF_STATUS[status]]
        where.append(f"d.stage IN ({', '.join('?' * len(stages))})")
        values += stages
    condition = f"{_FROM_DOCUMENTS} WHERE {' AND '.join(where)}"
    total = database.execute(f"SELECT count(*) {condition}", values).fetchone()[0]
    order = "d.updated_at DESC, d.id" if listing.newest_first else "d.id"
    rows = database.execute(
        f"SELECT {DOCUMENT_COLUMNS} {condition} ORDER BY {order} LIMIT ? OFFSET ?",
        [*values, listing.limit, listing.offset],
    )
    return [document_status(row, converted) for row in named(rows)], total


def statuses(database: Database, ids: Sequence[str], converted: Mapping[int, float]) -> list[DocumentStatus]:
    """How some documents are, in the order that they are asked for; those that are gone are left out."""
    found: dict[str, DocumentStatus] = {}
    for start in range(0, len(ids), 500):
        part = ids[start : start + 500]
        rows = database.execute(
            f"SELECT {DOCUMENT_COLUMNS} {_FROM_DOCUMENTS} WHERE d.id IN ({', '.join('?' * len(part))})", list(part)
        )
        found |= {row["id"]: document_status(row, converted) for row in named(rows)}
    return [found[id] for id in ids if id in found]


def document_ids(database: Database, prefix: str, limit: int) -> list[str]:
    """Ids that begin with the prefix, in order; only of documents that can be read."""
    rows = database.execute(
        "SELECT id FROM documents WHERE substr(id, 1, ?) = ? AND indexed_at IS NOT NULL ORDER BY id LIMIT ?",
        (len(prefix), prefix, limit),
    )
    return [row[0] for row in rows]


def waiting(database: Database, condition: str = "true") -> dict[Status, int]:
    """How many documents are on their way in, by status, of those that meet a condition."""
    found = dict.fromkeys(UNDER_WAY, 0)
    rows = database.execute(
        f"SELECT stage, count(*) FROM documents WHERE {IS_UNDER_WAY} AND {condition} GROUP BY stage"
    )
    for stage, count in rows:
        found[STATUS_OF_STAGE[stage]] += count
    return found


def are_waiting(database: Database) -> bool:
    """Whether any documents are on their way in."""
    return bool(database.execute(f"SELECT EXISTS (SELECT 1 FROM documents WHERE {IS_UNDER_WAY})").fetchone()[0])


def revision(database: Database) -> int:
    """Another number after every change to documents or collections."""
    return int(database.execute("SELECT number FROM revision").fetchone()[0])


def arriving(database: Database) -> bool:
    """Whether documents are on their way that no search has ever found."""
    row = database.execute(
        f"SELECT EXISTS (SELECT 1 FROM documents WHERE {IS_UNDER_WAY} "
        "AND (stage = 'indexing' OR (stage = 'pending' AND digest = '' AND attempts = 0)))"
    ).fetchone()
    return bool(row[0])


def last_change(database: Database) -> int:
    """The number of the last change that the indexes have to follow."""
    return int(database.execute("SELECT coalesce(max(number), 0) FROM changes").fetchone()[0])


# History


def remember(database: Database, searches: Sequence[tuple[str, PastSearch]]) -> None:
    """Keep searches of users, and no more than some of each."""
    with transaction(database):
        database.executemany(
            "INSERT INTO history (user, query, collection, results, at) VALUES (?, ?, ?, ?, ?)",
            [(user, past.query, past.collection, past.results, past.at.isoformat()) for user, past in searches],
        )
        for user in {user for user, _ in searches}:
            database.execute(
                "DELETE FROM history WHERE user = ? AND key <= (SELECT key FROM history WHERE user = ? "
                "ORDER BY key DESC LIMIT 1 OFFSET ?)",
                (user, user, HISTORY_KEPT),
            )
        database.execute("DELETE FROM history WHERE key <= (SELECT max(key) FROM history) - ?", (ALL_HISTORY_KEPT,))


def history(database: Database, user: str, limit: int) -> list[PastSearch]:
    """A user's last searches, newest first."""
    rows = database.execute(
        "SELECT query, collection, results, at FROM history WHERE user = ? ORDER BY key DESC LIMIT ?", (user, limit)
    )
    return [PastSearch(query, collection, results, moment(at)) for query, collection, results, at in rows]
