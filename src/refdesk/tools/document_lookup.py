"""Any document of the desk as one that can be read in parts: converted ones by handle, the engine's by id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversion_store import HANDLE
from refdesk.documents.conversions import Conversions
from refdesk.documents.packed_document import Shelf
from refdesk.engines.base import Engine
from refdesk.tools.not_found import no_document


class Shelves:
    """Opens documents for reading."""

    def __init__(self, conversions: Conversions, engine: Engine) -> None:
        self._conversions = conversions
        self._engine = engine

    @asynccontextmanager
    async def reading(self, tenant: TenantId, doc_id: str) -> AsyncIterator[Shelf]:
        """A document by its handle or id; another tenant's is not found."""
        shelf = await self._find(tenant, doc_id)
        if shelf is None:
            raise await no_document(self._engine, tenant, doc_id, "A handle comes from a convert tool and expires.")
        try:
            yield shelf
        finally:
            await to_thread.run_sync(shelf.close)

    async def _find(self, tenant: TenantId, doc_id: str) -> Shelf | None:
        if HANDLE.fullmatch(doc_id):
            return await self._conversions.open(tenant, doc_id)
        return await self._engine.open(tenant, doc_id)
