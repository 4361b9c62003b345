"""Pages of documentation: readers for untrusted zip and tar archives and for folders, and the store of one version.

Unsafe paths are rejected and the unpacked size is bounded. Only regular files are read. The stored pages are replaced
as a whole. Unchanged files aren't rewritten, so their stamp stays the same and the engine doesn't index them again.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from refdesk.errors import CannotConvert
from refdesk.support.fs import replace_file

MAX_UNPACKED_BYTES = 1_000_000_000
"""Total unpacked size of an archive, including files that are skipped. The PostgreSQL sources are 0.2 GB."""

MAX_PAGE_BYTES = 50_000_000
"""Maximum size of a page. The longest real pages have a few megabytes."""

MAX_FILES = 50_000
"""Maximum number of files in an archive or a folder. The PostgreSQL sources have 7,000."""

Page = tuple[str, bytes]
"""Path below the folder of pages, and content."""

Entry = tuple[str, bytes | None]
"""Name in the archive, and content if it is a regular file of acceptable size."""

_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError)
"""Errors of the libraries about a broken archive."""


def read_archive(
    file: IO[bytes], folder: str, *, max_bytes: int = MAX_UNPACKED_BYTES, max_files: int = MAX_FILES
) -> Iterator[Page]:
    """Yield the files below `folder` of a zip or tar archive.

    Raises CannotConvert if the archive is broken or unsafe.
    """
    head = file.read(6)
    file.seek(0)
    entries = (
        _zip_entries(file, max_bytes)
        if head.startswith(b"PK")
        else _tar_entries(_open_decompressed(file, head, max_bytes))
    )
    try:
        for number, (name, data) in enumerate(entries):
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
                raise CannotConvert(
                    f"The archive has a path that leads outside of it, {name[:100]!r}, so nothing was imported."
                )
            if number >= max_files:
                raise CannotConvert(f"The archive has more than {max_files:,} files, so nothing was imported.")
            below = _strip_folder(path.parts, folder)
            if below and data is not None:
                yield below, data
    except _BROKEN as error:
        raise CannotConvert(
            f"The archive is incomplete or broken ({error}). Nothing was imported. Try again."
        ) from error


def _strip_folder(parts: tuple[str, ...], folder: str) -> str:
    """Return a file's path below `folder`, which may be inside a top-level folder named after the archive."""
    depth = len(PurePosixPath(folder).parts)
    for start in (0, 1):
        if fnmatchcase("/".join(parts[start : start + depth]), folder):
            return "/".join(parts[start + depth :])
    return ""


def read_folder(folder: Path, suffix: str) -> Iterator[Page]:
    """Yield the files below a local folder that have this suffix, skipping symlinks that lead outside."""
    real = folder.resolve()
    for number, path in enumerate(sorted(real.rglob(f"*{suffix}"))):
        if number >= MAX_FILES:
            raise CannotConvert(f"{folder} has more than {MAX_FILES:,} pages, which is too many for documentation.")
        if path.is_file() and path.resolve().is_relative_to(real):
            yield path.relative_to(real).as_posix(), path.read_bytes()


class _BoundedReader(io.RawIOBase):
    """Decompressing reader that fails once more than `max_bytes` are unpacked."""

    def __init__(self, file: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, max_bytes: int) -> None:
        self._file = file
        self._remaining = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._file.read(len(into))
        self._remaining -= len(data)
        if self._remaining < 0:
            raise _make_size_error()
        into[: len(data)] = data
        return len(data)


def _open_decompressed(file: IO[bytes], head: bytes, max_bytes: int) -> IO[bytes]:
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(_BoundedReader(gzip.GzipFile(fileobj=file), max_bytes))
    if head.startswith(b"BZh"):
        return io.BufferedReader(_BoundedReader(bz2.BZ2File(file), max_bytes))
    if head.startswith(b"\xfd7zXZ"):
        return io.BufferedReader(_BoundedReader(lzma.LZMAFile(file), max_bytes))
    raise CannotConvert("The download isn't a zip archive or a compressed tar archive (gzip, bzip2, xz). Try again.")


def _tar_entries(unpacked: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() and member.size <= MAX_PAGE_BYTES else None
            yield member.name, file.read() if file else None


def _zip_entries(file: IO[bytes], max_bytes: int) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > max_bytes:
            raise _make_size_error()
        for entry in entries:
            is_page = not entry.is_dir() and entry.file_size <= MAX_PAGE_BYTES
            # `zipfile` reads no more than the stated size of an entry and verifies its checksum.
            yield entry.filename, archive.read(entry) if is_page else None


def _make_size_error() -> CannotConvert:
    return CannotConvert("The unpacked archive is too large for documentation, so nothing was imported.")


PAGES_FOLDER = "pages"
SOURCE_FILE = "source.json"


@dataclass(frozen=True, slots=True)
class PageSource:
    """Origin of the stored pages, with the HTTP validators of the download."""

    url: str
    release: str = ""
    etag: str | None = None
    last_modified: str | None = None


@dataclass(frozen=True, slots=True)
class PageStore:
    """Folder with the pages of one version."""

    folder: Path

    @property
    def pages(self) -> Path:
        """Folder that holds the pages themselves."""
        return self.folder / PAGES_FOLDER

    def read_source(self) -> PageSource | None:
        """Return the origin of the pages, or None if there are none or the last write was interrupted."""
        try:
            return PageSource(**json.loads((self.folder / SOURCE_FILE).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def list_paths(self) -> list[str]:
        """Return the sorted paths of all pages, relative to the folder."""
        found = (path for path in self.pages.rglob("*") if path.is_file())
        return sorted(path.relative_to(self.pages).as_posix() for path in found)

    def replace(self, pages: Iterable[Page], check: Callable[[Path], PageSource]) -> None:
        """Replace all pages.

        Nothing is changed until all new pages are staged and `check`, called with the staging folder, has returned
        their origin.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(dir=self.folder, prefix=".new-"))
        try:
            paths = set()
            for path, data in pages:
                paths.add(path)
                current, target = self.pages / path, staged / path
                if current.is_file() and current.stat().st_size == len(data) and current.read_bytes() == data:
                    target.unlink(missing_ok=True)  # an archive may have a page twice
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)
            if not paths:
                raise CannotConvert("The documentation has no pages, so nothing was imported.")
            source = check(staged)
            # Without the source file, an interrupted replacement counts as empty and is repeated.
            (self.folder / SOURCE_FILE).unlink(missing_ok=True)
            for path in {*self.list_paths()} - paths:
                (self.pages / path).unlink()
            for path in paths:
                if (staged / path).is_file():
                    (self.pages / path).parent.mkdir(parents=True, exist_ok=True)
                    os.replace(staged / path, self.pages / path)
            content = json.dumps(asdict(source), indent=2) + "\n"
            replace_file(self.folder / SOURCE_FILE, content.encode(), is_durable=False)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def read_page(self, path: str, staged: Path) -> bytes:
        """Return the content a page will have after the replacement."""
        for folder in (staged, self.pages):
            if (folder / path).is_file():
                return (folder / path).read_bytes()
        return b""
