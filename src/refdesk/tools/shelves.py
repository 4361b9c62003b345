"""Any document of the desk as one that can be read in parts: converted ones by handle, the engine's by id."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversions import Conversions, File, Wanted, unheard
from refdesk.documents.scratch import scratch_file
from refdesk.documents.shelf import Shelf
from refdesk.documents.store import HANDLE
from refdesk.engines.port import Document, Engine
from refdesk.errors import DocumentNotFound
from refdesk.problems import nearest_name, shortened


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
            raise DocumentNotFound(await self._not_found(tenant, doc_id))
        try:
            yield shelf
        finally:
            await to_thread.run_sync(shelf.close)

    async def _find(self, tenant: TenantId, doc_id: str) -> Shelf | None:
        if HANDLE.fullmatch(doc_id):
            return await self._conversions.open(tenant, doc_id)
        document = await self._engine.read(tenant, doc_id)
        return await self._shelved(tenant, document) if document else None

    async def _shelved(self, tenant: TenantId, document: Document) -> Shelf | None:
        """An indexed document on a shelf; as the same text has the same handle, it is converted once."""
        async with scratch_file() as file:
            size = await to_thread.run_sync(_write, file, document.text)
            given = File(file.fileno(), _as_markdown(document.info.id), size, is_own=True)
            converted = await self._conversions.convert(tenant, given, Wanted(), unheard)
        return await self._conversions.open(tenant, converted.handle)

    async def _not_found(self, tenant: TenantId, doc_id: str) -> str:
        nearest = nearest_name(doc_id, await self._engine.document_ids(tenant, limit=1000))
        hint = f"Did you mean {nearest!r}?" if nearest else "A handle comes from a convert tool and expires."
        return f"There is no document {shortened(doc_id)!r}. {hint}"


def _write(file: IO[bytes], text: str) -> int:
    size = file.write(text.encode())
    file.flush()
    return size


def _as_markdown(id: str) -> str:
    """A name that says what an indexed text is, whatever it was indexed from."""
    name = id.rpartition("/")[2]
    return name if name.endswith(".md") else f"{name}.md"
