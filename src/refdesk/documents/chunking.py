"""Split a document into chunks that can be searched and read by themselves.

A chunk is a whole thought. It ends at a heading of its section's level or a higher one, and never after what introduces
the next block: a heading, a term, the title of a note, or a line that ends in a colon. A section with hardly any text
continues into its first subsection. A term whose definition has some length has chunks of its own; shorter ones share a
chunk of their section. Tables and code stay whole if they fit; otherwise they are split between rows or lines, and each
part of a table repeats its header. Parts have similar lengths. Sizes are in tokens of the embedding model.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest

from refdesk.documents.export.markdown import block_to_markdown
from refdesk.documents.model import (
    MAX_HEADING_LEVEL,
    Block,
    Cell,
    Chunk,
    Code,
    Heading,
    ListItem,
    Paragraph,
    Section,
    Table,
    Term,
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

MIN_TERM_TOKENS = 100
"""A term with a shorter definition shares a chunk with its neighbours."""

MIN_JOINT_TOKENS = 80
"""A shorter chunk is joined to a neighbour of its section."""

MAX_LEAD_TOKENS = 60
"""Of a longer paragraph that ends in a colon, only the last sentence stays with what it introduces."""

EVEN_ATTEMPTS = 8
"""Lengths tried between an even share and a full chunk until no sentence is left over."""

FENCE_TOKENS = 12
"""Tokens reserved for the fences around code and its language."""

MAJORITY = 0.6
"""Share of a chunk's tokens from which it belongs to a term."""

_COLONS = (":", "：")
_LEAD_END = re.compile(r"(?:[:：]|\b(?:e\.g\.|i\.e\.|as follows\.|such as|for (?:example|instance)),?)$", re.IGNORECASE)
LONGEST_LEAD_END = 16
"""Characters inspected to see whether a text introduces the next block."""

_SENTENCE_ENDS = re.compile(r"(?<!\\)(`+)[^`].{0,300}?\1|(?P<end>(?<=[.!?])\s+|(?<=[。！？])\s*)", re.DOTALL)
"""Sentence ends, and code spans, which are skipped."""

_ABBREVIATION = re.compile(
    r"(?:^|[\s(\[])(?:e\.\s?g|i\.\s?e|etc|vs|cf|al|approx|incl|resp|viz|dr|mr|mrs|ms|prof|st|no|nos|fig|sec|vol|pp?"
    r"|[a-z])\.$",
    re.IGNORECASE,
)
LONGEST_ABBREVIATION = 10
"""Characters inspected before a sentence end."""


@dataclass(slots=True)
class ChunkPiece:
    """A block, or as much of it as fits a chunk."""

    text: str
    tokens: int
    page: int | None
    joiner: str
    """Separator from the previous piece."""
    sections: tuple[Section, ...]
    """The section that it is in and the terms in that section, outermost first."""
    is_open: bool = False
    """Whether it introduces the next piece."""
    is_item: bool = False
    """Whether it is a list item."""


Group = list[ChunkPiece]
"""Pieces of one chunk."""


def chunks(blocks: Sequence[Block], *, max_tokens: int = MAX_TOKENS) -> list[Chunk]:
    """Split blocks into chunks in reading order, with ids from c1."""
    chunker = _Chunker(blocks, max_tokens)
    return [chunker.build(f"c{number}", group) for number, group in enumerate(chunker.split(), 1)]


