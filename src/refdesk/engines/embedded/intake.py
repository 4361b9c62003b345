"""The first half of a document's way in: from where it is, through a conversion, into the record."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path
from typing import IO, Any

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions, File, Progress, fetched_file
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import OpenedFile, Roots
from refdesk.documents.model import Chunk
from refdesk.documents.scratch import scratch_file
from refdesk.documents.shelf import About, Shelf
from refdesk.engines.embedded.embedded_text import hash_of
from refdesk.engines.embedded.meaning import model_of
from refdesk.engines.embedded.records import path_of, stamp_from
from refdesk.engines.embedded.rows import digest_of, json_text, named, now, transaction
from refdesk.errors import CannotOpen, EngineError

COMPRESSION = 1
"""Of packed documents: the fastest; they shrink to a quarter, and more effort gains little."""

READ_SIZE = 1 << 20
NO_ROOM = frozenset({ENOSPC, EDQUOT, EROFS})


@dataclass(frozen=True, slots=True)
class Task:
    """A document that waits to be read."""

    key: int
    id: str
    request: int
    """Which asking this is the answer to."""
    kind: str
    source: str
    root: str
    given: bytes | None
    title: str
    digest: str
    stamp: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a source gave: a packed document, or None when it has not changed."""

    packed: bytes | None
    digest: str
    stamp: str
    size: int


TASK_COLUMNS = "key, id, request, kind, source, root, given, title, digest, stamp, attempts"


def next_tasks(database: sqlite3.Connection, at: float, limit: int, taken: Sequence[int]) -> list[Task]:
    """The documents to read next: those that have failed least, in the order in which they were asked for."""
    marks = ", ".join("?" * len(taken))
    rows = database.execute(
        f"SELECT {TASK_COLUMNS} FROM documents WHERE stage = 'pending' AND retry_at <= ? AND key NOT IN ({marks}) "
        "ORDER BY attempts, key LIMIT ?",
        [at, *taken, limit],
    )
    return [Task(**row) for row in named(rows)]


class Intake:
    """Reads and converts what is asked for."""

    def __init__(self, conversions: Conversions, closed: Sequence[Path] = ()) -> None:
        self._conversions = conversions
        self._closed = closed
        """Files and folders of the desk's own, which stay shut wherever they are."""

    async def receive(self, tenant: TenantId, task: Task, told: Callable[[float], None], *, is_own: bool) -> Arrived:
        """What the document's source gives now; `told` hears how far the conversion is."""

        async def progress(done: float, total: float | None, _doing: str) -> None:
            told(done / total if total else 0.0)

        with _readable(task):
            match task.kind:
                case "file":
                    return await self._file(task, progress, is_own)
                case "url":
                    return await self._url(task, progress)
                case "shelf":
                    return await self._shelf(tenant, task)
                case _:
                    return await self._text(task, progress, is_own)

    async def _file(self, task: Task, progress: Progress, is_own: bool) -> Arrived:
        with await to_thread.run_sync(self._open, task) as opened:
            digest, stamp = await to_thread.run_sync(_digest_and_stamp, opened.fd)
            if digest == task.digest:
                return Arrived(None, digest, stamp, opened.size)
            name = clean_name(opened.name) or "document"
            packed = await self._conversions.pack(File(opened.fd, name, opened.size, is_own=is_own), progress)
            if stamp_from(os.fstat(opened.fd)) != stamp:
                # Written meanwhile: what was converted may not be what was hashed, and is never taken for unchanged.
                digest, stamp = digest_of(packed), ""
        return Arrived(packed, digest, stamp, opened.size)

    def _open(self, task: Task) -> OpenedFile:
        if task.root:
            return Roots([Path(task.root)], self._closed).open(task.source)
        path = path_of(task.source)
        try:
            # Not to wait for whoever might write to a pipe.
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise CannotOpen(f"{path} cannot be opened: {error.strerror or error}.") from None
        if not path.is_file():
            os.close(fd)
            raise CannotOpen(f"{path} is no file.")
        return OpenedFile(fd, path.name, os.fstat(fd).st_size, path)

    async def _url(self, task: Task, progress: Progress) -> Arrived:
        etag, _, modified = task.stamp.partition("\n")
        async with self._conversions.fetched(task.source, etag, modified, progress) as fetched:
            if fetched.not_modified:
                return Arrived(None, task.digest, task.stamp, fetched.size)
            stamp = f"{fetched.etag or ''}\n{fetched.last_modified or ''}"
            digest, _ = await to_thread.run_sync(_digest_and_stamp, fetched.file.fileno())
            if digest == task.digest:
                return Arrived(None, digest, stamp, fetched.size)
            packed = await self._conversions.pack(fetched_file(fetched), progress)
        return Arrived(packed, digest, stamp, fetched.size)

    async def _shelf(self, tenant: TenantId, task: Task) -> Arrived:
        packed = await self._conversions.packed(tenant, task.source)
        if packed is None:
            raise CannotOpen(f"The converted document {task.source} has expired. Convert it again.")
        digest = digest_of(packed)
        return Arrived(None if digest == task.digest else packed, digest, "", len(packed))

    async def _text(self, task: Task, progress: Progress, is_own: bool) -> Arrived:
        body = task.given or b""
        digest = digest_of(body)
        if digest == task.digest:
            return Arrived(None, digest, "", len(body))
        async with scratch_file() as file:
            await to_thread.run_sync(_write, file, body)
            name = f"{task.title or 'text'}.md"
            packed = await self._conversions.pack(File(file.fileno(), name, len(body), is_own=is_own), progress)
        return Arrived(packed, digest, "", len(body))


