"""Zip packages of office files: checks and access to parts.

A package (OOXML, ODF, EPUB) is checked before anything is unpacked: number of entries, claimed size, overlaps.
Nothing is written to disk, so entry names can't escape.
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
from typing import IO, Final
from xml.etree.ElementTree import Element

from refdesk.documents.convert.office_xml import parse_xml, strip_namespace
from refdesk.errors import CannotConvert

MAX_ENTRIES: Final = 10_000
"""A deck of 2,000 slides has about 8,000 parts."""

MAX_UNPACKED_BYTES: Final = 300_000_000
"""Claimed size of all parts together."""

MAX_RATIO: Final = 200
"""Deflate shrinks the XML of real documents 10 to 50 times, and zeroes 1000 times."""

ALWAYS_ALLOWED_BYTES: Final = 20_000_000
"""Size below which the ratio doesn't matter: a short table of equal rows may shrink 500 times."""

MAX_SNIFFED_BYTES: Final = 1_000_000
"""Bytes read of the part that determines the kind."""

LOCKED = "The file is protected by a password; save a copy without one and convert that"
BROKEN = "The file is broken or incomplete and cannot be opened; save or download it again"


@dataclass(frozen=True, slots=True)
class Relationship:
    """Reference from one part to another; external ones have a URL as target."""

    kind: str
    """Last component of its type: `slide`, `styles`, `hyperlink`."""
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
    def has_macros(self) -> bool:
        """Whether it has macros, which are never run."""
        return any(name.endswith("vbaProject.bin") or name.startswith("Basic/") for name in self.names)

    def read_head(self, name: str) -> bytes:
        """Return the start of a part, or nothing if it is missing."""
        if name not in self.names:
            return b""
        with self.open(name) as part, _translate_zip_errors():
            return part.read(MAX_SNIFFED_BYTES)

    def open(self, name: str) -> IO[bytes]:
        """Open a part as a stream, so that a huge one isn't unpacked in full."""
        with _translate_zip_errors():
            return self._archive.open(name)

    def read_xml(self, name: str) -> Element | None:
        """Parse a part, or return None if it is missing."""
        return parse_xml(self.read(name), name) if name in self.names else None

    def read(self, name: str) -> bytes:
        """Return a whole part, or nothing if it is missing.

        Deflate is decoded here, since opening a part with zipfile takes longer than decoding most of them.
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
        """Return the name of the main document part."""
        found = (each.target for each in self.read_relationships("").values() if each.kind == "officeDocument")
        return next((target for target in found if target in self.names), fallback)

    def read_relationships(self, part: str) -> dict[str, Relationship]:
        """Return the relationships of a part by id; those of the package for an empty name."""
        known = self._relationships.get(part)
        if known is None:
            folder, name = posixpath.split(part)
            root = self.read_xml(posixpath.join(folder, "_rels", f"{name}.rels"))
            known = self._relationships[part] = {}
            for node in root if root is not None else ():
                kind, target = node.get("Type", "").rpartition("/")[2], node.get("Target", "")
                external = node.get("TargetMode") == "External"
                if not external:
                    target = posixpath.normpath(posixpath.join("/", folder, target)).lstrip("/")
                known[node.get("Id", "")] = Relationship(kind, target, external)
        return known

    def find_related(self, part: str, kind: str) -> str | None:
        """Return the name of the first related part of a kind, or None."""
        found = (
            each.target for each in self.read_relationships(part).values() if each.kind == kind and not each.external
        )
        return next((target for target in found if target in self.names), None)

    def read_properties(self) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the metadata of the file and its keywords.

        OOXML, ODF and EPUB use different parts but nearly the same element names.
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


@contextmanager
def _translate_zip_errors() -> Iterator[None]:
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
        raise CannotConvert(BROKEN) from error


def open_package(data: bytes) -> Package:
    """Check and open a zip package."""
    # Counted first, since zipfile builds an object for every entry.
    if data.count(b"PK\x01\x02") > MAX_ENTRIES:
        raise CannotConvert(f"The file holds more than {MAX_ENTRIES} parts, which no real document does")
    try:
        archive = zipfile.ZipFile(BytesIO(data))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError, struct.error) as error:
        raise CannotConvert(BROKEN) from error
    entries = archive.infolist()
    if any(entry.flag_bits & 1 for entry in entries):
        raise CannotConvert(LOCKED)
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED_BYTES or unpacked > max(ALWAYS_ALLOWED_BYTES, len(data) * MAX_RATIO):
        raise CannotConvert(
            f"The file would unpack to {unpacked // 1_000_000} MB, more than a document of its size may hold; split it"
        )
    end = 0
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise CannotConvert("The file is not a sound zip package: its parts lie over one another")
        end = entry.header_offset + 30 + entry.compress_size
    return Package(archive, data)
