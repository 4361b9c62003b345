"""Supported formats, one entry each, and their detection: by content, and among text formats by name."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from refdesk.errors import CannotConvert

from .ooxml import BROKEN, LOCKED, MAX_ENTRIES, open_package


@dataclass(frozen=True, slots=True)
class Format:
    """A file format."""

    key: str
    title: str
    """Display name with its article."""
    tool: str
    """Tool that converts it."""
    suffixes: tuple[str, ...]
    media_type: str
    other_media_types: tuple[str, ...] = ()
    """Aliases."""
    converter: str = ""
    """Module in this package unless that is the key, and its function after a colon unless that is `convert`."""

    @property
    def is_text(self) -> bool:
        """Whether it is text, which only its name tells from other text formats."""
        return self.media_type.startswith("text/")


_ODF = "application/vnd.oasis.opendocument"
_OOXML = "application/vnd.openxmlformats-officedocument"
_PDF, _DOCX, _XLSX, _PPTX = "convert_pdf", "convert_docx", "convert_xlsx", "convert_pptx"

FORMATS = {
    format.key: format
    for format in (
        Format("pdf", "a PDF", _PDF, (".pdf",), "application/pdf"),
        Format("docx", "a Word document", _DOCX, (".docx", ".docm", ".dotx"), f"{_OOXML}.wordprocessingml.document"),
        Format("doc", "an old Word document", _DOCX, (".doc",), "application/msword", (), "anydoc"),
        Format("odt", "an OpenDocument text", _DOCX, (".odt",), f"{_ODF}.text", (), "anydoc"),
        Format("rtf", "an RTF document", _DOCX, (".rtf",), "application/rtf", (), "anydoc"),
        Format("epub", "an EPUB book", _DOCX, (".epub",), "application/epub+zip", (), "anydoc"),
        Format("html", "an HTML page", _DOCX, (".html", ".htm", ".xhtml"), "text/html", ("application/xhtml+xml",)),
        Format(
            "markdown", "a Markdown file", _DOCX, (".md", ".markdown", ".mdx"), "text/markdown", ("text/x-markdown",)
        ),
        Format("rst", "a reStructuredText file", _DOCX, (".rst", ".rest"), "text/x-rst"),
        Format("text", "a text file", _DOCX, (".txt", ".text", ".log"), "text/plain"),
        Format("docling", "a DoclingDocument", _DOCX, (), "application/json"),
        Format("xlsx", "an Excel workbook", _XLSX, (".xlsx", ".xlsm", ".xltx"), f"{_OOXML}.spreadsheetml.sheet"),
        Format(
            "xls", "an old Excel workbook", _XLSX, (".xls",), "application/vnd.ms-excel", (), "anydoc:convert_sheets"
        ),
        Format(
            "ods",
            "an OpenDocument spreadsheet",
            _XLSX,
            (".ods",),
            f"{_ODF}.spreadsheet",
            (),
            "opendocument:convert_sheets",
        ),
        Format("csv", "a CSV file", _XLSX, (".csv", ".tsv"), "text/csv", ("text/tab-separated-values",)),
        Format(
            "pptx", "a PowerPoint file", _PPTX, (".pptx", ".pptm", ".ppsx"), f"{_OOXML}.presentationml.presentation"
        ),
        Format("ppt", "an old PowerPoint file", _PPTX, (".ppt",), "application/vnd.ms-powerpoint", (), "anydoc"),
        Format("odp", "an OpenDocument presentation", _PPTX, (".odp",), f"{_ODF}.presentation", (), "opendocument"),
    )
}

BY_SUFFIX = {suffix: format for format in FORMATS.values() for suffix in format.suffixes}
BY_MEDIA_TYPE = {
    media_type: format for format in FORMATS.values() for media_type in (format.media_type, *format.other_media_types)
}


def list_formats(tool: str) -> tuple[str, ...]:
    """Return the keys of the formats that a tool converts."""
    return tuple(format.key for format in FORMATS.values() if format.tool == tool)


def describe_wrong_format(name: str, found: str, expected: Sequence[str]) -> str:
    """Return the message for a file of an unexpected format."""
    return f"{name} is {FORMATS[found].title}, not {FORMATS[expected[0]].title}; call {FORMATS[found].tool} for it."


SNIFFED_BYTES = 4096
"""Bytes inspected to detect a text format."""

_CFB_MAGIC = b"\xd0\xcf\x11\xe0"
_CFB_KINDS = {"WordDocument": "doc", "PowerPoint Document": "ppt", "Workbook": "xls", "Book": "xls"}
_MAIN_PART = re.compile(
    rb"application/vnd\.(?:openxmlformats-officedocument\.|ms-)"
    rb"(wordprocessingml|word|presentationml|powerpoint|spreadsheetml|excel)"
    rb"\.(?:document|presentation|slideshow|sheet|template)(?:\.macroEnabled(?:Template)?|\.macroenabled)?\.main\+xml",
    re.IGNORECASE,
)
_OOXML_KINDS = {b"w": "docx", b"p": "pptx", b"s": "xlsx", b"e": "xlsx"}
"""Format by the first letter of the main part's family, such as `wordprocessingml` or `excel`."""

