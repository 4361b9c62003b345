"""Opens documents for reading in parts: converted ones by handle, the engine's by id."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from heapq import nsmallest
from urllib.parse import unquote

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.conversion_store import HANDLE
from refdesk.documents.conversions import Conversions
from refdesk.documents.packed_document import PackedDocument
from refdesk.engines.base import DocumentReader
from refdesk.engines.storage.source_rows import derive_name, make_document_id
from refdesk.errors import CannotFetch, DocumentNotFound
from refdesk.support.edit_distance import MAX_LENGTH, find_similar, split_evenly
from refdesk.tools.links import resolve_links
from refdesk.validation import shorten

TECHDOC = "techdoc://"
_DOCUMENT_SCHEMES = (TECHDOC, "r2r://document/")

MAX_SUGGESTIONS = 3

NO_LIMIT = 10_000_000
"""More ids than any tenant has."""


async def build_document_not_found(
    engine: DocumentReader, tenant: TenantId, document_id: str, fallback: str
) -> DocumentNotFound:
    """Return the error to raise, with the nearest ids that the tenant can read or else `fallback`."""
    hint = format_suggestions(await _suggest_ids(engine, tenant, document_id)) or fallback
    return DocumentNotFound(f"There is no document {shorten(document_id)!r}. {hint}")


async def _suggest_ids(engine: DocumentReader, tenant: TenantId, wanted: str) -> list[str]:
    """Return ids with the same file name in another folder, or else with similar file names."""
    path = wanted.partition("#")[0].partition("?")[0].rstrip("/")
    stem = posixpath.splitext(posixpath.basename(path))[0]
    if not 0 < len(stem) <= MAX_LENGTH:
        return []
    ids = await engine.list_document_ids(tenant, parts=split_evenly(stem), limit=NO_LIMIT)
    return await to_thread.run_sync(rank_ids, path, ids)


def rank_ids(path: str, ids: Sequence[str]) -> list[str]:
    """Return the ids with the same file name as a path, or else a similar one, preferably of its collection."""
    names = [posixpath.basename(id) for id in ids]
    name = posixpath.basename(path)
    found = [(0, index) for index, other in enumerate(names) if other.lower() == name.lower()]
    if not found:
        found = find_similar(posixpath.splitext(name)[0], [posixpath.splitext(other)[0] for other in names])
        collection = path.partition("/")[0] + "/"
        found = [one for one in found if ids[one[1]].startswith(collection)] or found
    # Of equal names those are nearer whose ids begin and end more like the path.
    near = (
        (distance, -_count_shared(path, ids[index]), ids[index])
        for distance, index in found
        if distance <= found[0][0] + 1
    )
    return [id for *_, id in nsmallest(MAX_SUGGESTIONS, near)]


def _count_shared(one: str, two: str) -> int:
    return len(posixpath.commonprefix([one, two])) + len(posixpath.commonprefix([one[::-1], two[::-1]]))


def format_suggestions(names: Sequence[str]) -> str:
    """Return a question that names the suggestions, or an empty string if there are none."""
    *others, last = map(repr, names) if names else [""]
    return f"Did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else ""


async def resolve_reference(engine: DocumentReader, tenant: TenantId, reference: str) -> tuple[str, str]:
    """Return document id and fragment of a reference. What isn't known is returned as it is."""
    address, _, fragment = reference.partition("#")
    fragment = unquote(fragment)
    if address.startswith(("http://", "https://")):
        return await _find_by_url(engine, tenant, address) or address, fragment
    for scheme in _DOCUMENT_SCHEMES:
        if address.startswith(scheme):
            address = unquote(address.removeprefix(scheme).partition("?")[0])
    return posixpath.normpath(address) if "./" in address else address, fragment


async def _find_by_url(engine: DocumentReader, tenant: TenantId, url: str) -> str | None:
    """Return the id of the document fetched from a URL, in any collection."""
    try:
        path = make_document_id("", derive_name(url))
    except CannotFetch:
        return None
    ids = await engine.list_document_ids(tenant, parts=[path], limit=NO_LIMIT)
    return next((id for id in ids if id.endswith(path) and id.count("/") == path.count("/")), None)


class DocumentLookup:
    """Opens packed documents by handle or id."""

    def __init__(self, conversions: Conversions, engine: DocumentReader) -> None:
        self._conversions = conversions
        self._engine = engine

    async def resolve(self, tenant: TenantId, reference: str) -> tuple[str, str]:
        """Return handle or id, and fragment, of a reference such as `ID#c12` or a URL."""
        return await resolve_reference(self._engine, tenant, reference)

    async def resolve_links(self, tenant: TenantId, passages: Sequence[tuple[str, str]]) -> list[str]:
        """Return the texts of (document id, text) pairs with their links rewritten."""
        return await resolve_links(self._engine, tenant, passages)

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
