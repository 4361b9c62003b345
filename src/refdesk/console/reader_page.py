"""Reads a document for the reader page, some blocks at a time.

Blocks are numbered through the whole document. A section, page or search hit is just a start position, and reading can
continue past its end. A call's work is bounded, however long the document is.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from refdesk.console.block_json import serialize_blocks
from refdesk.console.params import ReadParams
from refdesk.documents.export.markdown import block_to_markdown
from refdesk.documents.model import MAX_HEADING_LEVEL, Block, Chunk, Code, Section, Table
from refdesk.documents.packed_document import PackedDocument
from refdesk.errors import DocumentNotFound, InvalidArguments, Problem
from refdesk.support.edit_distance import nearest_names
from refdesk.validation import shorten

MAX_BLOCKS = 200
"""Blocks per response: several screens."""

MAX_CHARACTERS = 200_000
"""Approximate characters per response, for long blocks."""

MAX_SEARCHED_BLOCKS = 2000
"""Blocks searched for those of a chunk. The chunk's pages usually narrow it down to far fewer."""

MAX_OUTLINE_ENTRIES = 2000
"""Entries shown of the table of contents."""

MIN_PIECE_LENGTH = 16
"""Characters a piece of a chunk needs to identify the longer block that it was cut from."""

MIN_SHARED_LINES = 0.8
"""Share of a chunk's lines that a table or code block must contain to be the chunk's source."""


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The blocks to read, and those to mark as hits."""

    start: int
    end: int | None
    hits: frozenset[int] = frozenset()
    chunks: tuple[str, ...] = ()
    section: str = ""


def read(packed: PackedDocument, params: ReadParams) -> dict[str, Any]:
    sections = packed.sections()
    block_range = _resolve_range(packed, params, sections)
    blocks, is_whole = _read_blocks(packed, block_range)
    end = block_range.start + len(blocks)
    starts = {section.start: section.id for section in sections if section.level}
    index = bisect_right(sections, block_range.start, key=lambda section: section.start)
    answer: dict[str, Any] = {
        "blocks": serialize_blocks(blocks, block_range.start, starts, block_range.hits),
        "section": block_range.section or (sections[index - 1].id if index else None),
        "page": _find_page(packed, block_range.start) if blocks else None,
        "chunk_ids": list(block_range.chunks),
    }
    if not is_whole or any(True for _ in packed.blocks(end, end + 1)):
        answer["next"] = str(end)
    if block_range.start > 0:
        answer["previous"] = f"{max(block_range.start - MAX_BLOCKS, 0)}-{block_range.start}"
    return answer


def describe_contents(packed: PackedDocument) -> dict[str, Any]:
    """Return the page count and the table of contents, with the number of entries left out."""
    sections = [section for section in packed.sections() if 0 < section.level <= MAX_HEADING_LEVEL]
    entries = [
        {"id": section.id, "title": shorten(section.title, 300), "level": section.level, "page": section.page}
        for section in sections[:MAX_OUTLINE_ENTRIES]
    ]
    more = len(sections) - len(entries)
    about = packed.about
    answer = {"pages": about.pages, "page_kind": about.page_unit, "outline": entries}
    return {**answer, **({"outline_omitted": more} if more > 0 else {})}


def _resolve_range(packed: PackedDocument, params: ReadParams, sections: Sequence[Section]) -> BlockRange:
    if params.cursor is not None:
        start, _, end = params.cursor.partition("-")
        return BlockRange(int(start), int(end) if end else None)
    if params.chunk is not None:
        return _resolve_chunk(packed, params, sections)
    if params.section is not None:
        section = packed.section(params.section)
        if section is None:
            nearest = nearest_names(params.section, [section.id for section in sections], 1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise InvalidArguments([Problem("section", f"no section {shorten(params.section)!r}{hint}")])
        return BlockRange(section.start, section.end, section=section.id)
    if params.page is not None:
        first = packed.page_start(params.page)
        if first is None:
            raise InvalidArguments([Problem("page", f"the document has {packed.about.pages} pages")])
        return BlockRange(first, packed.page_start(params.page + 1))
    return BlockRange(0, None)


def _read_blocks(packed: PackedDocument, block_range: BlockRange) -> tuple[list[Block], bool]:
    """Return as many blocks as fit in one response, and whether the range is complete."""
    blocks: list[Block] = []
    characters = 0
    for block in packed.blocks(block_range.start, block_range.end):
        if len(blocks) >= MAX_BLOCKS or characters >= MAX_CHARACTERS:
            return blocks, False
        blocks.append(block)
        texts = [cell.text for cell in block.cells] if isinstance(block, Table) else [getattr(block, "text", "")]
        characters += sum(map(len, texts))
    return blocks, True


# Positions


def _find_page(packed: PackedDocument, position: int) -> int:
    """Return the page that a block is on, by binary search over page starts."""
    first, last = 1, max(packed.page_numbers(), default=1)
    while first < last:
        middle = (first + last + 1) // 2
        start = packed.page_start(middle)
        first, last = (middle, last) if start is not None and start <= position else (first, middle - 1)
    return first


# Chunks


def _resolve_chunk(packed: PackedDocument, params: ReadParams, sections: Sequence[Section]) -> BlockRange:
    """Return the range of a chunk and its neighbours."""
    assert params.chunk is not None
    document, _, anchor = params.chunk.rpartition("#")
    chunks = packed.window(anchor, params.before, params.after)
    chunk = next((each for each in chunks or () if each.id == anchor), None)
    if not chunks or chunk is None:
        raise DocumentNotFound(f"The document has no chunk {shorten(params.chunk)!r}. It may have changed.")
    positions_by_chunk = {each.id: _locate_chunk(packed, each, sections) for each in chunks}
    hits = positions_by_chunk[chunk.id]
    found = [position for positions in positions_by_chunk.values() for position in positions]
    start, end = (min(found), max(found) + 1) if found else _get_search_range(packed, chunk, sections)
    ids = tuple(f"{document}#{each.id}" if document else each.id for each in chunks)
    # If the context doesn't fit into one response, start at the chunk itself.
    if hits and max(hits) - start >= MAX_BLOCKS:
        start = min(hits)
    return BlockRange(start, end, frozenset(hits), ids, chunk.section)


def _locate_chunk(packed: PackedDocument, chunk: Chunk, sections: Sequence[Section]) -> range:
    """Return the positions of a chunk's blocks: the longest run of blocks on its pages whose text it contains."""
    start, end = _get_search_range(packed, chunk, sections)
    matcher = _ChunkMatcher(chunk.text)
    best, run, weight, best_weight = range(0), range(0), 0, 0
    for position, block in enumerate(packed.blocks(start, min(end, start + MAX_SEARCHED_BLOCKS)), start):
        shared = matcher.count_shared(block)
        if shared:
            run = range(run.start if run.stop == position else position, position + 1)
            weight = weight + shared if len(run) > 1 else shared
            best, best_weight = (run, weight) if weight > best_weight else (best, best_weight)
    return best


