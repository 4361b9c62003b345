"""Opens documents for reading in parts: converted ones by handle, the engine's by id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversion_store import HANDLE
from refdesk.documents.conversions import Conversions
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import DocumentReader
from refdesk.errors import DocumentNotFound
from refdesk.validation import nearest_name, shorten

MAX_COMPARED_IDS = 1000
"""Ids compared for a suggestion; comparing all could take seconds."""


async def build_document_not_found(
    engine: DocumentReader, tenant: TenantId, document_id: str, fallback: str
) -> DocumentNotFound:
    """Return the error to raise, with the nearest id that the tenant can read or else `fallback`."""
    nearest = nearest_name(document_id, await engine.list_document_ids(tenant, limit=MAX_COMPARED_IDS))
    hint = f"Did you mean {nearest!r}?" if nearest else fallback
    return DocumentNotFound(f"There is no document {shorten(document_id)!r}. {hint}")


class DocumentLookup:
    """Opens packed documents by handle or id."""

    def __init__(self, conversions: Conversions, engine: DocumentReader) -> None:
        self._conversions = conversions
        self._engine = engine

    @asynccontextmanager
    async def open_document(self, tenant: TenantId, doc_id: str) -> AsyncIterator[PackedDocument]:
        """Open a document by handle or id; raise DocumentNotFound, also for another tenant's."""
        packed = await self._find(tenant, doc_id)
        if packed is None:
            raise await build_document_not_found(
                self._engine, tenant, doc_id, "A handle comes from a convert tool and expires."
            )
        try:
            yield packed
        finally:
            await to_thread.run_sync(packed.close)

    async def _find(self, tenant: TenantId, doc_id: str) -> PackedDocument | None:
        if HANDLE.fullmatch(doc_id):
            return await self._conversions.open(tenant, doc_id)
        return await self._engine.open(tenant, doc_id)
