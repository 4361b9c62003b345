"""Office files as containers: what kind they are, and whether they may be opened at all.

A zip package (OOXML, ODF, EPUB) is checked before anything is unpacked: how many entries, how much they claim to hold,
whether they lie over one another. Nothing is written to disk, so that an entry's name can lead nowhere.
"""

from __future__ import annotations

import lzma
import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Final, Literal
from xml.etree.ElementTree import Element

from refdesk.documents.convert.office_xml import parse_xml, strip_namespace
from refdesk.errors import CannotConvert

OfficeKind = Literal["docx", "pptx", "xlsx", "odt", "ods", "odp", "epub", "doc", "ppt", "xls"]

MAX_ENTRIES: Final = 10_000
"""A deck of 2,000 slides has about 8,000 parts."""

MAX_UNPACKED_BYTES: Final = 300_000_000
"""As much as all parts together may claim to hold."""

MAX_RATIO: Final = 200
"""Deflate shrinks the XML of real documents ten- to fiftyfold, and zeroes a thousandfold."""

ALWAYS_ALLOWED_BYTES: Final = 20_000_000
"""Below this the ratio does not matter: a short table of equal rows may well shrink five hundredfold."""

MAX_SNIFFED_BYTES: Final = 1_000_000
"""As much as is read of the part that names a package's kind."""

_LOCKED = "The file is protected by a password; save a copy without one and convert that"
_BROKEN = "The file is broken or incomplete and cannot be opened; save or download it again"

_CFB_MAGIC = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_CFB_KINDS: Mapping[str, OfficeKind] = {
    "WordDocument": "doc",
    "PowerPoint Document": "ppt",
    "Workbook": "xls",
    "Book": "xls",
}
_MIMETYPES: Mapping[bytes, OfficeKind] = {
    b"application/epub+zip": "epub",
    b"application/vnd.oasis.opendocument.text": "odt",
    b"application/vnd.oasis.opendocument.text-template": "odt",
    b"application/vnd.oasis.opendocument.spreadsheet": "ods",
    b"application/vnd.oasis.opendocument.spreadsheet-template": "ods",
    b"application/vnd.oasis.opendocument.presentation": "odp",
    b"application/vnd.oasis.opendocument.presentation-template": "odp",
}
_MAIN_PART = re.compile(
    rb"application/vnd\.(?:openxmlformats-officedocument\.|ms-)"
    rb"(wordprocessingml|word|presentationml|powerpoint|spreadsheetml|excel)"
    rb"\.(?:document|presentation|slideshow|sheet|template)(?:\.macroEnabled(?:Template)?|\.macroenabled)?\.main\+xml",
    re.IGNORECASE,
)
_FAMILIES: Mapping[bytes, OfficeKind] = {
    b"wordprocessingml": "docx",
    b"word": "docx",
    b"presentationml": "pptx",
    b"powerpoint": "pptx",
    b"spreadsheetml": "xlsx",
    b"excel": "xlsx",
}


def detect_kind(data: bytes) -> OfficeKind | None:
    """What kind of office file this is, by its content; None when it is none.

    Raises CannotConvert for a container that is locked, broken or a bomb: its kind cannot be told without opening it.
    """
    if data.startswith(_CFB_MAGIC):
        return _detect_compound_kind(data)
    return open_package(data).kind if is_zip(data) else None


def is_zip(data: bytes) -> bool:
    """Whether this is a zip package with anything in it."""
    return data.startswith(b"PK\x03\x04")


def _detect_compound_kind(data: bytes) -> OfficeKind | None:
    names = _list_streams(data)
    if "EncryptedPackage" in names:
        raise CannotConvert(_LOCKED)
    return next((kind for name, kind in _CFB_KINDS.items() if name in names), None)


def _list_streams(data: bytes) -> list[str]:
    """The names that stand directly below the root of a compound file; those of embedded objects are deeper."""
    try:
        return list(_iter_root_entries(_read_directory(data)))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise CannotConvert(_BROKEN) from error


