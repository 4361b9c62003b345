"""Documents reassembled from their chunks in R2R, with a cache of the last ones read.

Chunks ingested from here state their position in the first line; of foreign documents only the order of the chunks is
known. The text is converted once more to restore its structure.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions, unheard
from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.model import Block, Chunk, Document, Page, Paragraph, Place
from refdesk.documents.packed_document import PackedDocument, pack
from refdesk.documents.tokens import measure_tokens
from refdesk.engines import base
from refdesk.engines.base import DocumentInfo, Passage
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.catalogue import CatalogueEntry, LocalDb
from refdesk.engines.r2r.client import R2RClient
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.schemas import OwnMetadata, RemoteChunk, decode_chunk, is_uuid
from refdesk.engines.storage import records
from refdesk.engines.storage.ingest_queue import pack_text
from refdesk.engines.storage.records import parse_chunk_number
from refdesk.support.lru import BoundedDict

MAX_DOCUMENTS = 16
"""Cached documents: an agent reads several parts of one."""

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Maximum size of a cached document."""


ForeignChunkListener = Callable[[LocalDb, RemoteChunk], None]
"""Called with chunks that R2R should not have returned."""


@dataclass(eq=False, repr=False)
class R2RReader:
    """Reads documents from R2R; see `engines.base.DocumentReader`."""

    _client: R2RClient
    _mirror: Mirror
    _conversions: Conversions
    _on_foreign_chunk: ForeignChunkListener
    _cache: BoundedDict[str, bytes] = field(init=False, default_factory=lambda: BoundedDict(MAX_DOCUMENTS))

    async def find_document(self, tenant: TenantId, id: str) -> tuple[LocalDb, CatalogueEntry] | None:
        """Return an ingested document by its local id or its id in R2R, if it belongs to the tenant."""
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None:
            return None
        slug, _, name = id.partition("/")
        own = f"{local_db.resolve_slug(slug)}/{name}" if name else id
        found = await local_db.run(catalogue.find_document, own)
        if found is None and (is_uuid(id) or local_db.resolve_slug(slug) in local_db.uuids):
            await self._mirror.list_documents(local_db, [local_db.resolve_slug(slug)] if name else list(local_db.uuids))
            found = await local_db.run(catalogue.find_document, own)
        return (local_db, found) if found else None

    async def read(self, tenant: TenantId, document_id: str) -> base.Document | None:
        found = await self.find_document(tenant, document_id)
        if found is None:
            return None
        local_db, entry = found
        info = await local_db.run(records.load_info, entry.id)
        opened = await self._open(local_db, entry)
        if info is None or opened is None:
            return None
        with opened:
            return base.Document(info, await to_thread.run_sync(lambda: to_markdown(opened.document())))

    async def open(self, tenant: TenantId, document_id: str) -> PackedDocument | None:
        found = await self.find_document(tenant, document_id)
        return await self._open(*found) if found else None

    async def _open(self, local_db: LocalDb, entry: CatalogueEntry) -> PackedDocument | None:
        packed = self._cache.get(entry.uuid)
        if packed is None:
            chunks = self._drop_foreign(local_db, entry, await self._client.get_chunks(entry.uuid))
            if not chunks:
                return None
            packed = await rebuild_document(self._conversions, chunks, entry.id, entry.title)
            # Documents ingested from here never change under their R2R id; foreign ones may.
            if chunks[0].own is not None and len(packed) <= MAX_DOCUMENT_BYTES:
                self._cache[entry.uuid] = packed
        return await to_thread.run_sync(PackedDocument.of, packed)

    async def info(self, tenant: TenantId, document_id: str) -> DocumentInfo | None:
        found = await self.find_document(tenant, document_id)
        return await found[0].run(records.load_info, found[1].id) if found else None

    async def window(
        self, tenant: TenantId, document_id: str, chunk_id: str, *, before: int, after: int
    ) -> list[Passage] | None:
        found = await self.find_document(tenant, document_id)
        if found is None:
            return None
        local_db, entry = found
        number = parse_chunk_number(chunk_id, entry.id)
        if not number:
            return None
        order = number - 1
        first = max(order - before, 0)
        chunks = await self._client.get_chunks(entry.uuid, first, order + after - first + 1)
        if len(chunks) <= order - first:
            return None
        return to_passages(entry.id, self._drop_foreign(local_db, entry, chunks), first + 1)

    async def list_document_ids(
        self, tenant: TenantId, *, prefix: str = "", parts: Sequence[str] = (), limit: int = 100
    ) -> Sequence[str]:
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None:
            return []
        slugs = [slug for slug in local_db.uuids if f"{slug}/".startswith(prefix) or prefix.startswith(f"{slug}/")]
        await self._mirror.list_documents(local_db, slugs)
        return await local_db.run(records.list_document_ids, prefix, parts, limit)

    async def filter_ids(self, tenant: TenantId, ids: Collection[str]) -> frozenset[str]:
        local_db = await self._mirror.get_local_db(tenant)
        return await local_db.run(records.filter_ids, ids) if local_db else frozenset()

    def _drop_foreign(
        self, local_db: LocalDb, entry: CatalogueEntry, chunks: Sequence[RemoteChunk]
    ) -> list[RemoteChunk]:
        """Return the chunks of this document and collection, and report any others."""
        for chunk in chunks:
            if entry.collection not in chunk.collections or chunk.document != entry.uuid:
                self._on_foreign_chunk(local_db, chunk)
        return [c for c in chunks if entry.collection in c.collections and c.document == entry.uuid]


