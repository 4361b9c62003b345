"""Packed document: a SQLite database with the blocks, sections, pages and chunks of one document.

Workers write it, so the server only moves it into place. Readers load just what they need. The file is opened
read-only, and its schema isn't trusted.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self, get_args

import orjson

from refdesk.documents.export.markdown import markdown_parts
from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Block,
    Cell,
    Chunk,
    Document,
    Page,
    PageKind,
    Picture,
    Place,
    Section,
    Span,
    Table,
    get_page,
    list_sections,
)

PACKED_DOCUMENT_VERSION = 6
"""Raised when conversion or chunks change, so that files are converted again."""

READABLE_VERSIONS = frozenset((4, 5, PACKED_DOCUMENT_VERSION))
"""Versions that can be read; 4 has no terms."""

ESTIMATED_PAGE = 3000
"""Characters per page in formats without pages: about 500 words, as on paper."""

OUTLINE_SECTIONS = 40
PREVIEW_CHARACTERS = 2000
"""Preview of a document: enough to identify it, short in a model's context window."""

QUERY_STEPS = 50_000_000
"""SQLite virtual machine steps per query, to stop a file made to hang; the longest manuals need a hundredth."""

SNIPPET_WORDS = 60
"""About three sentences around a match."""

_WORD = re.compile(r"\w+(?:[_./:-]\w+)*", re.UNICODE)
_STOP_WORDS = frozenset(
    "a an and any are as at be by can could do does for from had has have how i if in into is it its me my of on or "
    "our should so than that the their them then there these they this to use was we what when where which who why "
    "will with would you your".split()
)

_SCHEMA = """
CREATE TABLE about (body BLOB NOT NULL);
CREATE TABLE blocks (position INTEGER PRIMARY KEY, page INTEGER NOT NULL, body BLOB NOT NULL);
CREATE INDEX blocks_by_page ON blocks (page);
CREATE TABLE sections (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL,
    level INTEGER NOT NULL, page INTEGER, path TEXT NOT NULL, start INTEGER NOT NULL, finish INTEGER NOT NULL,
    anchors TEXT NOT NULL);
CREATE TABLE chunks (position INTEGER PRIMARY KEY, text TEXT NOT NULL, path TEXT NOT NULL, section TEXT NOT NULL,
    first_page INTEGER, last_page INTEGER, tokens INTEGER NOT NULL, anchors TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (path, text, tokenize = 'porter unicode61 remove_diacritics 2');
"""


@dataclass(frozen=True, slots=True)
class PackedInfo:
    """Metadata of a packed document."""

    title: str
    name: str
    format: str
    """Key of the source format."""
    media_type: str
    digest: str
    page_kind: PageKind | Literal["estimated"]
    """`estimated` if the format has no pages and they were assigned by length."""
    pages: int
    total_pages: int
    page_sizes: tuple[tuple[int, float, float, bool], ...]
    sections: int
    chunks: int
    tables: int
    tags: tuple[str, ...]
    properties: Mapping[str, str]
    warnings: tuple[str, ...]
    outline: tuple[Section, ...]
    """The first entries of the table of contents."""
    preview: str
    """The start of the text, as Markdown."""
    size: int = 0
    """Size of the source file in bytes, 0 if unknown."""

    @property
    def page_unit(self) -> PageKind:
        """The kind of its pages, with `page` for estimated ones."""
        return "page" if self.page_kind == "estimated" else self.page_kind


def pack(
    document: Document,
    pieces: Sequence[Chunk],
    *,
    format: str = "",
    size: int = 0,
    blocks: Sequence[Block] | None = None,
) -> bytes:
    """Serialize a document and its chunks as a SQLite database.

    `size` is that of the source file; `blocks` are the result of `paginate`, if it was called already.
    """
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(_create_empty_database())
        paged = paginate(document) if blocks is None else blocks
        pages: list[int] = []
        for block in paged:
            # One without a page is on that of the block before it.
            pages.append(get_page(block) or (pages[-1] if pages else 1))
        encoded = map(encode_block, document.blocks)
        database.executemany("INSERT INTO blocks VALUES (?, ?, ?)", zip(range(len(pages)), pages, encoded, strict=True))
        found = list_sections(paged)
        database.executemany(
            "INSERT INTO sections VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (n, s.id, s.title, s.level, pages[s.start], _to_json(s.path), s.start, s.end, _to_json(s.anchors))
                for n, s in enumerate(found)
            ),
        )
        database.executemany(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                (n, c.text, _to_json(c.path), c.section, c.first_page, c.last_page, c.tokens, _to_json(c.anchors))
                for n, c in enumerate(pieces, 1)
            ),
        )
        words = ((n, " ".join(c.path), c.text) for n, c in enumerate(pieces, 1))
        database.executemany("INSERT INTO words (rowid, path, text) VALUES (?, ?, ?)", words)
        about = replace(_build_info(document, format, max(pages, default=0), found, pieces), size=size)
        database.execute("INSERT INTO about VALUES (?)", (orjson.dumps(about),))
        database.commit()
        return database.serialize()


