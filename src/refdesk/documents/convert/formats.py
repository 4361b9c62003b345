"""Supported formats and their detection."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from refdesk.documents.convert.ooxml import detect_kind
from refdesk.errors import CannotConvert

SNIFFED_BYTES = 4096
"""Bytes inspected to detect a text format."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format."""

    key: str
    title: str
    """Display name with its article."""
    media_type: str
    module: str
    """Module of its converter in this package."""
    suffixes: tuple[str, ...]


_OASIS = "application/vnd.oasis.opendocument"
_OPENXML = "application/vnd.openxmlformats-officedocument"

FORMATS = {
    format.key: format
    for format in (
        Format("pdf", "a PDF", "application/pdf", "pdf", (".pdf",)),
        Format("docx", "a Word document", f"{_OPENXML}.wordprocessingml.document", "docx", (".docx", ".docm", ".dotx")),
        Format("doc", "an old Word document", "application/msword", "docx", (".doc",)),
        Format("odt", "an OpenDocument text", f"{_OASIS}.text", "docx", (".odt",)),
        Format("rtf", "an RTF document", "application/rtf", "docx", (".rtf",)),
        Format("epub", "an EPUB book", "application/epub+zip", "docx", (".epub",)),
        Format(
            "pptx", "a PowerPoint file", f"{_OPENXML}.presentationml.presentation", "pptx", (".pptx", ".pptm", ".ppsx")
        ),
        Format("ppt", "an old PowerPoint file", "application/vnd.ms-powerpoint", "pptx", (".ppt",)),
        Format("odp", "an OpenDocument presentation", f"{_OASIS}.presentation", "pptx", (".odp",)),
        Format("xlsx", "an Excel workbook", f"{_OPENXML}.spreadsheetml.sheet", "xlsx", (".xlsx", ".xlsm", ".xltx")),
        Format("xls", "an old Excel workbook", "application/vnd.ms-excel", "xlsx", (".xls",)),
        Format("ods", "an OpenDocument spreadsheet", f"{_OASIS}.spreadsheet", "xlsx", (".ods",)),
        Format("csv", "a CSV file", "text/csv", "csv", (".csv", ".tsv")),
        Format("html", "an HTML page", "text/html", "html", (".html", ".htm", ".xhtml")),
        Format("markdown", "a Markdown file", "text/markdown", "markdown", (".md", ".markdown", ".mdx")),
        Format("rst", "a reStructuredText file", "text/x-rst", "rst", (".rst", ".rest")),
        Format("docling", "a DoclingDocument", "application/json", "docling", ()),
        Format("text", "a text file", "text/plain", "text", (".txt", ".text", ".log")),
    )
}

_BY_SUFFIX = {suffix: format for format in FORMATS.values() for suffix in format.suffixes}
_BY_MEDIA_TYPE = {format.media_type: format for format in FORMATS.values() if format.key != "docling"} | {
    "application/xhtml+xml": FORMATS["html"],
    "text/x-markdown": FORMATS["markdown"],
    "text/tab-separated-values": FORMATS["csv"],
}

_TEXTS = frozenset({"html", "markdown", "rst", "csv", "text"})
_CONTAINERS = (b"PK\x03\x04", b"PK\x05\x06", b"\xd0\xcf\x11\xe0")
_HTML = re.compile(rb"^\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S)
_DOCLING = re.compile(rb'"schema_name"\s*:\s*"DoclingDocument"')
_MARKDOWN = re.compile(r"^(?:#{1,6} \S|```|~~~|\* \S|- \S|\[[^\]\n]+\]\()", re.M)
_RST = re.compile(r"^(?:\.\. [\w-]+::|(?P<title>\S.*)\n(?:={4,}|-{4,}|~{4,})$)", re.M)


def detect_format(data: bytes, name: str, media_type: str = "") -> Format:
    """Detect the format by content; name and media type only decide between text formats."""
    head = data[:SNIFFED_BYTES]
    if not data.strip(b"\0 \t\r\n\f"):
        raise CannotConvert(f"{name} is empty; there is nothing to convert.")
    if _is_pdf(head, name):
        return FORMATS["pdf"]
    if head.startswith(_CONTAINERS):
        return _detect_container(data, name)
    if head.startswith(b"{\\rtf"):
        return FORMATS["rtf"]
    if _is_binary(head):
        raise CannotConvert(_describe_unknown(name))
    return _detect_text_format(data, head, name, media_type)


def is_detectable_by_content(head: bytes) -> bool:
    """Whether the first bytes determine the format regardless of the name."""
    return head.startswith((b"%PDF-", *_CONTAINERS, b"{\\rtf"))


def describe_wrong_format(name: str, found: str, expected: Sequence[str], tools: Mapping[str, str]) -> str:
    """Return the message for a file of an unexpected format."""
    title = FORMATS[found].title if found in FORMATS else "of another kind"
    advice = f"call {tools[found]} for it" if found in tools else "it cannot be converted as such"
    return f"{name} is {title}, not {FORMATS[expected[0]].title}; {advice}."


def _is_pdf(head: bytes, name: str) -> bool:
    """Whether a file starts like a PDF, except for text files that quote the header."""
    at = head[:1024].find(b"%PDF-")
    return at == 0 or (at > 0 and _BY_SUFFIX.get(PurePath(name).suffix.lower(), FORMATS["pdf"]).key not in _TEXTS)


def _detect_container(data: bytes, name: str) -> Format:
    kind = detect_kind(data)
    if kind is None:
        raise CannotConvert(_describe_unknown(name))
    return FORMATS[kind]


def _is_binary(head: bytes) -> bool:
    """Whether bytes aren't text; UTF-16 has a byte order mark."""
    return b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff"))


def _detect_text_format(data: bytes, head: bytes, name: str, media_type: str) -> Format:
    if _HTML.match(head):
        return FORMATS["html"]
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{") and _DOCLING.search(data):
        return FORMATS["docling"]
    named = _BY_SUFFIX.get(PurePath(name).suffix.lower()) or _BY_MEDIA_TYPE.get(media_type)
    if named is not None and named.key in _TEXTS:
        return named if named.key != "text" or PurePath(name).suffix else _guess_text_format(head)
    return FORMATS["text"] if PurePath(name).suffix else _guess_text_format(head)


def _guess_text_format(head: bytes) -> Format:
    """Guess the format of a text whose name doesn't tell."""
    text = head.decode("utf-8", "replace")
    if _RST.search(text) and ".. " in text:
        return FORMATS["rst"]
    return FORMATS["markdown"] if len(_MARKDOWN.findall(text)) > 1 else FORMATS["text"]


def _describe_unknown(name: str) -> str:
    return (
        f"{name} is no kind of document that can be converted; there are PDF, Word, PowerPoint, Excel, OpenDocument, "
        "RTF, EPUB, HTML, Markdown, reStructuredText, CSV and plain text."
    )