@contextmanager
def _readable(task: Task) -> Iterator[None]:
    """A disk that has no room stops all the work; a file that cannot be read is its own fault."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise EngineError(f"there is no room to convert {task.id}: {error.strerror}") from error
        raise CannotOpen(f"{task.source or task.id} cannot be read: {error.strerror or error}.") from error


def _write(file: IO[bytes], body: bytes) -> None:
    file.write(body)
    file.flush()


def _digest_and_stamp(fd: int) -> tuple[str, str]:
    """The SHA-256 of an open file, and its stamp from before it was read: a change meanwhile is seen next time."""
    stamp = stamp_from(os.fstat(fd))
    os.lseek(fd, 0, os.SEEK_SET)
    hashed = hashlib.sha256()
    while part := os.read(fd, READ_SIZE):
        hashed.update(part)
    return hashed.hexdigest(), stamp


def keep_unchanged(database: sqlite3.Connection, task: Task, arrived: Arrived) -> None:
    """Note that a document is still what it was; its version or metadata may have changed, which need no index."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = CASE WHEN embedded < chunks THEN 'embedding' ELSE 'success' END, "
            "stamp = ?, given = NULL, error = NULL, attempts = 0, updated_at = ? WHERE key = ? AND request = ?",
            (arrived.stamp, now(), task.key, task.request),
        )


def keep(database: sqlite3.Connection, task: Task, arrived: Arrived, body: bytes, shelf: Shelf) -> None:
    """Put a document in place of what was there, in one transaction; nothing when it was asked for anew meanwhile."""
    about = shelf.about
    chunks = shelf.window("c1", 0, about.chunks) or []
    model = model_of(database)
    with transaction(database):
        updated = database.execute(
            "UPDATE documents SET stage = 'indexing', title = ?, media_type = ?, size_bytes = ?, stamp = ?, "
            "digest = ?, chunks = ?, embedded = 0, given = NULL, error = NULL, updated_at = ?, indexed_at = ? "
            "WHERE key = ? AND request = ? RETURNING collection",
            (_title(task, about), about.media_type, arrived.size, arrived.stamp, arrived.digest, len(chunks),
             now(), now(), task.key, task.request),
        ).fetchone()  # fmt: skip
        if updated is None:
            return
        database.execute("DELETE FROM chunks WHERE document = ?", (task.key,))
        database.executemany(
            "INSERT INTO chunks (document, ordinal, section, path, anchors, page, text, hash) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _chunk_row(task.key, ordinal, chunk, _title(task, about), model)
                for ordinal, chunk in enumerate(chunks, 1)
            ),
        )
        database.execute(
            "UPDATE documents SET embedded = (SELECT count(*) FROM chunks JOIN embeddings USING (hash) "
            "WHERE document = documents.key) WHERE key = ?",
            (task.key,),
        )
        database.execute("INSERT OR REPLACE INTO contents VALUES (?, ?)", (task.key, body))
        database.execute("INSERT OR REPLACE INTO changes (document, kind) VALUES (?, 'text')", (task.key,))
        database.execute("UPDATE collections SET updated_at = ? WHERE key = ?", (now(), *updated))


def _title(task: Task, about: About) -> str:
    return about.title or task.title


def _chunk_row(document: int, ordinal: int, chunk: Chunk, title: str, model: str) -> tuple[Any, ...]:
    hash = hash_of(model, title, chunk.path, chunk.text)
    return (document, ordinal, chunk.section, json_text(chunk.path), json_text(chunk.anchors), chunk.first_page,
            chunk.text, hash)  # fmt: skip


def compressed(packed: bytes) -> bytes:
    """A packed document as it is kept."""
    return zlib.compress(packed, COMPRESSION)


def shelf_of(body: bytes) -> Shelf:
    """A document that is kept, open."""
    return Shelf.of(zlib.decompress(body))


def fail(database: sqlite3.Connection, task: Task, why: str, retry_at: float | None) -> None:
    """Note that a document could not be read, and when it is tried again; what was there before goes on answering."""
    with transaction(database):
        database.execute(
            "UPDATE documents SET stage = ?, error = ?, attempts = attempts + 1, retry_at = ?, updated_at = ? "
            "WHERE key = ? AND request = ?",
            ("pending" if retry_at is not None else "failed", why, retry_at or 0, now(), task.key, task.request),
        )
