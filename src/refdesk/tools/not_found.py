"""What is said of a document that is not there."""

from __future__ import annotations

from refdesk.calls import TenantId
from refdesk.engines.base import Engine
from refdesk.errors import DocumentNotFound
from refdesk.validation import nearest_name, shortened

COMPARED = 1000
"""Documents among which the nearest id is looked for; to compare them all could take seconds."""


async def no_document(engine: Engine, tenant: TenantId, document_id: str, otherwise: str) -> DocumentNotFound:
    """To be raised: with the nearest id that the tenant can read, or else the sentence that says what to do."""
    nearest = nearest_name(document_id, await engine.document_ids(tenant, limit=COMPARED))
    hint = f"Did you mean {nearest!r}?" if nearest else otherwise
    return DocumentNotFound(f"There is no document {shortened(document_id)!r}. {hint}")
