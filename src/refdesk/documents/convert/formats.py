"""Supported formats, one entry each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A file format."""

    key: str
    title: str
    """Display name with its article."""
    tool: str
    """Tool that converts it."""
    converter: str
    """Module in this package, and its function after a colon unless that is `convert`."""
    suffixes: tuple[str, ...]
    media_type: str
    other_media_types: tuple[str, ...] = ()
    """Aliases."""

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
        Format("pdf", "a PDF", _PDF, "pdf", (".pdf",), "application/pdf"),
        Format(
            "docx", "a Word document", _DOCX, "docx", (".docx", ".docm", ".dotx"), f"{_OOXML}.wordprocessingml.document"
        ),
        Format("doc", "an old Word document", _DOCX, "anydoc", (".doc",), "application/msword"),
        Format("odt", "an OpenDocument text", _DOCX, "anydoc", (".odt",), f"{_ODF}.text"),
        Format("rtf", "an RTF document", _DOCX, "anydoc", (".rtf",), "application/rtf"),
        Format("epub", "an EPUB book", _DOCX, "anydoc", (".epub",), "application/epub+zip"),
        Format(
            "html", "an HTML page", _DOCX, "html", (".html", ".htm", ".xhtml"), "text/html", ("application/xhtml+xml",)
        ),
        Format(
            "markdown",
            "a Markdown file",
            _DOCX,
            "markdown",
            (".md", ".markdown", ".mdx"),
            "text/markdown",
            ("text/x-markdown",),
        ),
        Format("rst", "a reStructuredText file", _DOCX, "rst", (".rst", ".rest"), "text/x-rst"),
        Format("text", "a text file", _DOCX, "text", (".txt", ".text", ".log"), "text/plain"),
        Format("docling", "a DoclingDocument", _DOCX, "docling", (), "application/json"),
        Format(
            "xlsx", "an Excel workbook", _XLSX, "xlsx", (".xlsx", ".xlsm", ".xltx"), f"{_OOXML}.spreadsheetml.sheet"
        ),
        Format("xls", "an old Excel workbook", _XLSX, "anydoc:convert_sheets", (".xls",), "application/vnd.ms-excel"),
        Format(
            "ods", "an OpenDocument spreadsheet", _XLSX, "opendocument:convert_sheets", (".ods",), f"{_ODF}.spreadsheet"
        ),
        Format("csv", "a CSV file", _XLSX, "csv", (".csv", ".tsv"), "text/csv", ("text/tab-separated-values",)),
        Format(
            "pptx",
            "a PowerPoint file",
            _PPTX,
            "pptx",
            (".pptx", ".pptm", ".ppsx"),
            f"{_OOXML}.presentationml.presentation",
        ),
        Format("ppt", "an old PowerPoint file", _PPTX, "anydoc", (".ppt",), "application/vnd.ms-powerpoint"),
        Format(
            "odp",
            "an OpenDocument presentation",
            _PPTX,
            "opendocument:convert_slides",
            (".odp",),
            f"{_ODF}.presentation",
        ),
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
