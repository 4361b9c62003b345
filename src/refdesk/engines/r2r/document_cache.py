"""Documents reassembled from R2R's chunks, with a cache of the last ones read."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions
from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import Document, Passage
from refdesk.engines.r2r import catalogue, read
from refdesk.engines.r2r.catalogue import CatalogueEntry
from refdesk.engines.r2r.client import R2RClient
from refdesk.engines.r2r.local_db import LocalDb
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.naming import is_uuid
from refdesk.engines.r2r.schemas import RemoteChunk

MAX_DOCUMENTS = 16
"""Cached documents: an agent reads several parts of one."""

MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
"""Maximum size of a cached document."""

_CHUNK = re.compile(r"c(\d{1,9})")


class DocumentCache:
    """Reads documents from R2R."""

    def __init__(
        self,
        client: R2RClient,
        mirror: Mirror,
        conversions: Conversions,
        on_foreign_chunk: Callable[[LocalDb, RemoteChunk], None],
    ) -> None:
        self._client = client
        self._mirror = mirror
        self._conversions = conversions
        self._on_foreign_chunk = on_foreign_chunk
        self._cache: OrderedDict[str, bytes] = OrderedDict()

    async def find_document(self, tenant: TenantId, id: str) -> tuple[LocalDb, CatalogueEntry] | None:
        """Return an ingested document by its local id or its id in R2R, if it belongs to the tenant."""
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None:
            return None
        slug, _, name = id.partition("/")
        own = f"{local_db.resolve_slug(slug)}/{name}" if name else id
        found = await local_db.run(lambda database: catalogue.find_document(database, own))
        if found is None and (is_uuid(id) or local_db.resolve_slug(slug) in local_db.uuids):
            await self._mirror.list_documents(local_db, [local_db.resolve_slug(slug)] if name else list(local_db.uuids))
            found = await local_db.run(lambda database: catalogue.find_document(database, own))
        return (local_db, found) if found else None

    async def read(self, local_db: LocalDb, entry: CatalogueEntry) -> Document | None:
        """Return a document with its text as Markdown."""
        info = await local_db.run(lambda database: catalogue.load_info(database, entry.key))
        opened = await self.open(local_db, entry)
        if info is None or opened is None:
            return None
        with opened:
            return Document(info, await to_thread.run_sync(lambda: to_markdown(opened.document())))

    async def open(self, local_db: LocalDb, entry: CatalogueEntry) -> PackedDocument | None:
        """Open a document to be read in parts."""
        packed = self._cache.get(entry.uuid)
        if packed is None:
            chunks = self._drop_foreign(local_db, entry, await self._client.get_chunks(entry.uuid))
            if not chunks:
                return None
            packed = await read.rebuild_document(self._conversions, chunks, entry.id, entry.title)
            # Documents ingested from here never change under their R2R id; foreign ones may.
            if chunks[0].own is not None and len(packed) <= MAX_DOCUMENT_BYTES:
                self._cache[entry.uuid] = packed
                if len(self._cache) > MAX_DOCUMENTS:
                    self._cache.popitem(last=False)
        return await to_thread.run_sync(PackedDocument.of, packed)

    async def window(
        self, local_db: LocalDb, entry: CatalogueEntry, chunk_id: str, before: int, after: int
    ) -> list[Passage] | None:
        """Return the chunks around one, or None if the document has no such chunk."""
        owner, _, name = chunk_id.rpartition("#")
        number = _CHUNK.fullmatch(name)
        if owner != entry.id or number is None or number[1].strip("0") == "":
            return None
        order = int(number[1]) - 1
        first = max(order - before, 0)
        chunks = await self._client.get_chunks(entry.uuid, first, order + after - first + 1)
        if len(chunks) <= order - first:
            return None
        return read.to_passages(entry.id, self._drop_foreign(local_db, entry, chunks), first + 1)

    def _drop_foreign(
        self, local_db: LocalDb, entry: CatalogueEntry, chunks: Sequence[RemoteChunk]
    ) -> list[RemoteChunk]:
        """Return the chunks of this document and collection, and report any others."""
        for chunk in chunks:
            if entry.collection not in chunk.collections or chunk.document != entry.uuid:
                self._on_foreign_chunk(local_db, chunk)
        return [c for c in chunks if entry.collection in c.collections and c.document == entry.uuid]