MAX_OVERLAP = 1024
"""Maximum overlap of consecutive chunks of a foreign document, in characters. R2R's default is half of that."""

MIN_OVERLAP = 20
"""Shorter matches are coincidental."""

_HEADING = re.compile(r"^(#{1,6}) +(.+?)\s*#*$", re.MULTILINE)
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1|\Z)", re.DOTALL | re.MULTILINE)


def decode_remote_chunk(number: int, remote: RemoteChunk) -> Chunk:
    """Return a chunk as it was before it was sent to R2R, without its number of tokens."""
    if remote.own is None:
        return Chunk(f"c{number}", remote.text, (), "", remote.page, remote.page, 0)
    return decode_chunk(number, remote.text)


def to_passages(id: str, chunks: Sequence[RemoteChunk], first: int) -> list[Passage]:
    """Convert consecutive chunks to passages, numbered from `first`."""
    decoded = [decode_remote_chunk(number, remote) for number, remote in enumerate(chunks, first)]
    return [Passage(f"{id}#{each.id}", each.section, each.path, each.first_page, each.text) for each in decoded]


async def rebuild_document(conversions: Conversions, chunks: Sequence[RemoteChunk], name: str, title: str) -> bytes:
    """Return a packed document whose chunks are those in R2R."""
    is_ours = bool(chunks) and chunks[0].own is not None
    decoded = [decode_remote_chunk(number, remote) for number, remote in enumerate(chunks, 1)]
    marker = f"refdesk-{secrets.token_hex(8)}"
    markdown = "\n\n".join(_mark_chunks(decoded if is_ours else _strip_overlaps(decoded), marker))
    packed = await pack_text(conversions, "document.md", markdown.encode("utf-8", "replace"), unheard, is_own=True)
    own = (chunks[0].own if chunks else None) or OwnMetadata(name=name)
    return await to_thread.run_sync(_add_pages, packed, decoded, marker, own, name, title)


def _mark_chunks(chunks: Iterable[Chunk], marker: str) -> Iterator[str]:
    """Yield the text, with a marker paragraph and missing headings before each chunk.

    A chunk's text omits the heading of the section it starts in.
    """
    opened, section = list[str](), ""
    for number, chunk in enumerate(chunks):
        yield f"{marker}-{number}"
        titles = {_strip_markup(title) for _, title in _HEADING.findall(_FENCED.sub("", chunk.text))}
        path = list(chunk.path)
        while path and _strip_markup(path[-1]) in titles:
            path.pop()
        both = enumerate(zip(path, opened, strict=False))
        shared = next((level for level, (ours, theirs) in both if ours != theirs), min(len(path), len(opened)))
        if shared and shared == len(path) == len(chunk.path) == len(opened) and chunk.section != section:
            shared -= 1  # another section of the same name
        yield from (f"{'#' * min(level, 6)} {title}" for level, title in enumerate(path, 1) if level > shared)
        opened, section = list(chunk.path), chunk.section
        yield chunk.text


def _strip_markup(title: str) -> str:
    return re.sub(r"\\(?=\W)|[*_`]", "", title).strip()


def _strip_overlaps(chunks: Sequence[Chunk]) -> Iterator[Chunk]:
    """Remove text repeated from the end of the previous chunk."""
    before = ""
    for chunk in chunks:
        longest = min(len(before), len(chunk.text), MAX_OVERLAP)
        overlap = next((n for n in range(longest, MIN_OVERLAP, -1) if before.endswith(chunk.text[:n])), 0)
        yield replace(chunk, text=chunk.text[overlap:])
        before = chunk.text


def _add_pages(packed: bytes, chunks: Sequence[Chunk], marker: str, own: OwnMetadata, name: str, title: str) -> bytes:
    """Return the converted document with page numbers, and with R2R's chunks instead of its own."""
    with PackedDocument.of(packed) as opened:
        document = opened.document()
    # Estimated pages are estimated again.
    last = 0 if own.page_kind == "estimated" else max((chunk.last_page or 0 for chunk in chunks), default=0)
    document_with_pages = Document(
        title=own.title or title or document.title,
        blocks=tuple(_place_blocks(document.blocks, chunks, marker, has_pages=last > 0)),
        pages=tuple(map(Page, range(1, last + 1))),
        page_kind="page" if own.page_kind == "estimated" else own.page_kind,
        name=name,
        media_type=own.media_type,
        digest=own.digest,
    )
    pieces = [replace(chunk, tokens=measure_tokens(chunk.text)) for chunk in chunks]
    return pack(document_with_pages, pieces=pieces)


def _place_blocks(blocks: Sequence[Block], chunks: Sequence[Chunk], marker: str, *, has_pages: bool) -> Iterator[Block]:
    page: int | None = None
    for block in blocks:
        if isinstance(block, Paragraph) and block.text.startswith(f"{marker}-"):
            page = chunks[int(block.text.rpartition("-")[2])].first_page
        else:
            yield replace(block, place=Place(page) if page and has_pages else None)
