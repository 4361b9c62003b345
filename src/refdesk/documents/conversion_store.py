"""Store of converted documents: one file each, per tenant, limited in number, size and age.

All state is in the folder, so several processes can share it. Reading a document refreshes its age. A handle is derived
from the tenant, the bytes and the options, so the same conversion runs once.

    converted/<tenant>/<handle>.sqlite      a packed document
    converted/<tenant>/<handle>.markdown    an export of it, made on demand
    converted/<tenant>/<address>.url        the last result of a URL
    converted/<name>.part                   a file being written
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import orjson

from refdesk.calls import TenantId
from refdesk.documents.packed_document import PACKED_DOCUMENT_VERSION, InvalidPackedDocument, PackedDocument
from refdesk.errors import StorageError
from refdesk.support.fs import make_private_folder

HANDLE = re.compile(r"doc-[a-z2-7]{26}")
"""Format of a handle: 130 bits, which can't be guessed."""

DOCUMENT = "sqlite"
"""The form that exports are made from."""

SWEEP_DIVISOR = 50
"""Sweeping a full folder takes milliseconds, so it happens after a fiftieth of the document limit is written."""

UPLOAD = "upload"
"""An uploaded file."""

STALE_PART_SECONDS = 3600
"""Age at which a partial file is a leftover of a crash and removed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits per tenant."""

    documents: int = 500
    bytes: int = 1024**3
    seconds: float = 86_400


@dataclass(frozen=True, slots=True)
class UrlRecord:
    """The last result of a URL, with the validators of a conditional request."""

    handle: str
    etag: str | None
    last_modified: str | None


class Store:
    """Packed documents of all tenants on disk. Methods block, so call them in a thread."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._writes_since_sweep: dict[TenantId, int] = {}
        """Files written since the last sweep, by tenant."""

    def handle(self, tenant: TenantId, digest: str, how: str = "") -> str:
        """Return the handle of a tenant's conversion."""
        identity = orjson.dumps([PACKED_DOCUMENT_VERSION, tenant, digest, how])
        return "doc-" + base64.b32encode(hashlib.sha256(identity).digest())[:26].decode().lower()

    def open(self, tenant: TenantId, handle: str) -> PackedDocument | None:
        """Open a document of a tenant, or return None if it is missing or expired."""
        path = self._path(tenant, handle)
        if path is None or not self._is_fresh(path):
            return None
        try:
            packed = PackedDocument.open(path)
        except FileNotFoundError:
            return None
        except InvalidPackedDocument:
            path.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):
            os.utime(path)
        return packed

    def open_file(self, tenant: TenantId, handle: str, form: str = DOCUMENT) -> IO[bytes] | None:
        """Open the file of a document or of one of its exports, or return None."""
        path = self._path(tenant, handle, form)
        if path is None:
            return None
        # An export expires with its document; an upload has an age of its own.
        original = path if form == UPLOAD else path.with_suffix(f".{DOCUMENT}")
        if not self._is_fresh(original):
            return None
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return None
        with suppress(FileNotFoundError):
            os.utime(original)
        return file

    @contextmanager
    def writing(self) -> Iterator[IO[bytes]]:
        """Open a temporary file; it is deleted at the end unless `keep` has stored it."""
        with _translate_disk_errors():
            make_private_folder(self._folder)
            file = tempfile.NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False)  # noqa: SIM115 - below
        try:
            with _translate_disk_errors(), file:
                yield file
        finally:
            Path(file.name).unlink(missing_ok=True)

    def keep(self, tenant: TenantId, handle: str, file: IO[bytes], form: str = DOCUMENT) -> None:
        """Move a written file into place, and evict what exceeds the limits."""
        path = self._path(tenant, handle, form)
        if path is None:
            raise ValueError(f"{handle!r} is no handle")
        with _translate_disk_errors():
            make_private_folder(path.parent)
            os.replace(file.name, path)
            self._writes_since_sweep[tenant] = self._writes_since_sweep.get(tenant, 0) + 1
            if self._writes_since_sweep[tenant] > self._bounds.documents // SWEEP_DIVISOR:
                self._writes_since_sweep[tenant] = 0
                self.sweep(tenant, keep=path)

    def get_url_record(self, tenant: TenantId, url: str) -> UrlRecord | None:
        """Return the last result of a URL."""
        try:
            return UrlRecord(**orjson.loads(self._url_path(tenant, url).read_bytes()))
        except (FileNotFoundError, orjson.JSONDecodeError, TypeError):
            return None

    def save_url_record(self, tenant: TenantId, url: str, record: UrlRecord) -> None:
        """Save the result of a URL."""
        path = self._url_path(tenant, url)
        make_private_folder(path.parent)
        with self.writing() as file:
            file.write(orjson.dumps(record))
            file.flush()
            os.replace(file.name, path)

    def sweep(self, tenant: TenantId, keep: Path | None = None) -> None:
        """Remove expired files, then the oldest beyond the limits, but never the one just stored."""
        for path, age, _ in list(_list_files(self._folder)):
            if path.suffix == ".part" and age > STALE_PART_SECONDS:
                path.unlink(missing_ok=True)
        room, count = self._bounds.bytes, self._bounds.documents
        for path, age, size in sorted(_list_files(self._tenant_folder(tenant)), key=lambda found: found[1]):
            if path.suffix == ".url":
                wanted = age <= self._bounds.seconds
            else:
                room, count = room - size, count - (path.suffix == f".{DOCUMENT}")
                wanted = path == keep or (age <= self._bounds.seconds and room >= 0 and count >= 0)
            if not wanted:
                path.unlink(missing_ok=True)

    def _is_fresh(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime <= self._bounds.seconds
        except FileNotFoundError:
            return False

    def _path(self, tenant: TenantId, handle: str, form: str = DOCUMENT) -> Path | None:
        return self._tenant_folder(tenant) / f"{handle}.{form}" if HANDLE.fullmatch(handle) else None

    def _url_path(self, tenant: TenantId, url: str) -> Path:
        return self._tenant_folder(tenant) / f"{hashlib.sha256(url.encode()).hexdigest()[:40]}.url"

    def _tenant_folder(self, tenant: TenantId) -> Path:
        return self._folder / hashlib.sha256(tenant.encode()).hexdigest()[:32]


@contextmanager
def _translate_disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"Documents can't be stored in the data folder: {reason}", retry_after=60) from error


def _list_files(folder: Path) -> Iterator[tuple[Path, float, int]]:
    """Yield the files of a folder with age and size; other processes may remove some meanwhile."""
    now = time.time()
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), now - status.st_mtime, status.st_size
