"""The first half of a document's way in: from where it is, through a conversion."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path
from typing import IO

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions, File, Progress, fetched_file
from refdesk.documents.file_names import clean_name
from refdesk.documents.files import OpenedFile, Roots
from refdesk.documents.packed_document import Shelf
from refdesk.documents.scratch import scratch_file
from refdesk.engines.storage.queue import Arrived, Task
from refdesk.engines.storage.rows import digest_of
from refdesk.engines.storage.sources import path_of, stamp_from
from refdesk.errors import CannotOpen, EngineError

READ_SIZE = 1 << 20
NO_ROOM = frozenset({ENOSPC, EDQUOT, EROFS})


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
        size = await to_thread.run_sync(_original_size, packed)
        return Arrived(None if digest == task.digest else packed, digest, "", size)

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


def _original_size(packed: bytes) -> int:
    """Of the file that a document was converted from; of one that does not tell, its own."""
    with Shelf.of(packed) as shelf:
        return shelf.about.size or len(packed)


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
