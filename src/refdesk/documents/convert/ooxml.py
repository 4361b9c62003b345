"""Zip packages of office files: checks, access to parts, and their XML with short namespace names.

A package (OOXML, ODF, EPUB) is checked before anything is unpacked: number of entries, claimed size, overlaps.
Nothing is written to disk, so entry names can't escape. XML is bounded and has no DTD. The parser repeats the namespace
in every element and attribute name. With `w` in place of sixty characters, parsing takes two thirds of the time, and
strict files use the same names.
"""

from __future__ import annotations

import codecs
import lzma
import posixpath
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import IO, Final
from xml.etree.ElementTree import Element, ParseError, XMLParser

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

    def warn_macros(self) -> Iterator[str]:
        """Yield a warning if it has macros, which are never run."""
        if any(name.endswith("vbaProject.bin") or name.startswith("Basic/") for name in self.names):
            yield "Macros in the file were left out."

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

    def read_related(self, part: str, kind: str) -> Element | None:
        """Parse the first related part of a kind, or return None if there is none."""
        name = self.find_related(part, kind)
        return self.read_xml(name) if name else None

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


MAX_XML_ELEMENTS: Final = 1_500_000
"""Elements of a part: each takes about 400 bytes with attributes, and a worker has one gibibyte."""

RELATIONSHIP_ID: Final = "{r}id"
SPREADSHEET: Final = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
"""Keeps its full name, since sheets are streamed before all declarations are known."""
STRICT_SPREADSHEET: Final = "http://purl.oclc.org/ooxml/spreadsheetml/main"

_USUAL, _STRICT, _OASIS = b"http://schemas.openxmlformats.org/", b"http://purl.oclc.org/ooxml/", b"urn:oasis:names:tc:"
_SHORT_NAMES: Mapping[bytes, bytes] = {
    STRICT_SPREADSHEET.encode(): SPREADSHEET.encode(),
    _USUAL + b"markup-compatibility/2006": b"mc",
    b"http://www.w3.org/1999/xlink": b"xlink",
    **{
        address: short
        for folder, name, short in (
            (b"wordprocessingml", b"main", b"w"),
            (b"presentationml", b"main", b"p"),
            (b"drawingml", b"main", b"a"),
            (b"drawingml", b"chart", b"c"),
            (b"drawingml", b"diagram", b"dgm"),
            (b"officeDocument", b"relationships", b"r"),
            (b"officeDocument", b"math", b"m"),
        )
        for address in (_USUAL + folder + b"/2006/" + name, _STRICT + folder + b"/" + name)
    },
    **{
        _OASIS + b"opendocument:xmlns:" + name + b":1.0": name
        for name in (b"office", b"style", b"text", b"table", b"drawing", b"presentation")
    },
    _OASIS + b"opendocument:xmlns:svg-compatible:1.0": b"svg",
    _OASIS + b"opendocument:xmlns:xsl-fo-compatible:1.0": b"fo",
}

_ENCODING = re.compile(rb"""(?:\xef\xbb\xbf)?<\?xml\s[^<>]*?\sencoding\s*=\s*["']([\w.:-]+)""")
_CDATA = re.compile(rb"<!--.*?(?:-->|\Z)|<!\[CDATA\[(.*?)(?:\]\]>|\Z)", re.DOTALL)
_TAG = re.compile(rb"""<[^\s<>/!?"'][^<>"']*(?:(?:"[^"<]*"|'[^'<]*')[^<>"']*)*>""")
_DECLARATION = re.compile(rb"""([^\s=<]+)(\s*=\s*)("[^"]*"|'[^']*')""")
_STARTS: Mapping[bytes, str] = {
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}


def strip_namespace(tag: str) -> str:
    """Return a tag or attribute without its namespace."""
    return tag.rpartition("}")[2]


def parse_int(text: str | None, otherwise: int = 0) -> int:
    """Parse a non-negative integer attribute, with a default for anything else or implausibly long."""
    return int(text) if text and text.isdecimal() and len(text) < 10 else otherwise


def find_path(node: Element | None, *names: str) -> Element | None:
    """Return the element at a path of child names; faster than ElementTree's paths."""
    for name in names:
        if node is None:
            return None
        node = node.find(name)
    return node


def parse_xml(data: bytes, name: str) -> Element:
    """Parse a part, with short namespace names."""
    try:
        # In UTF-8, checks on the bytes can't be bypassed.
        encoding = _STARTS.get(data[:2])
        if encoding is None:
            stated = _ENCODING.match(data)
            encoding = stated[1].decode("ascii").lower() if stated else "utf-8"
        data = data if encoding in ("utf-8", "utf8") else data.decode(encoding).encode("utf-8")
        if b"<!DOCTYPE" in data:
            raise CannotConvert(
                f"The part {name!r} of the file declares a DTD, which no office program writes; save it again"
            )
        # The shortest element is `<a/>`.
        if len(data) > 4 * MAX_XML_ELEMENTS and data.count(b"<") - data.count(b"</") > MAX_XML_ELEMENTS:
            raise CannotConvert(
                f"The part {name!r} of the file holds more than {MAX_XML_ELEMENTS} elements; split the file"
            )
        parser = XMLParser(encoding="utf-8")
        parser.feed(_shorten_namespaces(data))
        root: Element = parser.close()
    except (ParseError, ValueError, LookupError) as error:
        raise CannotConvert(f"The file is broken: its part {name!r} is not well-formed XML; save it again") from error
    return root


def _shorten_namespaces(data: bytes) -> bytes:
    if b"<![CDATA[" in data:
        data = _CDATA.sub(_escape_cdata, data)
    pieces: list[bytes] = []
    done = 0
    for tag in _find_declaring_tags(data):
        shorten = _shorten_tag_cached if len(tag[0]) < 5_000 else _shorten_tag
        pieces += (data[done : tag.start()], shorten(tag[0]))
        done = tag.end()
    return b"".join((*pieces, data[done:]))


def _shorten_tag(tag: bytes) -> bytes:
    return _DECLARATION.sub(_shorten_declaration, tag)


_shorten_tag_cached = lru_cache(maxsize=100)(_shorten_tag)
"""Cached, since all slides of a deck and all documents of a program start with the same tag."""


def _find_declaring_tags(data: bytes) -> Iterator[re.Match[bytes]]:
    """Yield the tags that declare namespaces, skipping `xmlns` in text."""
    position = 0
    while (at := data.find(b"xmlns", position)) >= 0:
        # Search from the last position: without a tag in between, this is still the same text.
        start = data.rfind(b"<", position, at)
        tag = _TAG.match(data, start) if start >= 0 else None
        position = at + 5
        if tag and tag.end() > at:
            position = tag.end()
            yield tag


def _shorten_declaration(declaration: re.Match[bytes]) -> bytes:
    name, equals, quoted = declaration.groups()
    if name != b"xmlns" and not name.startswith(b"xmlns:"):
        return declaration[0]
    return name + equals + quoted[:1] + _SHORT_NAMES.get(quoted[1:-1], quoted[1:-1]) + quoted[-1:]


def _escape_cdata(section: re.Match[bytes]) -> bytes:
    """Escape a CDATA section, so that every `<` starts a tag; comments are dropped."""
    raw = section[1] or b""
    return raw.replace(b"&", b"&amp;").replace(b"<", b"&lt;").replace(b">", b"&gt;")
