"""Split a document into chunks that can be searched and read by themselves.

A chunk ends at a heading of its section's level or a higher one. A section with hardly any text continues into its
first subsection, and the chunk belongs to the section with the most tokens. Tables and code stay whole if they fit;
otherwise they are split between rows or lines, and each part of a table repeats its header. Sizes are in tokens of the
embedding model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from refdesk.documents.export.markdown import block_to_markdown
from refdesk.documents.model import (
    Block,
    Cell,
    Chunk,
    Code,
    ListItem,
    Paragraph,
    Section,
    Table,
    get_page,
    is_section_heading,
    list_sections,
)
from refdesk.documents.tokens import measure_tokens, measure_word

MAX_TOKENS = 254
"""Input limit of the embedding model, minus its two special tokens. The heading path counts, too."""

MAX_PATH_TOKENS = 64
"""Share of that for the heading path."""

MIN_TOKENS = 40
"""A section with less text continues into its first subsection, since it says little by itself."""


EVEN_ATTEMPTS = 8
"""Lengths tried between an even share and a full chunk until no sentence is left over."""

FENCE_TOKENS = 12
"""Tokens reserved for the fences around code and its language."""


@dataclass(frozen=True, slots=True)
class ChunkPiece:
    """A block, or as much of it as fits a chunk."""

    text: str
    tokens: int
    page: int | None
    joiner: str
    """Separator from the previous piece."""


def chunks(blocks: Sequence[Block], *, max_tokens: int = MAX_TOKENS) -> list[Chunk]:
    """Split blocks into chunks in reading order, with ids from c1."""
    built: list[Chunk] = []
    open_chunk: _OpenChunk | None = None
    for section in _trim_to_own_text(list_sections(blocks)):
        if open_chunk is None or not open_chunk.can_extend_into(section):
            built += open_chunk.build() if open_chunk else ()
            open_chunk = _OpenChunk(section, max_tokens)
        else:
            open_chunk.extend_into(section)
        for piece in _split_section(blocks, section, open_chunk):
            if not open_chunk.has_room_for(piece):
                built += open_chunk.build()
                open_chunk = _OpenChunk(section, max_tokens)
            open_chunk.add(piece, section)
    built += open_chunk.build() if open_chunk else ()
    return [replace(chunk, id=f"c{number}") for number, chunk in enumerate(built, 1)]


def _trim_to_own_text(whole: Sequence[Section]) -> Iterator[Section]:
    """Yield each section up to its first subsection."""
    for section, following in zip_longest(whole, whole[1:]):
        yield replace(section, end=min(section.end, following.start)) if following else section


class _OpenChunk:
    """Builder of the current chunk."""

    def __init__(self, section: Section, max_tokens: int) -> None:
        self.section = section
        self.room = max_tokens
        self._max_tokens = max_tokens
        self._pieces: list[ChunkPiece] = []
        self._tokens = 0
        self._sections: dict[str, Section] = {}
        self._shares: Counter[str] = Counter()
        self.extend_into(section)

    def extend_into(self, section: Section) -> None:
        """Include text of a section and reserve room for its heading path."""
        self._sections[section.id] = section
        self.room = min(self.room, self._max_tokens - min(measure_tokens(" ".join(section.path)), MAX_PATH_TOKENS))

    def can_extend_into(self, section: Section) -> bool:
        return self._tokens < MIN_TOKENS and section.level > self.section.level > 0

    def has_room_for(self, piece: ChunkPiece) -> bool:
        return not self._pieces or self._tokens + piece.tokens <= self.room

    def add(self, piece: ChunkPiece, section: Section) -> None:
        self._pieces.append(piece)
        self._tokens += piece.tokens
        self._shares[section.id] += piece.tokens

    def build(self) -> list[Chunk]:
        if not self._pieces:
            return []
        first, *rest = self._pieces
        text = first.text + "".join(piece.joiner + piece.text for piece in rest)
        pages = [piece.page for piece in self._pieces if piece.page is not None]
        first_page, last_page = (min(pages), max(pages)) if pages else (None, None)
        section = self._sections[max(self._shares, key=self._shares.__getitem__)]
        return [Chunk("", text, section.path, section.id, first_page, last_page, self._tokens, section.anchors)]


def _split_section(blocks: Sequence[Block], section: Section, chunk: _OpenChunk) -> Iterator[ChunkPiece]:
    """Yield the pieces of a section. Its heading is in the path, unless the chunk began in a section above."""
    own = blocks[section.start : section.end]
    heading = own[0] if own and is_section_heading(own[0]) else None
    if heading is not None:
        own = own[1:]
    if heading is not None and (chunk.section is not section or not own):
        yield from _split_block(heading, chunk.room)
    before: Block | None = None
    for block in own:
        for number, piece in enumerate(_split_block(block, chunk.room)):
            in_list = isinstance(block, ListItem) and isinstance(before, ListItem) and number == 0
            yield replace(piece, joiner="\n") if in_list else piece
        before = block


def _split_block(block: Block, room: int) -> Iterator[ChunkPiece]:
    text = block_to_markdown(block)
    tokens = measure_tokens(text)
    if tokens <= room:
        if text:
            yield ChunkPiece(text, tokens, get_page(block), "\n\n")
        return
    for part in _cut_block(block, room):
        yield ChunkPiece(part, measure_tokens(part), get_page(block), "\n\n")


def _cut_block(block: Block, room: int) -> Iterator[str]:
    """Split a block that is too long at its best boundaries."""
    match block:
        case Code():
            inside = room - FENCE_TOKENS
            lines = (part for line in block.text.split("\n") for part in _cut_text(line, inside, r"\s+"))
            for group in _group_parts(lines, inside):
                yield block_to_markdown(replace(block, text="\n".join(group)))
        case Table():
            yield from _cut_table(block, room)
        case Paragraph() | ListItem():
            text = block_to_markdown(block)
            sentences = _cut_text(text, room, r"(?<=[.!?。！？])\s+")
            yield from (" ".join(group) for group in _group_evenly(list(sentences), room))
        case _:
            yield from (
                " ".join(group) for group in _group_parts(_cut_text(block_to_markdown(block), room, r"\s+"), room)
            )


def _cut_table(table: Table, room: int) -> Iterator[str]:
    """Yield groups of rows, each with the header; a row that is too long is split as text."""
    head = table.header_rows()
    header = [_shift_row(cell, 0) for cell in table.cells if cell.row < head]
    rows: dict[int, list[Cell]] = {}
    for cell in table.cells:
        if cell.row >= head:
            rows.setdefault(cell.row, []).append(cell)
    fixed = measure_tokens(_render_table(table, header, head))

    def size(row: list[Cell]) -> int:
        return measure_tokens(" | ".join(cell.text for cell in row)) + 2

    taken: list[list[Cell]] = []
    tokens = fixed
    for row in [*rows.values()]:
        if taken and tokens + size(row) > room:
            yield from _render_table_part(table, header, head, taken, room)
            taken, tokens = [], fixed
        taken.append(row)
        tokens += size(row)
    if taken:
        yield from _render_table_part(table, header, head, taken, room)


def _render_table_part(
    table: Table, header: Sequence[Cell], head: int, rows: Sequence[Sequence[Cell]], room: int
) -> Iterator[str]:
    shifted = [_shift_row(cell, head + index - cell.row) for index, row in enumerate(rows) for cell in row]
    text = _render_table(table, [*header, *shifted], head + len(rows))
    if measure_tokens(text) <= room:
        yield text
        return
    yield from (" ".join(group) for group in _group_parts(_cut_text(text, room, r"\s+"), room))


def _render_table(table: Table, cells: Sequence[Cell], rows: int) -> str:
    return block_to_markdown(replace(table, cells=tuple(cells), rows=rows))


def _shift_row(cell: Cell, by: int) -> Cell:
    return replace(cell, row=cell.row + by)


def _cut_text(text: str, room: int, between: str) -> Iterator[str]:
    """Split text at a pattern, then between words, then anywhere."""
    if measure_tokens(text) <= room:
        yield text
        return
    count = measure_word if between == r"\s+" else measure_tokens
    for part in re.split(between, text):
        if count(part) <= room:
            yield part
        elif between != r"\s+":
            yield from (" ".join(group) for group in _group_parts(_cut_text(part, room, r"\s+"), room))
        else:
            # The worst case is one token per character.
            yield from (part[start : start + room] for start in range(0, len(part), room))


def _group_evenly(parts: Sequence[str], room: int) -> list[list[str]]:
    """Group parts into the fewest groups of similar length, to avoid a short last one."""
    groups = list(_group_parts(parts, room))
    share = sum(map(measure_tokens, parts)) // len(groups) if groups else room
    for less in range(share, room, max((room - share) // EVEN_ATTEMPTS, 1)):
        even = list(_group_parts(parts, less))
        if len(even) == len(groups):
            return even
    return groups


def _group_parts(parts: Iterable[str], room: int) -> Iterator[list[str]]:
    """Group as many consecutive parts as fit; the spaces between them count nothing."""
    group: list[str] = []
    tokens = 0
    for part in parts:
        needed = measure_tokens(part) if " " in part else measure_word(part)
        if group and tokens + needed > room:
            yield group
            group, tokens = [], 0
        group.append(part)
        tokens += needed
    if group:
        yield group