def _read_directory(data: bytes) -> bytes:
    """The directory's sectors, in the order in which the allocation table chains them."""
    (shift,) = struct.unpack_from("<H", data, 30)
    sector_bytes = 1 << shift if shift in (9, 12) else 512
    (sector,) = struct.unpack_from("<I", data, 48)
    table_sectors = struct.unpack_from("<109I", data, 76)
    per_sector = sector_bytes // 4
    sectors: list[bytes] = []
    while sector < 0xFFFFFFF0 and len(sectors) <= MAX_ENTRIES:
        sectors.append(data[(sector + 1) * sector_bytes : (sector + 2) * sector_bytes])
        table = table_sectors[sector // per_sector]
        (sector,) = struct.unpack_from("<I", data, (table + 1) * sector_bytes + sector % per_sector * 4)
    return b"".join(sectors)


def _iter_root_entries(directory: bytes) -> Iterator[str]:
    """Walk the tree of siblings that hangs on the root entry."""
    waiting = [struct.unpack_from("<I", directory, 76)[0]]
    seen: set[int] = set()
    while waiting:
        entry = waiting.pop()
        if entry == 0xFFFFFFFF or entry in seen:
            continue
        seen.add(entry)
        name, (length, *siblings) = (
            directory[entry * 128 : entry * 128 + 64],
            struct.unpack_from("<H2xII", directory, entry * 128 + 64),
        )
        yield name[: max(length - 2, 0)].decode("utf-16-le")
        waiting += siblings


@dataclass(frozen=True, slots=True)
class Relationship:
    """What one part of a package says of another; an external one has an address as its target."""

    kind: str
    """The last word of its type: `slide`, `styles`, `hyperlink`."""
    target: str
    external: bool


class Package:
    """A zip package that has passed the checks."""

    def __init__(self, archive: zipfile.ZipFile, data: bytes) -> None:
        self._archive = archive
        self._data = data
        self._relationships: dict[str, dict[str, Relationship]] = {}
        self.names = frozenset(archive.namelist())

    @property
    def kind(self) -> OfficeKind | None:
        """What it is a package of; None when it is no document."""
        mimetype = self.read_head("mimetype").strip()
        if mimetype in _MIMETYPES:
            return _MIMETYPES[mimetype]
        main = _MAIN_PART.search(self.read_head("[Content_Types].xml"))
        return _FAMILIES[main[1].lower()] if main else None

    @property
    def has_macros(self) -> bool:
        """Programs travel in it; they are never run."""
        return any(name.endswith("vbaProject.bin") or name.startswith("Basic/") for name in self.names)

    def read_head(self, name: str) -> bytes:
        """How a part begins; empty when there is none."""
        if name not in self.names:
            return b""
        with self.open(name) as part, _translate_zip_errors():
            return part.read(MAX_SNIFFED_BYTES)

    def open(self, name: str) -> IO[bytes]:
        """A part as a stream, so that the rest of a huge one need not be unpacked."""
        with _translate_zip_errors():
            return self._archive.open(name)

    def read_xml(self, name: str) -> Element | None:
        """A part parsed; None when there is no such part."""
        return parse_xml(self.read(name), name) if name in self.names else None

    def read(self, name: str) -> bytes:
        """A whole part, empty when there is none.

        The common way to pack is undone here: for most parts the library takes longer to begin than to unpack.
        """
        if name not in self.names:
            return b""
        entry = self._archive.getinfo(name)
        if entry.compress_type != zipfile.ZIP_DEFLATED:
            with self.open(name) as part, _translate_zip_errors():
                return part.read()
        with _translate_zip_errors():
            start = entry.header_offset + 30 + sum(struct.unpack_from("<HH", self._data, entry.header_offset + 26))
            packed = memoryview(self._data)[start : start + entry.compress_size]
            data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, entry.file_size + 1)
            if len(data) != entry.file_size or zlib.crc32(data) != entry.CRC:
                raise zipfile.BadZipFile(f"{name} is not what the archive says of it")
        return data

    def find_main_part(self, fallback: str) -> str:
        """The name of the part that the whole document hangs on."""
        found = (each.target for each in self.read_relationships("").values() if each.kind == "officeDocument")
        return next((target for target in found if target in self.names), fallback)

    def read_relationships(self, part: str) -> dict[str, Relationship]:
        """The relationships of a part, or of the package for the empty name, by their ids."""
        known = self._relationships.get(part)
        if known is None:
            folder, name = posixpath.split(part)
            root = self.read_xml(posixpath.join(folder, "_rels", f"{name}.rels"))
            nodes = root if root is not None else ()
            known = {node.get("Id", ""): _parse_relationship(node, folder) for node in nodes}
            self._relationships[part] = known
        return known

    def find_related(self, part: str, kind: str) -> str | None:
        """The name of the first part of that kind that a part refers to."""
        found = (
            each.target for each in self.read_relationships(part).values() if each.kind == kind and not each.external
        )
        return next((target for target in found if target in self.names), None)

    def read_properties(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """What the file says of itself, by our names for it, and its keywords.

        OOXML, ODF and EPUB each keep it in a part of their own, but in nearly the same words.
        """
        parts = (name for name in self.names if name in _PROPERTY_PARTS or name.endswith(".opf"))
        root = self.read_xml(next(parts, ""))
        nodes = list(root.iter()) if root is not None else []
        values = {_PROPERTIES.get(strip_namespace(node.tag), ""): (node.text or "").strip() for node in nodes}
        keywords = [node.text or "" for node in nodes if strip_namespace(node.tag) in ("keyword", "keywords")]
        words = (word.strip() for field in keywords for word in re.split("[,;]", field))
        return {name: text for name, text in values.items() if name and text}, tuple(dict.fromkeys(filter(None, words)))


_PROPERTY_PARTS = frozenset(("docProps/core.xml", "meta.xml"))
_PROPERTIES: Mapping[str, str] = {
    "title": "title",
    "creator": "author",
    "initial-creator": "author",
    "language": "language",
    "subject": "subject",
    "description": "description",
    "created": "created",
    "creation-date": "created",
    "modified": "modified",
    "date": "modified",
}


def _parse_relationship(node: Element, folder: str) -> Relationship:
    kind, target = node.get("Type", "").rpartition("/")[2], node.get("Target", "")
    if node.get("TargetMode") == "External":
        return Relationship(kind, target, external=True)
    return Relationship(kind, posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/"), external=False)


@contextmanager
def _translate_zip_errors() -> Iterator[None]:
    """Turns what the zip library finds wrong with a part into our own error."""
    try:
        yield
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        NotImplementedError,
        EOFError,
        OSError,
        struct.error,
    ) as error:
        raise CannotConvert(_BROKEN) from error


def open_package(data: bytes) -> Package:
    """Check a zip package and open it."""
    # Counted first, since the library builds an object for every entry before it can be asked anything.
    if data.count(b"PK\x01\x02") > MAX_ENTRIES:
        raise CannotConvert(f"The file holds more than {MAX_ENTRIES} parts, which no real document does")
    try:
        archive = zipfile.ZipFile(BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise CannotConvert(_BROKEN) from error
    _check_entries(archive.infolist(), len(data))
    return Package(archive, data)


def _check_entries(entries: list[zipfile.ZipInfo], packed_bytes: int) -> None:
    if any(entry.flag_bits & 1 for entry in entries):
        raise CannotConvert(_LOCKED)
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED_BYTES or unpacked > max(ALWAYS_ALLOWED_BYTES, packed_bytes * MAX_RATIO):
        raise CannotConvert(
            f"The file would unpack to {unpacked // 1_000_000} MB, more than a document of its size may hold; split it"
        )
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise CannotConvert("The file is not a sound zip package: its parts lie over one another")
        end = entry.header_offset + 30 + entry.compress_size
