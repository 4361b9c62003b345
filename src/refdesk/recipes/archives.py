"""Pages out of an archive that a stranger may have made: nothing leads out of it, and it unpacks to a bounded size.

Only plain files are taken. Nothing is written here.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from refdesk.errors import CannotConvert

MAX_UNPACKED_BYTES = 1_000_000_000
"""Of all that is in an archive, whether it is taken or not: the sources of PostgreSQL are 0.2 GB."""

MAX_PAGE_BYTES = 50_000_000
"""Of one page; the longest real ones have a few megabytes."""

MAX_FILES = 50_000
"""In an archive, or a folder: the sources of PostgreSQL have 7,000."""

Page = tuple[str, bytes]
"""Its path below the pages' folder, and its bytes."""

Entry = tuple[str, bytes | None]
"""Its name in the archive, and its bytes, where it is a plain file that may be a page."""


def pages_of_archive(
    file: IO[bytes], inside: str, *, max_bytes: int = MAX_UNPACKED_BYTES, max_files: int = MAX_FILES
) -> Iterator[Page]:
    """The files below the folder `inside` of a zip or tar archive; raises CannotConvert when it is broken or unsafe."""
    head = file.read(6)
    file.seek(0)
    entries = (
        _zip_entries(file, max_bytes) if head.startswith(b"PK") else _tar_entries(_unpacking(file, head, max_bytes))
    )
    with _broken_told():
        for number, (name, data) in enumerate(entries):
            _check(name)
            if number >= max_files:
                raise CannotConvert(f"The archive holds more than {max_files:,} files; nothing of it was taken.")
            path = _below(PurePosixPath(name).parts, inside)
            if path and data is not None:
                yield path, data


def _below(parts: tuple[str, ...], inside: str) -> str:
    """The path of a file below the folder `inside`, which may lie in one that is named after the archive."""
    depth = len(PurePosixPath(inside).parts)
    for start in (0, 1):
        if fnmatchcase("/".join(parts[start : start + depth]), inside):
            return "/".join(parts[start + depth :])
    return ""


def pages_of_folder(folder: Path, suffix: str) -> Iterator[Page]:
    """The files below a folder of this machine whose names end so, without those that links lead out to."""
    real = folder.resolve()
    for number, path in enumerate(sorted(real.rglob(f"*{suffix}"))):
        if number >= MAX_FILES:
            raise CannotConvert(f"{folder} holds more than {MAX_FILES:,} pages, which is no documentation.")
        if path.is_file() and path.resolve().is_relative_to(real):
            yield path.relative_to(real).as_posix(), path.read_bytes()


class _Bounded(io.RawIOBase):
    """The bytes of a compressed file, unpacked no further than a bound."""

    def __init__(self, file: gzip.GzipFile | bz2.BZ2File | lzma.LZMAFile, max_bytes: int) -> None:
        self._file = file
        self._left = max_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._file.read(len(into))
        self._left -= len(data)
        if self._left < 0:
            raise _too_much()
        into[: len(data)] = data
        return len(data)


def _unpacking(file: IO[bytes], head: bytes, max_bytes: int) -> IO[bytes]:
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(_Bounded(gzip.GzipFile(fileobj=file), max_bytes))
    if head.startswith(b"BZh"):
        return io.BufferedReader(_Bounded(bz2.BZ2File(file), max_bytes))
    if head.startswith(b"\xfd7zXZ"):
        return io.BufferedReader(_Bounded(lzma.LZMAFile(file), max_bytes))
    raise CannotConvert("What came is no archive: neither zip nor tar packed by gzip, bzip2 or xz. Try again later.")


def _tar_entries(unpacked: IO[bytes]) -> Iterator[Entry]:
    with tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() and member.size <= MAX_PAGE_BYTES else None
            yield member.name, file.read() if file else None


def _zip_entries(file: IO[bytes], max_bytes: int) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > max_bytes:
            raise _too_much()
        for entry in entries:
            is_page = not entry.is_dir() and entry.file_size <= MAX_PAGE_BYTES
            # Python reads no more of an entry than its stated size, and compares its checksum.
            yield entry.filename, archive.read(entry) if is_page else None


def _check(name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise CannotConvert(
            f"The archive holds a file that would lie outside of it, {name[:100]!r}; nothing was taken."
        )


def _too_much() -> CannotConvert:
    return CannotConvert("The archive unpacks to more than documentation has; nothing of it was taken.")


@contextmanager
def _broken_told() -> Iterator[None]:
    """Turn what the libraries find wrong with an archive into a sentence."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError) as error:
        raise CannotConvert(f"The archive is broken or incomplete ({error}); nothing was taken. Try again.") from error
