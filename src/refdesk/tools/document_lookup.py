"""Resolves references to documents, and suggests ids in place of unknown ones."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from heapq import nsmallest
from urllib.parse import unquote

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.engines.base import DocumentReader
from refdesk.engines.storage.source_rows import derive_name, make_document_id
from refdesk.errors import CannotFetch, DocumentNotFound
from refdesk.support.edit_distance import MAX_LENGTH, find_similar, split_evenly
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
    path = document_id.partition("#")[0].partition("?")[0].rstrip("/")
    stem = posixpath.splitext(posixpath.basename(path))[0]
    suggestions: list[str] = []
    if 0 < len(stem) <= MAX_LENGTH:
        ids = await engine.list_document_ids(tenant, parts=split_evenly(stem), limit=NO_LIMIT)
        suggestions = await to_thread.run_sync(_rank_ids, path, ids)
    return DocumentNotFound(
        f"There is no document {shorten(document_id)!r}. {format_suggestions(suggestions) or fallback}"
    )


def _rank_ids(path: str, ids: Sequence[str]) -> list[str]:
    """Return the ids with the same file name as a path, or else a similar one, preferably of its collection."""
    names = [posixpath.basename(id) for id in ids]
    name = posixpath.basename(path)
    found = [(0, index) for index, other in enumerate(names) if other.lower() == name.lower()]
    if not found:
        found = find_similar(posixpath.splitext(name)[0], [posixpath.splitext(other)[0] for other in names])
        collection = path.partition("/")[0] + "/"
        found = [one for one in found if ids[one[1]].startswith(collection)] or found

    def count_shared(id: str) -> int:
        return len(posixpath.commonprefix([path, id])) + len(posixpath.commonprefix([path[::-1], id[::-1]]))

    # Of equal names those are nearer whose ids begin and end more like the path.
    near = ((distance, -count_shared(ids[i]), ids[i]) for distance, i in found if distance <= found[0][0] + 1)
    return [id for *_, id in nsmallest(MAX_SUGGESTIONS, near)]


def format_suggestions(names: Sequence[str]) -> str:
    """Return a question that names the suggestions, or an empty string if there are none."""
    *others, last = map(repr, names) if names else [""]
    return f"Did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else ""


async def resolve_reference(engine: DocumentReader, tenant: TenantId, reference: str) -> tuple[str, str]:
    """Return document id and fragment of a reference. What isn't known is returned as it is."""
    address, _, fragment = reference.partition("#")
    fragment = unquote(fragment)
    if address.startswith(("http://", "https://")):
        try:
            path = make_document_id("", derive_name(address))
        except CannotFetch:
            return address, fragment
        # Fetched from this URL, in any collection.
        ids = await engine.list_document_ids(tenant, parts=[path], limit=NO_LIMIT)
        found = (id for id in ids if id.endswith(path) and id.count("/") == path.count("/"))
        return next(found, address), fragment
    for scheme in _DOCUMENT_SCHEMES:
        if address.startswith(scheme):
            address = unquote(address.removeprefix(scheme).partition("?")[0])
    return posixpath.normpath(address) if "./" in address else address, fragment
