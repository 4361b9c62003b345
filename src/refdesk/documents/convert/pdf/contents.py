"""Contents pages, which are redundant in documents with an outline."""

from __future__ import annotations

import re
from collections.abc import Sequence

from refdesk.documents.convert.pdf.layout import Line

CONTENTS_LINES = 3
"""Lines with leaders that make a contents page."""

_LEADERS = re.compile(r"(?:\.\s?){4,}|(?:…\s?){2,}|(?:·\s?){4,}")
_ENTRY = re.compile(r"(?:(?:\.\s?){4,}|(?:…\s?){2,}|(?:·\s?){4,}).{0,4}?\b(?:\d{1,4}|[ivxlc]{1,7})\W*$")
_PAGE_AT_END = re.compile(r"\s(?:\d{1,4}|[ivxlc]{1,7})$")


def has_leaders(text: str) -> bool:
    """Whether a text has dot leaders."""
    return _LEADERS.search(text) is not None


def drop_contents_entries(lines: Sequence[Line]) -> list[Line]:
    """Return the lines of a page without entries of a table of contents."""
    entries = {id(line) for line in lines if _ENTRY.search(line.text)}
    if len(entries) >= CONTENTS_LINES:
        entries |= {id(line) for line in lines if _PAGE_AT_END.search(line.text)}
    return [line for line in lines if id(line) not in entries]