def _get_search_range(packed: PackedDocument, chunk: Chunk, sections: Sequence[Section]) -> tuple[int, int]:
    """Return where to look for a chunk's blocks: its pages, else its section."""
    start = None if chunk.first_page is None else packed.page_start(chunk.first_page)
    if start is not None and chunk.last_page is not None:
        end = packed.page_start(chunk.last_page + 1)
        return start, end if end is not None else start + MAX_SEARCHED_BLOCKS
    section = next((each for each in sections if each.id == chunk.section), None)
    return (section.start, section.end) if section else (0, MAX_SEARCHED_BLOCKS)


class _ChunkMatcher:
    """Matches blocks against the chunk that was made or cut from them."""

    def __init__(self, text: str) -> None:
        self._text = _collapse_whitespace(text)
        self._pieces = [
            piece
            for paragraph in text.split("\n\n")
            if len(piece := _collapse_whitespace(paragraph)) >= MIN_PIECE_LENGTH
        ]
        self._lines = _split_lines(text)

    def count_shared(self, block: Block) -> int:
        """Return the number of characters in common; 0 if the block isn't part of the chunk."""
        text = block_to_markdown(block)
        plain = _collapse_whitespace(text)
        if not plain:
            return 0
        if plain in self._text:
            return len(plain)
        if isinstance(block, Table | Code):
            shared = self._lines & _split_lines(text)
            return sum(map(len, shared)) if self._lines and len(shared) >= MIN_SHARED_LINES * len(self._lines) else 0
        return max((len(piece) for piece in self._pieces if piece in plain), default=0)


def _collapse_whitespace(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _split_lines(text: str) -> frozenset[str]:
    return frozenset(plain for line in text.split("\n") if (plain := _collapse_whitespace(line)))