@cache
def _create_empty_database() -> bytes:
    """Return an empty database; copying it is faster than creating the tables for each document."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {PACKED_DOCUMENT_VERSION}")
        return database.serialize()


def paginate(document: Document) -> Sequence[Block]:
    """Return the blocks with their pages, estimated by length for formats without pages, so that they can be read in
    parts."""
    if document.pages:
        return document.blocks
    paged: list[Block] = []
    page, filled = 1, 0
    for block in document.blocks:
        if filled >= ESTIMATED_PAGE:
            page, filled = page + 1, 0
        filled += _estimate_length(block)
        paged.append(replace(block, place=Place(page)))
    return paged


def _estimate_length(block: Block) -> int:
    """Estimate the characters of a block without rendering it."""
    match block:
        case Table():
            return len(block.caption) + sum(len(cell.text) + 3 for cell in block.cells)
        case Picture():
            return len(block.caption)
        case _:
            return len(block.text)


def _build_info(
    document: Document, format: str, last_page: int, found: Sequence[Section], pieces: Sequence[Chunk]
) -> PackedInfo:
    # Terms are left out if not all of them fit.
    headings = [section for section in found if section.level <= MAX_HEADING_LEVEL]
    outline = found if len(found) <= OUTLINE_SECTIONS else headings
    return PackedInfo(
        title=document.title,
        name=document.name,
        format=format,
        media_type=document.media_type,
        digest=document.digest,
        page_kind=document.page_kind if document.pages else "estimated",
        pages=len(document.pages) or last_page,
        total_pages=document.total_pages or len(document.pages) or last_page,
        page_sizes=tuple((page.number, page.width, page.height, page.scanned) for page in document.pages),
        sections=len(found),
        chunks=len(pieces),
        tables=sum(isinstance(block, Table) for block in document.blocks),
        tags=document.tags,
        properties=dict(document.properties),
        warnings=document.warnings,
        outline=tuple(replace(section, path=(), anchors=()) for section in outline[:OUTLINE_SECTIONS]),
        preview=_build_preview(document.blocks),
    )


def _build_preview(blocks: Iterable[Block]) -> str:
    text = ""
    for part in markdown_parts(blocks):
        text += part
        if len(text) > PREVIEW_CHARACTERS:
            return text[:PREVIEW_CHARACTERS].rstrip() + " …"
    return text


def _to_json(texts: Sequence[str]) -> str:
    return orjson.dumps(texts).decode()


class InvalidPackedDocument(Exception):
    """The file isn't a packed document of a readable version."""


