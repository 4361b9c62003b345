"""Documents by their ids, put together from R2R's chunks; those of the last ones read are at hand."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions
from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.packed_document import Shelf
from refdesk.engines.base import Document, Passage
from refdesk.engines.r2r import catalogue, read
from refdesk.engines.r2r.catalogue import Known
from refdesk.engines.r2r.client import R2RClient
from refdesk.engines.r2r.local_db import Record
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.naming import is_uuid
from refdesk.engines.r2r.schemas import RemoteChunk

KEPT = 16
"""Documents that are kept put together: an agent reads several parts of one."""

KEPT_BYTES = 4 * 1024 * 1024
"""The largest document that is kept so."""

_CHUNK = re.compile(r"c(\d{1,9})")


class Library:
    """Reads documents."""

    def __init__(
        self,
        client: R2RClient,
        mirror: Mirror,
        conversions: Conversions,
        foreign: Callable[[Record, RemoteChunk], None],
    ) -> None:
        self._client = client
        self._mirror = mirror
        self._conversions = conversions
        self._foreign = foreign
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    async def find(self, tenant: TenantId, id: str) -> tuple[Record, Known] | None:
        """A document that has come in, by its id here or at R2R; another tenant's is not there."""
        record = await self._mirror.record(tenant)
        if record is None:
            return None
        slug, _, name = id.partition("/")
        own = f"{record.slug_of(slug)}/{name}" if name else id
        found = await record.run(lambda database: catalogue.find(database, own))
        if found is None and (is_uuid(id) or record.slug_of(slug) in record.uuids):
            await self._mirror.list_documents(record, [record.slug_of(slug)] if name else list(record.uuids))
            found = await record.run(lambda database: catalogue.find(database, own))
        return (record, found) if found else None

    async def read(self, record: Record, known: Known) -> Document | None:
        """A document with its text, as Markdown."""
        info = await record.run(lambda database: catalogue.info(database, known.key))
        shelf = await self.open(record, known)
        if info is None or shelf is None:
            return None
        with shelf:
            return Document(info, await to_thread.run_sync(lambda: to_markdown(shelf.document())))

    async def open(self, record: Record, known: Known) -> Shelf | None:
        """A document to be read in parts."""
        packed = self._kept.get(known.uuid)
        if packed is None:
            chunks = self._own(record, known, await self._client.chunks(known.uuid))
            if not chunks:
                return None
            packed = await read.shelve(self._conversions, chunks, known.id, known.title)
            # What was brought in from here never changes under its id at R2R; a stranger's document may.
            if chunks[0].own is not None and len(packed) <= KEPT_BYTES:
                self._keep(known.uuid, packed)
        return await to_thread.run_sync(Shelf.of, packed)

    async def window(
        self, record: Record, known: Known, chunk_id: str, before: int, after: int
    ) -> list[Passage] | None:
        """The chunks around one; None when the document has no such chunk."""
        of, _, name = chunk_id.rpartition("#")
        number = _CHUNK.fullmatch(name)
        if of != known.id or number is None or number[1].strip("0") == "":
            return None
        order = int(number[1]) - 1
        first = max(order - before, 0)
        chunks = await self._client.chunks(known.uuid, first, order + after - first + 1)
        if len(chunks) <= order - first:
            return None
        return read.passages(known.id, self._own(record, known, chunks), first + 1)

    def _own(self, record: Record, known: Known, chunks: Sequence[RemoteChunk]) -> list[RemoteChunk]:
        """The chunks, unless R2R gives some that are in no collection of the tenant's."""
        for chunk in chunks:
            if known.collection not in chunk.collections or chunk.document != known.uuid:
                self._foreign(record, chunk)
        return [c for c in chunks if known.collection in c.collections and c.document == known.uuid]

    def _keep(self, uuid: str, packed: bytes) -> None:
        self._kept[uuid] = packed
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
