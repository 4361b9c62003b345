"""Fits texts into results: pages by token budget and cursor, outlines, shortened metadata."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Annotated

from pydantic import Field

from refdesk.documents.model import Section
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, estimate_tokens
from refdesk.engines.base import Document
from refdesk.errors import InvalidArguments, Problem, ToolFailure
from refdesk.tools.json_schema import Result
from refdesk.validation import shorten

DEFAULT_TOKENS = 1800
"""About 7 kB: five passages, and a small part of a context window."""

MAX_BYTES = 20_000
"""Size of any result unless its caller requests more."""

NOTE_BYTES = 1000
"""Reserved of that for the note."""

MAX_CHARACTERS = 160
"""Length of a title, warning, tag or property; the longest real titles have about a hundred."""

MAX_ENTRIES = 20
"""Number of warnings, tags and properties."""

MaxTokens = Annotated[int | None, Field(ge=100, le=20_000, description="Budget of the answer.")]


@dataclass(frozen=True, slots=True)
class TextPage:
    """A page of a text, from `start` on."""

    text: str
    start: int
    total: int
    next_cursor: str | None

    @classmethod
    def of(cls, text: str, cursor: str | None, max_tokens: int, start: int = 0) -> TextPage:
        """Return the page at a cursor, or the one from `start` on."""
        start = start if cursor is None else decode_cursor(cursor, text)
        room = max_tokens * CHARACTERS_PER_TOKEN
        rest = len(text) - start
        end = start + (rest if rest <= room else find_cut(text[start : start + room + 1], room))
        return cls(text[start:end], start, len(text), encode_cursor(end, text) if end < len(text) else None)

    def format_note(self) -> str:
        """Return a note on what was left out and how to continue."""
        end = self.start + len(self.text)
        return f"(characters {self.start}–{end} of {self.total}; continue with cursor {self.next_cursor!r})"


@dataclass(frozen=True, slots=True)
class FilePart:
    """A page of a text file, of which only that part is read; positions are in bytes."""

    text: str
    start: int
    end: int
    size: int

    @classmethod
    def of(cls, file: IO[bytes], cursor: str | None, max_tokens: int) -> FilePart:
        """Return the part at a cursor, or the first."""
        size = file.seek(0, os.SEEK_END)
        start = int(cursor or 0)
        if cursor is not None and not 0 < start < size:
            raise InvalidArguments([Problem("cursor", "is not a cursor of this document")])
        file.seek(start)
        room = max_tokens * CHARACTERS_PER_TOKEN
        text = file.read(room).decode("utf-8", "ignore")
        if start + room < size:
            text = text[: find_cut(text, len(text))]
        # Always advance, even if a forged cursor points into the middle of the last character.
        return cls(text, start, min(start + max(len(text.encode()), 1), size), size)

    @property
    def next_cursor(self) -> str | None:
        return str(self.end) if self.end < self.size else None

    @property
    def tokens(self) -> int:
        return estimate_tokens(len(self.text))

    def format_note(self) -> str:
        """Return a note on what was left out and how to continue."""
        return f"(bytes {self.start}–{self.end} of {self.size}; continue with cursor {self.next_cursor!r})"


def find_cut(text: str, end: int) -> int:
    """Return the last natural boundary before `end`: a paragraph, line, sentence or word."""
    for mark in ("\n\n", "\n", ". ", " "):
        found = text.rfind(mark, end // 2, end)
        if found > 0:
            return found + (1 if mark == ". " else 0)
    return end


def encode_cursor(position: int, text: str) -> str:
    """Return a cursor for a position, bound to the text."""
    return f"{position}-{_compute_fingerprint(text)}"


def decode_cursor(cursor: str, text: str) -> int:
    """Return the position of a cursor; reject one of another text."""
    match = re.fullmatch(r"(\d{1,9})-([0-9a-f]{8})", cursor)
    if match is None or int(match[1]) >= len(text):
        raise InvalidArguments([Problem("cursor", "is not a cursor of this document")])
    if match[2] != _compute_fingerprint(text):
        raise InvalidArguments([Problem("cursor", "the document has changed since; start again without it")])
    return int(match[1])


def _compute_fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def read_text(file: IO[bytes], max_bytes: int) -> str:
    """Read a whole file, up to a maximum size."""
    with file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ToolFailure(f"The document is larger than {max_bytes >> 20} MB in this form; read it in parts.")
    return data.decode("utf-8", "replace")


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
    return f"{text[:end]}\n\n(characters 0–{end} of {len(text)}; continue with {call(end)})"


class OutlineEntry(Result):
    """A section in a table of contents."""

    id: str
    title: str
    level: int
    page: int | None = None

    @classmethod
    def of(cls, section: Section, mask: Callable[[str], str] = str) -> OutlineEntry:
        """Return the entry of a section, with its title masked."""
        title = mask(shorten(section.title, MAX_CHARACTERS))
        return cls(id=section.id, title=title, level=section.level, page=section.page)

    def readable(self) -> str:
        page = f", p. {self.page}" if self.page else ""
        return f"{'  ' * max(self.level - 1, 0)}- {self.title or '(before the first heading)'} [{self.id}{page}]"


def shorten_all(texts: Iterable[str], mask: Callable[[str], str] = str) -> list[str]:
    """Return the first texts, each shortened, and the number of omitted ones."""
    all_texts = list(texts)
    first = [mask(shorten(text, MAX_CHARACTERS)) for text in all_texts[:MAX_ENTRIES]]
    return [*first, f"… {len(all_texts) - MAX_ENTRIES} more"] if len(all_texts) > MAX_ENTRIES else first


def shorten_mapping(values: Mapping[str, str], mask: Callable[[str], str] = str) -> dict[str, str]:
    """Return the first entries of a mapping, each shortened."""
    names = list(values)[:MAX_ENTRIES]
    return dict(zip(shorten_all(names, mask), shorten_all((values[name] for name in names), mask), strict=True))


def format_path(path: Sequence[str]) -> str:
    """Format headings, from the top down, as one line."""
    return " › ".join(shorten(title, MAX_CHARACTERS // 2) for title in path[-4:])