class PackedDocument:
    """A packed document open for reading, by one thread at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        database.set_progress_handler(lambda: 1, QUERY_STEPS)
        try:
            version = database.execute("PRAGMA user_version").fetchone()[0]
            # Reject views and triggers, which would run code from the file.
            kinds = {kind for (kind,) in database.execute("SELECT type FROM sqlite_schema")}
            if not kinds <= {"table", "index"}:
                raise InvalidPackedDocument(f"it holds {', '.join(sorted(kinds))}")
            body = database.execute("SELECT body FROM about").fetchone() if version in READABLE_VERSIONS else None
        except sqlite3.DatabaseError as error:
            raise InvalidPackedDocument(str(error)) from error
        if body is None:
            raise InvalidPackedDocument(f"version {version}")
        self.version = int(version)
        self.about = _decode_info(orjson.loads(body[0]))

    @classmethod
    def open(cls, path: Path) -> PackedDocument:
        """Open a file. Raises `InvalidPackedDocument` or `FileNotFoundError`."""
        try:
            # The file never changes once in place, so SQLite needs no locks and no journal.
            database = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False)
            database.execute("PRAGMA trusted_schema = OFF")
        except sqlite3.OperationalError as error:
            if not path.exists():
                raise FileNotFoundError(path) from error
            raise InvalidPackedDocument(str(error)) from error
        return cls(database)

    @classmethod
    def of(cls, packed: bytes) -> PackedDocument:
        """Open the bytes that `pack` returned."""
        database = sqlite3.connect(":memory:", check_same_thread=False)
        database.deserialize(packed)
        return cls(database)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    def document(self) -> Document:
        """Return the whole document."""
        about = self.about
        return Document(
            title=about.title,
            blocks=tuple(self.blocks()),
            pages=tuple(Page(*size) for size in about.page_sizes),
            page_kind=about.page_unit,
            total_pages=about.total_pages if about.total_pages != about.pages else 0,
            name=about.name,
            media_type=about.media_type,
            digest=about.digest,
            tags=about.tags,
            properties=about.properties,
            warnings=about.warnings,
        )

    def blocks(self, start: int = 0, end: int | None = None) -> Iterator[Block]:
        """Yield the blocks of a range of positions."""
        rows = self._database.execute(
            "SELECT body FROM blocks WHERE position >= ? AND (? IS NULL OR position < ?) ORDER BY position",
            (start, end, end),
        )
        return (decode_block(row[0]) for row in rows)

    def page_blocks(self, page: int) -> Iterator[Block]:
        """Yield the blocks of one page."""
        rows = self._database.execute("SELECT body FROM blocks WHERE page = ? ORDER BY position", (page,))
        return (decode_block(row[0]) for row in rows)

    def page_start(self, page: int) -> int | None:
        """Return the position of the first block on this page or a later one, or None past the end."""
        row = self._database.execute("SELECT min(position) FROM blocks WHERE page >= ?", (page,)).fetchone()
        return None if row[0] is None else int(row[0])

    def sections(self) -> list[Section]:
        """Return the table of contents."""
        return [_decode_section(row) for row in self._database.execute("SELECT * FROM sections ORDER BY position")]

    def section_ids(self) -> list[str]:
        """Return the ids of the sections."""
        return [row[0] for row in self._database.execute("SELECT id FROM sections ORDER BY position")]

    def page_numbers(self) -> set[int]:
        """Return the page numbers, which may have gaps."""
        if self.about.page_sizes:
            return {number for number, *_ in self.about.page_sizes}
        return set(range(1, self.about.pages + 1))

    def section(self, id: str) -> Section | None:
        """Return a section by its id, or None."""
        row = self._database.execute("SELECT * FROM sections WHERE id = ?", (id,)).fetchone()
        return _decode_section(row) if row else None

    def search(self, query: str, limit: int) -> list[tuple[Chunk, str, float]]:
        """Return the best matching chunks, each with a snippet and its score, highest first."""
        words = list(dict.fromkeys(word.lower() for word in _WORD.findall(query)))
        significant = [word for word in words if word not in _STOP_WORDS] or words
        if not significant:
            return []
        # Words are quoted, so none is read as an operator. A compound such as `max_connections` becomes a phrase.
        expression = " OR ".join(f'"{word}"' for word in significant)
        rows = self._database.execute(
            "SELECT chunks.*, snippet(words, 1, '', '', '…', ?) AS around, -bm25(words, 2.0, 1.0) AS score FROM words "
            "JOIN chunks ON position = words.rowid WHERE words MATCH ? ORDER BY score DESC, position LIMIT ?",
            (SNIPPET_WORDS, expression, limit),
        )
        return [(_decode_chunk(row[:-2]), row[-2], round(row[-1], 4)) for row in rows]

    def window(self, anchor: str, before: int, after: int) -> list[Chunk] | None:
        """Return the chunks around one, or None if there is no such chunk."""
        match = re.fullmatch(r"c(\d{1,9})", anchor)
        position = int(match[1]) if match else 0
        if not 1 <= position <= self.about.chunks:
            return None
        rows = self._database.execute(
            "SELECT * FROM chunks WHERE position BETWEEN ? AND ? ORDER BY position",
            (position - before, position + after),
        )
        return [_decode_chunk(row) for row in rows]

    def chunks_before(self, chunk: Chunk, section: Section | None) -> list[Chunk]:
        """Return the chunks of a section, subsections included, right before one; without a section all before it."""
        position = int(chunk.id.removeprefix("c"))
        first, last = (section.start, section.end) if section else (0, None)
        rows = self._database.execute(
            "SELECT * FROM chunks WHERE position < ? AND position > (SELECT coalesce(max(c.position), 0) FROM chunks c "
            "JOIN sections s ON s.id = c.section WHERE c.position < ? AND (s.start < ? OR s.start >= ?)) "
            "ORDER BY position",
            (position, position, first, last),
        )
        return [_decode_chunk(row) for row in rows]


def _decode_info(fields: dict[str, Any]) -> PackedInfo:
    lists = {name: tuple(fields[name]) for name in ("tags", "warnings")}
    sizes = tuple((int(number), width, height, scanned) for number, width, height, scanned in fields["page_sizes"])
    outline = tuple(Section(**{**section, "path": (), "anchors": ()}) for section in fields["outline"])
    return PackedInfo(**{**fields, **lists, "page_sizes": sizes, "outline": outline})


def _decode_section(row: Sequence[Any]) -> Section:
    _, id, title, level, page, path, start, end, anchors = row
    return Section(id, title, level, page, tuple(orjson.loads(path)), start, end, tuple(orjson.loads(anchors)))


def _decode_chunk(row: Sequence[Any]) -> Chunk:
    position, text, path, section, first, last, tokens, anchors = row
    id, titles = f"c{position}", tuple(orjson.loads(path))
    return Chunk(id, text, titles, section, first, last, tokens, tuple(orjson.loads(anchors)))


def encode_block(block: Block) -> bytes:
    """Encode a block as JSON."""
    return orjson.dumps((type(block).__name__, block))


def decode_block(body: bytes) -> Block:
    """Decode a block encoded by `encode_block`."""
    kind, fields = orjson.loads(body)
    place = fields.pop("place")
    if place is not None:
        fields["place"] = Place(place["page"], tuple(place["box"]) if place["box"] else None)
    if "spans" in fields:
        fields["spans"] = tuple(Span(**span) for span in fields["spans"])
    if "cells" in fields:
        fields["cells"] = tuple(Cell(**cell) for cell in fields["cells"])
    block: Block = _KINDS[kind](**fields)
    return block


_KINDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(Block)}
