"""Texts as resources: whoever reads one cannot name a budget, so a long text is cut and says how to read on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from refdesk.engines.base import Document
from refdesk.tools.paging import cut_before, encode_cursor

MAX_BYTES = 20_000
"""What no answer goes beyond unless its caller asks for more."""

NOTE_BYTES = 1000
"""Kept of that to say how to read on."""


def document_text(document: Document) -> str:
    """A document, or its beginning and the call that goes on from there."""
    id, text = document.info.id, document.text
    return _cut(text, lambda end: f"get_document with document_id {id!r} and cursor {encode_cursor(end, text)!r}")


def section_text(document_id: str, section_id: str, text: str) -> str:
    """A section, or its beginning and the call that goes on from there."""

    def call(end: int) -> str:
        cursor = len(text[:end].encode())
        return f"read_doc_section with doc_id {document_id!r}, section_id {section_id!r} and cursor '{cursor}'"

    return _cut(text, call)


def fitting(lines: Iterable[str]) -> list[str]:
    """The first of the lines, as many as leave room to say that there are more."""
    room = MAX_BYTES - NOTE_BYTES
    shown = list[str]()
    for line in lines:
        room -= len(line.encode()) + 1
        if room < 0:
            break
        shown.append(line)
    return shown


def _cut(text: str, call: Callable[[int], str]) -> str:
    data = text.encode()
    if len(data) <= MAX_BYTES:
        return text
    head = data[: MAX_BYTES - NOTE_BYTES].decode("utf-8", "ignore")
    end = cut_before(head, len(head))
    return f"{text[:end]}\n\n(characters 0–{end} of {len(text)}; go on with {call(end)})"
