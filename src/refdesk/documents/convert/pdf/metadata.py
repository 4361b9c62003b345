"""What a PDF says of itself: title, author, dates, language, keywords."""

from __future__ import annotations

import ctypes
import re
from pathlib import PurePath
from typing import Any

import pypdfium2.raw as raw

from refdesk.documents.model import Block, Heading

MAX_VALUE = 1_000
"""Characters kept of one entry."""

_USELESS_TITLE = re.compile(
    r"(?:microsoft (?:word|powerpoint|excel) - .*|untitled.*|(?:document|slide|presentation|title|no title)\s*\d*|"
    r"\S+\.(?:docx?|odt|pdf|tex|dvi|indd|html?|qxd|rtf|txt|md|fm|book|ms|man))",
    re.I,
)
_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?(\d{2})?(\d{2})?(\d{2})?(?:([Zz])|([+-]\d{2})'?(\d{2})?)?")
_BREAKS_CODE = re.compile(
    r"skia|chrom|weasyprint|wkhtml|webkit|\bqt\b|prince|quartz|cairo|writer|libreoffice|openoffice|word|google|pdfkit",
    re.I,
)


def title_of(document: Any, blocks: tuple[Block, ...], name: str) -> str:
    """The title that the file states, else its first heading, else the file's name."""
    stated = _value(document, "Title")
    if stated and not _USELESS_TITLE.fullmatch(stated):
        return stated
    headings = [block for block in blocks if isinstance(block, Heading)]
    top = min((heading.level for heading in headings), default=0)
    first = next((heading.text for heading in headings if heading.level == top), "")
    return first or stated or PurePath(name).stem


def properties_of(document: Any) -> dict[str, str]:
    """Author, subject, language, dates and programs, those that are stated."""
    found = {
        "author": _value(document, "Author"),
        "subject": _value(document, "Subject"),
        "language": _language(document),
        "created": iso_date(_value(document, "CreationDate")),
        "modified": iso_date(_value(document, "ModDate")),
        "creator": _value(document, "Creator"),
        "producer": _value(document, "Producer"),
    }
    return {name: value for name, value in found.items() if value}


def keywords_of(document: Any) -> tuple[str, ...]:
    """The keywords, each once."""
    words = (word.strip() for word in re.split(r"[,;\n]", _value(document, "Keywords")))
    return tuple(dict.fromkeys(filter(None, words)))


def breaks_code(document: Any) -> bool:
    """Whether the program that made the file breaks long lines of code: browsers do, typesetters never."""
    return _BREAKS_CODE.search(f"{_value(document, 'Producer')} {_value(document, 'Creator')}") is not None


def iso_date(text: str) -> str:
    """`D:20230120164927Z` as `2023-01-20T16:49:27Z`; nothing for what is no date."""
    found = _DATE.match(text)
    if not found:
        return ""
    year, month, day, hour, minute, second, utc, hours, minutes = found.groups()
    date = "-".join(filter(None, (year, month, day)))
    if not (day and hour and minute):
        return date
    zone = "Z" if utc else f"{hours}:{minutes or '00'}" if hours else ""
    return f"{date}T{hour}:{minute}:{second or '00'}{zone}"


def _value(document: Any, key: str) -> str:
    text: str = document.get_metadata_value(key)
    return " ".join(text.replace("\x00", "").split())[:MAX_VALUE]


def _language(document: Any) -> str:
    units = (ctypes.c_ushort * 64)()
    size = min(raw.FPDFCatalog_GetLanguage(document.raw, units, ctypes.sizeof(units)), ctypes.sizeof(units))
    return bytes(units)[: max(size - 2, 0)].decode("utf-16-le", "ignore").strip()
