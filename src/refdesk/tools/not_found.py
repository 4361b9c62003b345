"""Error for unknown documents."""

from __future__ import annotations

from refdesk.calls import TenantId
from refdesk.engines.base import DocumentReader
from refdesk.errors import DocumentNotFound
from refdesk.validation import nearest_name, shortened

MAX_COMPARED_IDS = 1000
"""Ids compared for a suggestion; comparing all could take seconds."""


async def build_document_not_found(
    engine: DocumentReader, tenant: TenantId, document_id: str, fallback: str
) -> DocumentNotFound:
    """Return the error to raise, with the nearest id that the tenant can read or else `fallback`."""
    nearest = nearest_name(document_id, await engine.list_document_ids(tenant, limit=MAX_COMPARED_IDS))
    hint = f"Did you mean {nearest!r}?" if nearest else fallback
    return DocumentNotFound(f"There is no document {shortened(document_id)!r}. {hint}")
