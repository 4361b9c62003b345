"""Texts of resources, truncated with a note on how to continue, since readers cannot name a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refdesk.engines.base import Document
from refdesk.tools.paging import encode_cursor, find_cut

MAX_BYTES = 20_000
"""Size of any result unless its caller requests more."""

NOTE_BYTES = 1000
"""Reserved of that for the note."""


def format_document(document: Document) -> str:
    """Return a document, or its beginning and the call that continues."""
    id, text = document.info.id, document.text
    return _truncate(text, lambda end: f"get_document with document_id {id!r} and cursor {encode_cursor(end, text)!r}")


def format_section(document_id: str, section_id: str, text: str) -> str:
    """Return a section, or its beginning and the call that continues."""

    def call(end: int) -> str:
        cursor = len(text[:end].encode())
        return f"read_doc_section with doc_id {document_id!r}, section_id {section_id!r} and cursor '{cursor}'"

    return _truncate(text, call)


def fit_lines(lines: Iterable[str]) -> list[str]:
    """Return the first lines, leaving room for a note."""
    room = MAX_BYTES - NOTE_BYTES
    fitted = list[str]()
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        fitted.append(line)
    return fitted


def _truncate(text: str, call: Callable[[int], str]) -> str:
    data = text.encode()
    if len(data) <= MAX_BYTES:
        return text
    head = data[: MAX_BYTES - NOTE_BYTES].decode("utf-8", "ignore")
    end = find_cut(head, len(head))
    return f"{text[:end]}\n\n(characters 0–{end} of {len(text)}; go on with {call(end)})"
