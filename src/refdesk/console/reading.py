"""A document in the reader page: some blocks at a time, from wherever somebody begins to read.

Blocks are counted through the whole document, so that a section, a page and a passage that a search found are all just
places to begin, and reading goes on over the end of each. What a call takes is bounded, however long the document is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refdesk.console.blocks import Numbered, to_wire
from refdesk.console.params import Read
from refdesk.documents.export.markdown import block_to_markdown
from refdesk.documents.model import Block, Chunk, Code, Section, Table
from refdesk.documents.packed_document import Shelf
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem
from refdesk.validation import nearest_name, shortened

MOST_BLOCKS = 200
"""Blocks of one answer: several screens."""

MOST_CHARACTERS = 200_000
"""About as much text in one answer, where its blocks are long."""

MOST_LOOKED_THROUGH = 2000
"""Blocks among which those of a chunk are looked for; pages narrow it down to far fewer."""

OUTLINE_ENTRIES = 2000
"""Of a table of contents that are shown."""

SHORTEST_PIECE = 16
"""Characters of a piece of a chunk by which a longer block is known to be the one that it was cut from."""

CUT_LINES = 0.8
"""The share of a chunk's lines that must be in a table or a listing for it to have been cut from that."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is read: the blocks from one position to another, and which of them were looked for."""

    start: int
    end: int | None
    hits: frozenset[int] = frozenset()
    chunks: tuple[str, ...] = ()
    section: str = ""


def read(shelf: Shelf, asked: Read) -> dict[str, Any]:
    """The answer to `console/read`."""
    sections = shelf.sections()
    part = _part(shelf, asked, sections)
    blocks, is_whole = _taken(shelf, part)
    end = part.start + len(blocks)
    starts = {section.start: section.id for section in sections if section.level}
    answer: dict[str, Any] = {
        "blocks": to_wire(Numbered(part.start, blocks, starts, part.hits)),
        "section": part.section or _section_at(sections, part.start),
        "page": _page_at(shelf, part.start) if blocks else None,
        "chunk_ids": list(part.chunks),
    }
    if not is_whole or _is_there(shelf, end):
        answer["next"] = str(end)
    if part.start > 0:
        answer["previous"] = f"{max(part.start - MOST_BLOCKS, 0)}-{part.start}"
    return answer


def contents(shelf: Shelf) -> dict[str, Any]:
    """How long the document is, its table of contents, and how much of that is left out."""
    sections = [section for section in shelf.sections() if section.level]
    entries = [
        {"id": section.id, "title": shortened(section.title, 300), "level": section.level, "page": section.page}
        for section in sections[:OUTLINE_ENTRIES]
    ]
    more = len(sections) - len(entries)
    about = shelf.about
    answer = {"pages": about.pages, "page_kind": about.shown_page_kind, "outline": entries}
    return {**answer, **({"outline_omitted": more} if more > 0 else {})}


def _part(shelf: Shelf, asked: Read, sections: Sequence[Section]) -> Part:
    if asked.cursor is not None:
        start, _, end = asked.cursor.partition("-")
        return Part(int(start), int(end) if end else None)
    if asked.chunk is not None:
        return _around_chunk(shelf, asked, sections)
    if asked.section is not None:
        section = shelf.section(asked.section)
        if section is None:
            raise InvalidArguments([Problem("section", _no_section(asked.section, sections))])
        return Part(section.start, section.end, section=section.id)
    if asked.page is not None:
        return _page(shelf, asked.page)
    return Part(0, None)


def _page(shelf: Shelf, page: int) -> Part:
    start = shelf.page_start(page)
    if start is None:
        raise InvalidArguments([Problem("page", f"there are {shelf.about.pages} pages")])
    return Part(start, shelf.page_start(page + 1))


def _taken(shelf: Shelf, part: Part) -> tuple[list[Block], bool]:
    """As many blocks as one answer holds, and whether that is all of the part."""
    taken: list[Block] = []
    characters = 0
    for block in shelf.blocks(part.start, part.end):
        if len(taken) >= MOST_BLOCKS or characters >= MOST_CHARACTERS:
            return taken, False
        taken.append(block)
        characters += _length(block)
    return taken, True


def _length(block: Block) -> int:
    return sum(len(cell.text) for cell in block.cells) if isinstance(block, Table) else len(getattr(block, "text", ""))


