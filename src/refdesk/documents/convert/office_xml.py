"""XML parser for office files: bounded, without DTDs, and with short namespace names.

The parser repeats the namespace in every element and attribute name. With `w` in place of sixty characters, parsing
takes two thirds of the time, and strict files use the same names.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final
from xml.etree.ElementTree import Element, ParseError, XMLParser

from refdesk.errors import CannotConvert

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
