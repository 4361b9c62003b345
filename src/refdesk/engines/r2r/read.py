"""A document put together again from its chunks at R2R, to be read whole or in parts.

Of what was brought in from here, every chunk says in its first line where it stands; of what others brought in, only
the order of the chunks is known. The text goes through a conversion once more, so that it is read as what it is.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any

from anyio import to_thread

from refdesk.documents.conversions import Conversions, File, unheard
from refdesk.documents.model import Block, Chunk, Document, Page, Paragraph, Place
from refdesk.documents.packed_document import Shelf, pack
from refdesk.documents.scratch import scratch_file
from refdesk.documents.tokens import count_tokens
from refdesk.engines.base import Passage
from refdesk.engines.r2r.naming import Spot, read_chunk
from refdesk.engines.r2r.schemas import RemoteChunk

MAX_OVERLAP = 1024
"""Characters that two chunks of a stranger's document may share; R2R's own setting is half of that."""

MIN_OVERLAP = 20
"""What is shorter than this is the same by chance."""

_HEADING = re.compile(r"^(#{1,6}) +(.+?)\s*#*$", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Piece:
    """A chunk of a document: where it stands, and what it says."""

    spot: Spot
    text: str


def piece_of(chunk: RemoteChunk) -> Piece:
    """A chunk as it was before it went to R2R."""
    if chunk.own is None:
        return Piece(Spot("", first_page=chunk.page, last_page=chunk.page), chunk.text)
    return Piece(*read_chunk(chunk.text))


def passages(id: str, chunks: Sequence[RemoteChunk], first: int) -> list[Passage]:
    """Chunks in their places; the first of them is the one of that number."""
    pieces = enumerate(map(piece_of, chunks), first)
    return [Passage(f"{id}#c{n}", p.spot.section, p.spot.path, p.spot.first_page, p.text) for n, p in pieces]


async def shelve(conversions: Conversions, chunks: Sequence[RemoteChunk], name: str, title: str) -> bytes:
    """A packed document, whose chunks are those at R2R."""
    is_ours = bool(chunks) and chunks[0].own is not None
    pieces = [piece_of(chunk) for chunk in chunks]
    marker = f"refdesk-{secrets.token_hex(8)}"
    markdown = "\n\n".join(_marked(pieces if is_ours else _without_overlaps(pieces), marker))
    async with scratch_file() as file:
        body = markdown.encode("utf-8", "replace")
        await to_thread.run_sync(_write, file, body)
        packed = await conversions.pack(File(file.fileno(), "document.md", len(body), is_own=True), unheard)
    own: Mapping[str, Any] = (chunks[0].own or {}) if chunks else {}
    return await to_thread.run_sync(_with_places, packed, pieces, marker, own, name, title)


def _marked(pieces: Iterable[Piece], marker: str) -> Iterator[str]:
    """The text, and before each chunk a paragraph that says which one it is."""
    outline = _Outline()
    for number, piece in enumerate(pieces):
        yield f"{marker}-{number}"
        yield from outline.headings_above(piece)
        yield piece.text


class _Outline:
    """Which headings stand above a chunk's text: a chunk leaves out that of the section which it begins in."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._section = ""

    def headings_above(self, piece: Piece) -> list[str]:
        """The headings to be written before a chunk."""
        within = [(len(marks), title) for marks, title in _HEADING.findall(_FENCED.sub("", piece.text))]
        titles = [_plain(title) for _, title in within]
        path = list(piece.spot.path)
        while path and _plain(path[-1]) in titles:
            path.pop()
        shared = self._shared_with(path, piece.spot)
        written = [f"{'#' * min(level, 6)} {title}" for level, title in enumerate(path, 1) if level > shared]
        self._open = [*path, *(title for _, title in within)] if not titles else list(piece.spot.path)
        self._section = piece.spot.section
        return written

    def _shared_with(self, path: Sequence[str], spot: Spot) -> int:
        """How many of a path's headings are open already."""
        shared = 0
        while shared < min(len(path), len(self._open)) and path[shared] == self._open[shared]:
            shared += 1
        is_next_of_same_name = shared == len(path) == len(spot.path) and shared and spot.section != self._section
        return shared - 1 if is_next_of_same_name and len(self._open) == shared else shared


def _plain(title: str) -> str:
    return re.sub(r"\\(?=\W)|[*_`]", "", title).strip()


def _without_overlaps(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Chunks that repeat the end of the one before them, without what is repeated."""
    before = ""
    for piece in pieces:
        yield replace(piece, text=piece.text[_overlap(before, piece.text) :])
        before = piece.text


def _overlap(before: str, after: str) -> int:
    longest = min(len(before), len(after), MAX_OVERLAP)
    return next((n for n in range(longest, MIN_OVERLAP, -1) if before.endswith(after[:n])), 0)


def _with_places(
    packed: bytes, pieces: Sequence[Piece], marker: str, own: Mapping[str, Any], name: str, title: str
) -> bytes:
    """The converted text with the pages that its chunks are on, and with R2R's chunks in place of its own."""
    with Shelf.of(packed) as shelf:
        document = shelf.document()
    kind = own.get("page_kind")
    # Pages that were counted out by length are counted out anew.
    last = 0 if kind == "estimated" else max((piece.spot.last_page or 0 for piece in pieces), default=0)
    placed = Document(
        title=str(own.get("title") or title or document.title),
        blocks=tuple(_placed(document.blocks, pieces, marker, has_pages=last > 0)),
        pages=tuple(map(Page, range(1, last + 1))),
        page_kind=kind if kind in ("page", "slide", "sheet") else "page",
        name=name,
        media_type=str(own.get("media_type") or ""),
        digest=str(own.get("digest") or ""),
    )
    return pack(placed, pieces=[_chunk(number, piece) for number, piece in enumerate(pieces, 1)])


def _placed(blocks: Sequence[Block], pieces: Sequence[Piece], marker: str, *, has_pages: bool) -> Iterator[Block]:
    page: int | None = None
    for block in blocks:
        if isinstance(block, Paragraph) and block.text.startswith(f"{marker}-"):
            page = pieces[int(block.text.rpartition("-")[2])].spot.first_page
        else:
            yield replace(block, place=Place(page) if page and has_pages else None)


def _chunk(number: int, piece: Piece) -> Chunk:
    """A piece as a chunk, under the number that searches find it by."""
    spot, text = piece.spot, piece.text
    return Chunk(
        id=f"c{number}",
        text=text,
        path=spot.path,
        section=spot.section,
        first_page=spot.first_page,
        last_page=spot.last_page,
        tokens=count_tokens(text),
        anchors=spot.anchors,
    )


def _write(file: IO[bytes], body: bytes) -> None:
    file.write(body)
    file.flush()