def _is_there(shelf: Shelf, position: int) -> bool:
    return any(True for _ in shelf.blocks(position, position + 1))


# Where something stands


def _section_at(sections: Sequence[Section], position: int) -> str | None:
    place = bisect_right(sections, position, key=lambda section: section.start)
    return sections[place - 1].id if place else None


def _page_at(shelf: Shelf, position: int) -> int:
    """The page that a block is on: the last that begins no later."""
    first, last = 1, max(shelf.page_numbers(), default=1)
    while first < last:
        middle = (first + last + 1) // 2
        start = shelf.page_start(middle)
        first, last = (middle, last) if start is not None and start <= position else (first, middle - 1)
    return first


def _no_section(id: str, sections: Sequence[Section]) -> str:
    nearest = nearest_name(id, [section.id for section in sections[:1000]])
    hint = f"; did you mean {nearest!r}?" if nearest else ""
    return f"there is no section {shortened(id)!r}{hint}"


# Chunks


def _around_chunk(shelf: Shelf, asked: Read, sections: Sequence[Section]) -> Part:
    """The blocks of a chunk and of those around it."""
    assert asked.chunk is not None
    document, _, anchor = asked.chunk.rpartition("#")
    chunks = shelf.window(anchor, asked.before, asked.after)
    chunk = next((each for each in chunks or () if each.id == anchor), None)
    if not chunks or chunk is None:
        raise DocumentNotFound(f"The document has no chunk {shortened(asked.chunk)!r}; it may have changed since.")
    places = {each.id: _place(shelf, each, sections) for each in chunks}
    hits = places[chunk.id]
    found = [position for place in places.values() for position in place]
    start, end = (min(found), max(found) + 1) if found else _span(shelf, chunk, sections)
    ids = tuple(f"{document}#{each.id}" if document else each.id for each in chunks)
    # Where more is around it than one answer holds, the chunk itself is what is shown.
    if hits and max(hits) - start >= MOST_BLOCKS:
        start = min(hits)
    return Part(start, end, frozenset(hits), ids, chunk.section)


def _place(shelf: Shelf, chunk: Chunk, sections: Sequence[Section]) -> range:
    """The positions of a chunk's blocks: the longest run of blocks in its pages whose text is in it."""
    start, end = _span(shelf, chunk, sections)
    is_of = _Likeness(chunk.text)
    best, run, weight, most = range(0), range(0), 0, 0
    for position, block in enumerate(shelf.blocks(start, min(end, start + MOST_LOOKED_THROUGH)), start):
        shared = is_of.shared_with(block)
        if shared:
            run = range(run.start if run.stop == position else position, position + 1)
            weight = weight + shared if len(run) > 1 else shared
            best, most = (run, weight) if weight > most else (best, most)
    return best


def _span(shelf: Shelf, chunk: Chunk, sections: Sequence[Section]) -> tuple[int, int]:
    """Where to look for a chunk's blocks: on its pages, or else in its section."""
    start = None if chunk.first_page is None else shelf.page_start(chunk.first_page)
    if start is not None and chunk.last_page is not None:
        end = shelf.page_start(chunk.last_page + 1)
        return start, end if end is not None else start + MOST_LOOKED_THROUGH
    section = next((each for each in sections if each.id == chunk.section), None)
    return (section.start, section.end) if section else (0, MOST_LOOKED_THROUGH)


class _Likeness:
    """Tells whether a block is one of those that a chunk was made of, or that it was cut from."""

    def __init__(self, text: str) -> None:
        self._text = _plain(text)
        self._pieces = [piece for part in text.split("\n\n") if len(piece := _plain(part)) >= SHORTEST_PIECE]
        self._lines = _lines(text)

    def shared_with(self, block: Block) -> int:
        """How many characters the two have in common; 0 when the block is none of the chunk's."""
        text = block_to_markdown(block)
        plain = _plain(text)
        if not plain:
            return 0
        if plain in self._text:
            return len(plain)
        if isinstance(block, Table | Code):
            shared = self._lines & _lines(text)
            return sum(map(len, shared)) if self._lines and len(shared) >= CUT_LINES * len(self._lines) else 0
        return max((len(piece) for piece in self._pieces if piece in plain), default=0)


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _lines(text: str) -> frozenset[str]:
    return frozenset(plain for line in text.split("\n") if (plain := _plain(line)))