_CONTAINERS = (b"PK\x03\x04", b"PK\x05\x06", _CFB_MAGIC)
_HTML = re.compile(rb"^\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_DOCLING = re.compile(rb'"schema_name"\s*:\s*"DoclingDocument"')
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~|\* \S|- \S|\[[^\]\n]+\]\()", re.M)
_RST = re.compile(r"^(?:\.\. [\w-]+::|(?P<title>\S.*)\n(?:={4,}|-{4,}|~{4,})$)", re.M)


def detect_format(data: bytes, name: str, media_type: str = "") -> Format:
    """Detect the format by content; name and media type only decide between text formats."""
    head = data[:SNIFFED_BYTES]
    if not data.strip(b"\0 \t\r\n\f"):
        raise CannotConvert(f"{name} is empty; there is nothing to convert.")
    at = head[:1024].find(b"%PDF-")
    # Text files may quote the header of a PDF.
    if at == 0 or (at > 0 and not BY_SUFFIX.get(PurePath(name).suffix.lower(), FORMATS["pdf"]).is_text):
        return FORMATS["pdf"]
    if head.startswith((*_CONTAINERS, b"{\\rtf")):
        kind = detect_kind(data)
    else:
        # Text in UTF-16 has zero bytes, but also a byte order mark.
        is_binary = b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff"))
        kind = None if is_binary else _detect_text_format(data, head, name, media_type)
    if kind is None:
        raise CannotConvert(
            f"{name} is no kind of document that can be converted; there are PDF, Word, PowerPoint, Excel, "
            "OpenDocument, RTF, EPUB, HTML, Markdown, reStructuredText, CSV and plain text."
        )
    return FORMATS[kind]


def is_detectable_by_content(head: bytes) -> bool:
    """Whether the first bytes determine the format regardless of the name."""
    return head.startswith((b"%PDF-", *_CONTAINERS, b"{\\rtf"))


def detect_kind(data: bytes) -> str | None:
    """Return the key of an office format by its content, or None.

    Raises `CannotConvert` for a container that is locked, broken or a bomb, since that hides its kind.
    """
    if data.startswith(b"{\\rtf"):
        return "rtf"
    if data.startswith(_CFB_MAGIC):
        try:
            names = list(_iter_root_entries(_read_directory(data)))
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CannotConvert(BROKEN) from error
        if "EncryptedPackage" in names:
            raise CannotConvert(LOCKED)
        return next((kind for name, kind in _CFB_KINDS.items() if name in names), None)
    if not data.startswith(b"PK\x03\x04"):
        return None
    package = open_package(data)
    mimetype = package.read_head("mimetype").strip().decode("ascii", "replace").removesuffix("-template")
    if mimetype in BY_MEDIA_TYPE and BY_MEDIA_TYPE[mimetype].key in ("odt", "ods", "odp", "epub"):
        return BY_MEDIA_TYPE[mimetype].key
    main = _MAIN_PART.search(package.read_head("[Content_Types].xml"))
    return _OOXML_KINDS[main[1][:1].lower()] if main else None


def _read_directory(data: bytes) -> bytes:
    """Return the directory sectors of a compound file, in the order of the allocation table."""
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
    """Yield the names directly below the root, in the sibling tree of its entry; embedded objects are deeper."""
    waiting = [struct.unpack_from("<I", directory, 76)[0]]
    seen: set[int] = set()
    while waiting:
        entry = waiting.pop()
        if entry == 0xFFFFFFFF or entry in seen:
            continue
        seen.add(entry)
        name = directory[entry * 128 : entry * 128 + 64]
        length, *siblings = struct.unpack_from("<H2xII", directory, entry * 128 + 64)
        yield name[: max(length - 2, 0)].decode("utf-16-le")
        waiting += siblings


def _detect_text_format(data: bytes, head: bytes, name: str, media_type: str) -> str:
    if _HTML.match(head):
        return "html"
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and _DOCLING.search(data):
        return "docling"
    # Sphinx publishes its sources as `page.rst.txt`.
    suffix = PurePath(re.sub(r"(\.(?:rst|md))\.txt$", r"\1", name.lower())).suffix
    named = BY_SUFFIX.get(suffix) or BY_MEDIA_TYPE.get(media_type)
    key = named.key if named is not None and named.is_text else "text"
    if key != "text" or suffix:
        return key
    text = head.decode("utf-8", "replace")
    if _RST.search(text) and ".. " in text:
        return "rst"
    return "markdown" if len(_MARKDOWN.findall(text)) > 1 else "text"
