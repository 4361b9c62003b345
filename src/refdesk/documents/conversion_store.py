"""Where converted documents wait to be read: one file each, per tenant, bounded in number, size and age.

The folder is the whole truth, so that several processes can share it: a document is there when its file is, its age is
the file's, and reading it makes it young again. A handle is made of the tenant, the bytes and how they were converted:
the same bytes have the same handle, and so are converted once.

    converted/<tenant>/<handle>.sqlite      a document
    converted/<tenant>/<handle>.markdown    the same in another form, once somebody wanted it
    converted/<tenant>/<address>.url        what a URL last gave
    converted/<name>.part                   being written
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
from refdesk.documents.packed_document import SHELF_VERSION, NotAShelf, Shelf
from refdesk.errors import StorageError

HANDLE = re.compile(r"doc-[a-z2-7]{26}")
"""What a handle looks like: 130 bits, which cannot be guessed."""

DOCUMENT = "sqlite"
"""The form that all others are made from."""

SWEEP_DIVISOR = 50
"""To look through a full folder takes milliseconds, so it is done when a fiftieth of its documents have come anew."""

UPLOAD = "upload"
"""A file as it was sent."""

STALE_PART_SECONDS = 3600
"""A file that is being written is finished or given up long before; what a crash left behind is removed then."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept for each tenant, and for how long."""

    documents: int = 500
    bytes: int = 1024**3
    seconds: float = 86_400


@dataclass(frozen=True, slots=True)
class UrlRecord:
    """What a URL last gave: enough to ask whether it is still the same."""

    handle: str
    etag: str | None
    last_modified: str | None


class Store:
    """The shelf files of all tenants; its methods touch the disk, so they belong into a thread."""

    def __init__(self, folder: Path, bounds: Bounds) -> None:
        self._folder = folder
        self._bounds = bounds
        self._writes_since_sweep: dict[TenantId, int] = {}
        """How many files were put in their place since the tenant's folder was last swept."""

    def handle(self, tenant: TenantId, digest: str, how: str = "") -> str:
        """The handle of some bytes, converted in some way, for a tenant."""
        identity = orjson.dumps([SHELF_VERSION, tenant, digest, how])
        return "doc-" + base64.b32encode(hashlib.sha256(identity).digest())[:26].decode().lower()

    def open(self, tenant: TenantId, handle: str) -> Shelf | None:
        """A document, if it is there and not too old; another tenant's is not there."""
        path = self._path(tenant, handle)
        if path is None or not self._is_fresh(path):
            return None
        try:
            shelf = Shelf.open(path)
        except FileNotFoundError:
            return None
        except NotAShelf:
            path.unlink(missing_ok=True)
            return None
        with suppress(FileNotFoundError):
            os.utime(path)
        return shelf

    def open_file(self, tenant: TenantId, handle: str, form: str = DOCUMENT) -> IO[bytes] | None:
        """The file of a document itself, or of one of its other forms."""
        path = self._path(tenant, handle, form)
        if path is None:
            return None
        # A form lives as long as the document that it was made from; an upload is no form of one.
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
        """A file to write a document to, gone at the end unless it was kept."""
        with _translate_disk_errors():
            self._folder.mkdir(parents=True, exist_ok=True)
            file = tempfile.NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False)  # noqa: SIM115 - below
        try:
            with _translate_disk_errors(), file:
                yield file
        finally:
            Path(file.name).unlink(missing_ok=True)

    def keep(self, tenant: TenantId, handle: str, file: IO[bytes], form: str = DOCUMENT) -> None:
        """Put a written file in its place, and let go of what there is no room for."""
        path = self._path(tenant, handle, form)
        if path is None:
            raise ValueError(f"{handle!r} is no handle")
        with _translate_disk_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file.name, path)
            self._writes_since_sweep[tenant] = self._writes_since_sweep.get(tenant, 0) + 1
            if self._writes_since_sweep[tenant] > self._bounds.documents // SWEEP_DIVISOR:
                self._writes_since_sweep[tenant] = 0
                self.sweep(tenant, keep=path)

    def get_url_record(self, tenant: TenantId, url: str) -> UrlRecord | None:
        """What a URL gave when it was last converted."""
        path = self._url_path(tenant, url)
        try:
            return UrlRecord(**orjson.loads(path.read_bytes()))
        except (FileNotFoundError, orjson.JSONDecodeError, TypeError):
            return None

    def save_url_record(self, tenant: TenantId, url: str, record: UrlRecord) -> None:
        """Remember what a URL gave."""
        path = self._url_path(tenant, url)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.writing() as file:
            file.write(orjson.dumps(record))
            file.flush()
            os.replace(file.name, path)

    def sweep(self, tenant: TenantId, keep: Path | None = None) -> None:
        """Remove what is too old, then the oldest beyond the bounds; never the one that was just kept."""
        self._remove_stale_parts()
        room, count = self._bounds.bytes, self._bounds.documents
        for path, age, size in sorted(_list_files(self._tenant_folder(tenant)), key=lambda found: found[1]):
            if path.suffix == ".url":
                wanted = age <= self._bounds.seconds
            else:
                room, count = room - size, count - (path.suffix == f".{DOCUMENT}")
                wanted = path == keep or (age <= self._bounds.seconds and room >= 0 and count >= 0)
            if not wanted:
                path.unlink(missing_ok=True)

    def _remove_stale_parts(self) -> None:
        for path, age, _ in list(_list_files(self._folder)):
            if path.suffix == ".part" and age > STALE_PART_SECONDS:
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
    """Trouble with the disk in words for whoever runs the desk; it is no fault of the file's."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StorageError(f"The desk cannot keep documents in its data folder: {reason}", retry_after=60) from error


def _list_files(folder: Path) -> Iterator[tuple[Path, float, int]]:
    """The files of a folder with age and size; another process may remove some meanwhile."""
    now = time.time()
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), now - status.st_mtime, status.st_size