class _Chunker:
    """Splits the sections of one document."""

    def __init__(self, blocks: Sequence[Block], max_tokens: int) -> None:
        self._blocks = blocks
        self._max_tokens = max_tokens
        self._rooms: dict[str, int] = {}
        sections = list_sections(blocks)
        self._headings = [section for section in sections if section.level <= MAX_HEADING_LEVEL]
        self._terms = {section.start: section for section in sections if section.level > MAX_HEADING_LEVEL}

    def split(self) -> Iterator[Group]:
        """Yield the pieces of each chunk. What introduces a subsection is carried over to it."""
        carried: Group = []
        for section, following in zip_longest(self._headings, self._headings[1:]):
            groups = self._split_heading(section, following.start if following else len(self._blocks), carried)
            carried = _carry(groups, following) if following else []
            yield from filter(None, groups)

    def build(self, id: str, group: Group) -> Chunk:
        first, *rest = group
        text = first.text + "".join(piece.joiner + piece.text for piece in rest)
        pages = [piece.page for piece in group if piece.page is not None]
        first_page, last_page = (min(pages), max(pages)) if pages else (None, None)
        section = self._choose_section(group)
        return Chunk(id, text, section.path, section.id, first_page, last_page, _measure(group), section.anchors)

    def _choose_section(self, group: Group) -> Section:
        """Return the section with the most tokens, or the innermost term with most of those tokens."""
        total, sections = _measure(group), group[0].sections
        if total <= self._get_room(sections[-1]) and all(piece.sections is sections for piece in group):
            return sections[-1]
        shares: Counter[str] = Counter()
        for piece in group:
            shares[piece.sections[0].id] += piece.tokens
        heading = max(shares, key=shares.__getitem__)
        own = [piece for piece in group if piece.sections[0].id == heading]
        chosen = own[0].sections[0]
        for depth in range(1, max(len(piece.sections) for piece in own)):
            terms = Counter[Section]()
            for piece in own:
                for term in piece.sections[depth : depth + 1]:
                    terms[term] += piece.tokens
            ((term, tokens),) = terms.most_common(1)
            if tokens < MAJORITY * total or total > self._get_room(term):
                break
            chosen = term
        return chosen

    def _get_room(self, section: Section) -> int:
        """Return the tokens of a chunk that are left by the heading path."""
        room = self._rooms.get(section.id)
        if room is None:
            room = self._max_tokens - min(
                measure_tokens(" ".join(section.path)), MAX_PATH_TOKENS, self._max_tokens // 2
            )
            self._rooms[section.id] = room
        return room

    def _split_heading(self, section: Section, end: int, carried: Group) -> list[Group]:
        """Split the own text of a section. Its heading is in the path, unless the chunk begins in another section."""
        start, lead = section.start, list(carried)
        heading = self._blocks[start]
        if is_section_heading(heading):
            start += 1
            if carried or start == end:
                lead += self._split_block(heading, (section,), lead)
        return self._split_range(start, end, (section,), lead)

    def _split_range(self, start: int, end: int, sections: tuple[Section, ...], lead: Group) -> list[Group]:
        """Split some blocks of a section; a term whose definition has some length gets chunks of its own."""
        room = min(self._get_room(section) for section in (sections[-1], *(piece.sections[-1] for piece in lead)))
        groups: list[Group] = []
        run, index = lead, start
        while index < end:
            term = self._terms.get(index)
            if term is None:
                following = self._blocks[index + 1] if index + 1 < end else None
                run += self._split_block(self._blocks[index], sections, run, following)
                index += 1
                continue
            parts = self._split_term(term, sections, _take_lead(run))
            if len(parts) == 1 and _measure(parts[0]) < MIN_TERM_TOKENS:
                for piece in parts[0][:-1]:
                    piece.is_open = True
                run += parts[0]
            else:
                groups += [*_group_pieces(run, room), *parts]
                run = _take_lead(groups[-1])
            index = term.end
        return _join_short([*filter(None, groups), *_group_pieces(run, room)], room)

    def _split_term(self, term: Section, above: tuple[Section, ...], lead: Group) -> list[Group]:
        sections = (*above, term)
        lead += self._split_block(self._blocks[term.start], sections, lead)
        return self._split_range(term.start + 1, term.end, sections, lead)

    def _split_block(
        self, block: Block, sections: tuple[Section, ...], before: Group, following: Block | None = None
    ) -> Group:
        """Return the pieces of a block; the first one leaves room for what introduces it."""
        text = block_to_markdown(block)
        if not text:
            return []
        room, lead = self._get_room(sections[-1]), _measure_lead(before)
        # Text is joined again after the first part, but code and tables stay in parts.
        if lead <= (room // 2 if isinstance(block, Code | Table) else room - MIN_TOKENS):
            room -= lead
        tokens, page, is_item = measure_tokens(text), get_page(block), isinstance(block, ListItem)
        has_more = isinstance(block, ListItem) and block.has_more
        max_lead = room // 2 if has_more else MAX_LEAD_TOKENS
        is_open = (has_more and tokens <= max_lead) or _is_lead(block, following)
        joiner = "\n" if is_item and before and before[-1].is_item else "\n\n"
        if tokens <= room and not (is_open and tokens > max_lead):
            return [ChunkPiece(text, tokens, page, joiner, sections, is_open, is_item)]
        parts = list(_cut_block(block, room)) if tokens > room else [text]
        if is_open and isinstance(block, Paragraph | ListItem):
            parts[-1:] = _split_off_lead(parts[-1])
        between = " " if isinstance(block, Paragraph | ListItem) else "\n\n"
        pieces = [ChunkPiece(part, measure_tokens(part), page, between, sections, is_item=is_item) for part in parts]
        pieces[0].joiner = joiner
        pieces[-1].is_open = is_open
        return pieces


def _is_lead(block: Block, following: Block | None) -> bool:
    """Whether a block introduces the following one: a heading, a term, a title, a file name above its code, or text
    that ends in a colon or a phrase such as "for example"."""
    match block:
        case Heading() | Term():
            return True
        case Paragraph() | ListItem():
            text = block.text.rstrip()
            kinds = ("strong", "code") if isinstance(following, Code) else ("strong",)
            whole = (span.kind in kinds and span.end - span.start >= len(text) for span in block.spans[:2])
            is_title = isinstance(block, Paragraph) and text[-1:] not in ".!。！" and any(whole)
            return is_title or _LEAD_END.search(text[-LONGEST_LEAD_END:]) is not None
        case _:
            return False


def _carry(groups: list[Group], following: Section) -> Group:
    """Take what belongs to the following section: a section with hardly any text above it, or its lead-in."""
    pieces = [piece for group in groups for piece in group]
    first = pieces[0].sections[0].level if pieces else 0
    is_below = following.level > first
    if all(piece.is_open for piece in pieces) or (is_below and first > 0 and _measure(pieces) < MIN_TOKENS):
        groups.clear()
        return pieces
    return _take_lead(groups[-1]) if is_below else []


def _take_lead(run: Group) -> Group:
    """Remove and return the pieces at the end that introduce what follows."""
    start = len(run)
    while start and run[start - 1].is_open:
        start -= 1
    lead = run[start:]
    del run[start:]
    return lead


def _measure(pieces: Sequence[ChunkPiece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _measure_lead(run: Group) -> int:
    return _measure(list(takewhile(lambda piece: piece.is_open, reversed(run))))


def _group_pieces(run: Group, room: int) -> list[Group]:
    """Group pieces into chunks of similar length, each with what introduces it."""
    atoms: list[Group] = []
    is_open, tokens = False, 0
    for piece in run:
        if is_open and tokens + piece.tokens <= room:
            atoms[-1].append(piece)
            tokens += piece.tokens
        else:
            atoms.append([piece])
            tokens = piece.tokens
        is_open = piece.is_open
    sizes = [_measure(atom) for atom in atoms]
    return [[piece for atom in atoms[part] for piece in atom] for part in _group_evenly(sizes, room)]


def _join_short(groups: Sequence[Group], room: int) -> list[Group]:
    joined: list[Group] = []
    last = room
    for group in groups:
        tokens = _measure(group)
        if joined and min(last, tokens) < MIN_JOINT_TOKENS and last + tokens <= room:
            joined[-1] += group
            last += tokens
        else:
            joined.append(group)
            last = tokens
    return joined


def _cut_block(block: Block, room: int) -> Iterator[str]:
    """Split a block that is too long at its best boundaries."""
    match block:
        case Code():
            lines = [part for line in block.text.split("\n") for part in _cut_words(line, room - FENCE_TOKENS)]
            for part in _group_evenly([measure_tokens(line) for line in lines], room - FENCE_TOKENS):
                yield block_to_markdown(replace(block, text="\n".join(lines[part])))
        case Table():
            yield from _cut_table(block, room)
        case Paragraph() | ListItem():
            yield from _cut_sentences(block_to_markdown(block), room)
        case _:
            yield from _cut_words(block_to_markdown(block), room)


def _cut_table(table: Table, room: int) -> Iterator[str]:
    """Yield groups of rows, each with the caption and the header; a row that is too long is split itself."""
    head = table.header_rows()
    header = [cell for cell in table.cells if cell.row < head]
    fixed = measure_tokens(block_to_markdown(replace(table, cells=tuple(header), rows=head)))
    if fixed > room // 2:
        yield from _cut_sentences(table.caption, room) if table.caption else ()
        table, head, header, fixed = replace(table, caption=""), 0, [], 0
    by_row: dict[int, list[Cell]] = {}
    for cell in table.cells:
        if cell.row >= head:
            by_row.setdefault(cell.row, []).append(cell)
    rows = [part for row in by_row.values() for part in _cut_row(row, room - fixed)]
    for group in _group_evenly([_measure_row(row) for row in rows], room - fixed):
        cells = [replace(cell, row=head + index) for index, row in enumerate(rows[group]) for cell in row]
        text = block_to_markdown(replace(table, cells=(*header, *cells), rows=head + len(rows[group])))
        yield from [text] if measure_tokens(text) <= room else _cut_words(text, room)


def _measure_row(row: Sequence[Cell]) -> int:
    return measure_tokens(" | ".join(cell.text for cell in row)) + 2


def _cut_row(row: list[Cell], room: int) -> Iterator[list[Cell]]:
    """Split the longest cell of a row that is too long; the others are repeated if they are short."""
    if _measure_row(row) <= room:
        yield row
        return
    longest = max(row, key=lambda cell: len(cell.text))
    others = [cell for cell in row if cell is not longest]
    left = room - _measure_row(others) - 2
    if left < room // 2:
        yield row
        return
    for text in _cut_sentences(longest.text, left):
        yield [replace(cell, text=text) if cell is longest else cell for cell in row]


def _cut_sentences(text: str, room: int) -> Iterator[str]:
    """Split text between sentences into parts of similar length; a sentence that is too long is split itself."""
    parts = [part for sentence in _split_sentences(text) for part in _cut_words(sentence, room)]
    yield from (" ".join(parts[part]) for part in _group_evenly([measure_tokens(part) for part in parts], room))


def _split_sentences(text: str) -> list[str]:
    """Return the sentences; no sentence ends after an abbreviation or an initial, or within code."""
    sentences: list[str] = []
    start = 0
    for match in _SENTENCE_ENDS.finditer(text):
        end = match.start()
        if match["end"] is None or _ABBREVIATION.search(text, max(start, end - LONGEST_ABBREVIATION), end):
            continue
        if end > start and match.end() < len(text):
            sentences.append(text[start:end])
            start = match.end()
    return [*sentences, text[start:]]


def _split_off_lead(text: str) -> list[str]:
    """Split the last sentence off, or its last words if it is long."""
    *others, last = _split_sentences(text)
    if measure_tokens(last) > MAX_LEAD_TOKENS:
        *first, last = _cut_words(last, MAX_LEAD_TOKENS)
        others += first
    return [" ".join(others), last] if others else [last]


def _cut_words(text: str, room: int) -> list[str]:
    """Split text that is too long between words into parts of similar length, and words that are too long anywhere."""
    if measure_tokens(text) <= room:
        return [text]
    words: list[str] = []
    for word in text.split():
        if measure_word(word) > room:
            # The worst case is one token per character.
            words += (word[start : start + room] for start in range(0, len(word), room))
        elif words and words[-1].endswith(_COLONS) and measure_tokens(words[-1]) + measure_word(word) <= room:
            words[-1] += f" {word}"
        else:
            words.append(word)
    return [" ".join(words[part]) for part in _group_evenly([measure_tokens(word) for word in words], room)]


def _group_evenly(sizes: Sequence[int], room: int) -> list[slice]:
    """Group consecutive sizes into the fewest groups that fit, of similar size, to avoid a short last one."""
    groups = _group_sizes(sizes, room)
    if len(groups) < 2:
        return groups
    share = sum(sizes) // len(groups)
    for less in range(share, room, max((room - share) // EVEN_ATTEMPTS, 1)):
        even = _group_sizes(sizes, less)
        if len(even) == len(groups):
            return even
    return groups


def _group_sizes(sizes: Sequence[int], room: int) -> list[slice]:
    groups: list[slice] = []
    start = tokens = 0
    for index, size in enumerate(sizes):
        if index > start and tokens + size > room:
            groups.append(slice(start, index))
            start, tokens = index, 0
        tokens += size
    if sizes:
        groups.append(slice(start, len(sizes)))
    return groups
