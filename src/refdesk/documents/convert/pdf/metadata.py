"""PDF metadata (title, author, dates, language, keywords) and bookmarks."""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import PurePath
from typing import Any

import pypdfium2.raw as raw

from refdesk.documents.model import Block, Heading

from .layout import Line

MAX_VALUE = 1_000
"""Characters kept per value."""

DISPLAY = 1.2
"""Ratio to the body's letter size from which a line may be the title."""

TITLE_LINES = 4
"""More lines in the largest type are a poster or large print."""

LEAST_LETTERS = 3
"""Large type with fewer letters is a logo or a number."""

_USELESS_TITLE = re.compile(
    r"(?:microsoft (?:word|powerpoint|excel) - .*|untitled.*|(?:document|slide|presentation|title|no title)\s*\d*|"
    r"\S+\.(?:docx?|odt|pdf|tex|dvi|indd|html?|qxd|rtf|txt|md|fm|book|ms|man))",
    re.I,
)
_CONTENTS = re.compile(
    r"(?:(?:table of|short|brief|detailed|summary of) )?contents(?: in brief)?|inhalt(?:sverzeichnis|sübersicht)?|"
    r"table des matières|sommaire|índice(?: general)?|indice|sommario|sumário|inhoud(?:sopgave)?|spis treści|obsah|"
    r"innehåll|indhold|innhold|содержание|оглавление|目次|目\s*录|目\s*錄|목차|차례",
    re.I,
)
_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?(\d{2})?(\d{2})?(\d{2})?(?:([Zz])|([+-]\d{2})'?(\d{2})?)?")
_WRAPPING_PRODUCERS = re.compile(
    r"skia|chrom|weasyprint|wkhtml|webkit|\bqt\b|prince|quartz|cairo|writer|libreoffice|openoffice|word|google|pdfkit",
    re.I,
)


def choose_title(document: Any, displayed: str, blocks: tuple[Block, ...], name: str) -> str:
    """Return the declared title, the one on the first page, the first heading, or the file name."""
    stated = _read_value(document, "Title")
    if stated and not _USELESS_TITLE.fullmatch(stated):
        return stated
    headings = [block for block in blocks if isinstance(block, Heading) and not _CONTENTS.fullmatch(block.text)]
    first = min(headings, key=lambda heading: heading.level).text if headings else ""
    return displayed or first or stated or PurePath(name).stem


def find_displayed_title(lines: Sequence[Line], body_size: float) -> str:
    """Return the largest text of a page, if it is display type and not the title of a contents list."""
    largest = max((line.size for line in lines), default=0.0)
    if largest < DISPLAY * body_size:
        return ""
    first = next(place for place, line in enumerate(lines) if line.size > largest - 0.5)
    title = [line.text for line in takewhile(lambda line: line.size > largest - 0.5, lines[first:])]
    text = " ".join(title)
    is_title = len(title) <= TITLE_LINES and sum(map(str.isalpha, text)) >= LEAST_LETTERS
    return text if is_title and not _CONTENTS.fullmatch(text) else ""


def read_properties(document: Any) -> dict[str, str]:
    """Return author, subject, language, dates and programs, where declared."""
    units = (ctypes.c_ushort * 64)()
    size = min(raw.FPDFCatalog_GetLanguage(document.raw, units, ctypes.sizeof(units)), ctypes.sizeof(units))
    found = {
        "author": _read_value(document, "Author"),
        "subject": _read_value(document, "Subject"),
        "language": bytes(units)[: max(size - 2, 0)].decode("utf-16-le", "ignore").strip(),
        "created": parse_date(_read_value(document, "CreationDate")),
        "modified": parse_date(_read_value(document, "ModDate")),
        "creator": _read_value(document, "Creator"),
        "producer": _read_value(document, "Producer"),
    }
    return {name: value for name, value in found.items() if value}


def read_keywords(document: Any) -> tuple[str, ...]:
    """Return the keywords without duplicates."""
    words = (word.strip() for word in re.split(r"[,;\n]", _read_value(document, "Keywords")))
    return tuple(dict.fromkeys(filter(None, words)))


def is_code_wrapped(document: Any) -> bool:
    """Whether the producer wraps long code lines: browsers do, typesetters don't."""
    programs = f"{_read_value(document, 'Producer')} {_read_value(document, 'Creator')}"
    return _WRAPPING_PRODUCERS.search(programs) is not None


def parse_date(text: str) -> str:
    """Convert `D:20230120164927Z` to `2023-01-20T16:49:27Z`; empty if invalid."""
    found = _DATE.match(text)
    if not found:
        return ""
    year, month, day, hour, minute, second, utc, hours, minutes = found.groups()
    date = "-".join(filter(None, (year, month, day)))
    if not (day and hour and minute):
        return date
    zone = "Z" if utc else f"{hours}:{minutes or '00'}" if hours else ""
    return f"{date}T{hour}:{minute}:{second or '00'}{zone}"


def _read_value(document: Any, key: str) -> str:
    text: str = document.get_metadata_value(key)
    return " ".join(text.replace("\x00", "").split())[:MAX_VALUE]


MAX_BOOKMARKS = 50_000
"""Bookmarks read; the longest manuals have some 10,000."""

MAX_DEPTH = 24
"""Levels followed; books have at most seven, and loops are endless."""

MAX_TITLE_BYTES = 2_000
"""UTF-16 bytes; longer titles are cut."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A bookmark; level 1 is the outermost, the height is from the page's bottom where known."""

    title: str
    level: int
    page: int
    height: float | None


def read_outline(document: Any, first: int, last: int) -> tuple[int, list[Bookmark]]:
    """Return the number of all bookmarks, and those of the pages `first` to `last`, counted from 0, in order.

    Resolving a destination's page takes longer in longer documents. Outlines follow the pages, so bisection finds the
    relevant range.
    """
    marks = list(islice(document.get_toc(MAX_DEPTH), MAX_BOOKMARKS))
    places = range(len(marks))

    pages: dict[int, int] = {}

    def find_page(place: int) -> int:
        """Return the page of a bookmark; one without a page counts as on that of the one before."""
        start = place
        while start not in pages:
            destination = _find_destination(document, marks[start])
            page = int(raw.FPDFDest_GetDestPageIndex(document.raw, destination)) if destination else -1
            if page >= 0 or not start:
                pages[start] = page
            else:
                start -= 1
        pages.update(dict.fromkeys(range(start + 1, place + 1), pages[start]))
        return pages[place]

    if first > 0 or last < len(document) - 1:
        start = bisect_left(places, first, key=find_page)
        places = places[start : bisect_left(places, last + 1, lo=start, key=find_page)]
    entries = [
        Bookmark(title, marks[place].level + 1, page, _find_height(document, marks[place]))
        for place in places
        if first <= (page := find_page(place)) <= last and (title := _read_title(marks[place]))
    ]
    return len(marks), entries


def _read_title(mark: Any) -> str:
    buffer = ctypes.create_string_buffer(MAX_TITLE_BYTES)
    size = min(raw.FPDFBookmark_GetTitle(mark, buffer, len(buffer)), len(buffer))
    return " ".join(buffer.raw[: max(size - 2, 0)].decode("utf-16-le", "ignore").split())


def _find_destination(document: Any, mark: Any) -> Any:
    if destination := raw.FPDFBookmark_GetDest(document.raw, mark):
        return destination
    action = raw.FPDFBookmark_GetAction(mark)
    return raw.FPDFAction_GetDest(document.raw, action) if action else None


def _find_height(document: Any, mark: Any) -> float | None:
    destination = _find_destination(document, mark)
    if not destination:
        return None
    has_x, has_y, has_zoom = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    x, y, zoom = ctypes.c_float(), ctypes.c_float(), ctypes.c_float()
    found = raw.FPDFDest_GetLocationInPage(destination, has_x, has_y, has_zoom, x, y, zoom)
    return y.value if found and has_y.value else None
