"""Resolves references to documents: ids and URLs that callers name, and links in texts for agents."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Container, Sequence
from heapq import nsmallest
from urllib.parse import unquote

from anyio import to_thread

from refdesk.calls import TenantId
from refdesk.documents.export.markdown import format_link_target
from refdesk.engines.base import DocumentReader, Engine
from refdesk.engines.storage.source_rows import derive_name, make_document_id
from refdesk.errors import CannotFetch, DocumentNotFound
from refdesk.support.edit_distance import MAX_LENGTH, find_similar, split_evenly
from refdesk.tools.collection_versions import resolve_document_id
from refdesk.validation import shorten

TECHDOC = "techdoc://"
_DOCUMENT_SCHEMES = (TECHDOC, "r2r://document/")

MAX_SUGGESTIONS = 3

NO_LIMIT = 10_000_000
"""More ids than any tenant has."""

# An escaped character, code or a link. All start with a character of one class, which makes the scan fast.
_LINK = re.compile(
    r"[\\`\[](?:"
    r"(?<=\\)."
    r"|(?<=`)(?<!``)(?P<ticks>`*+).*?`(?P=ticks)"
    r"|(?<=\[)(?P<label>(?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.){0,500}+\]){0,500}+)\]\((?P<target><[^>\n]*+>|[^()\s]++)\)"
    r")",
    re.DOTALL,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_WEB = re.compile(r"https?://", re.IGNORECASE)
_INDEXES = ("index.html", "index.md", "README.md")


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


async def resolve_reference(engine: Engine, tenant: TenantId, reference: str) -> tuple[str, str]:
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
    if _UUID.fullmatch(address) and (info := await engine.info(tenant, address)) is not None:
        return info.id, fragment
    id = posixpath.normpath(address) if "./" in address else address
    return resolve_document_id(engine.cached_collections(tenant), id), fragment


# Links, rewritten to ids that `get_document` opens, or to their label alone.


async def resolve_links(engine: DocumentReader, tenant: TenantId, passages: Sequence[tuple[str, str]]) -> list[str]:
    """Return the texts of (document id, text) pairs with their links rewritten, after one lookup for all of them."""
    candidates = {id for document_id, text in passages for id in find_linked_ids(text, document_id)}
    known = await engine.filter_ids(tenant, candidates) if candidates else frozenset[str]()
    return [rewrite_links(text, document_id, known) for document_id, text in passages]


def find_linked_ids(text: str, document_id: str) -> set[str]:
    """Return the ids that links of a text may stand for."""
    if "](" not in text:
        return set()
    targets = {match["target"] for match in _LINK.finditer(text) if match["target"]}
    return {id for target in targets for id in resolve_target(target, document_id)[0]}


def rewrite_links(text: str, document_id: str, known: Container[str]) -> str:
    """Return a Markdown text whose links to `known` documents name their ids.

    Other relative links, links within the page and repeated ones are reduced to their label. Links to other websites
    and code stay as they are.
    """
    if "](" not in text:
        return text
    seen: set[str] = set()

    def rewrite(match: re.Match[str]) -> str:
        target = match["target"]
        if target is None:
            return match[0]
        ids, fragment = resolve_target(target, document_id)
        id = next((id for id in ids if id in known), None)
        if id is None:
            return match[0] if _WEB.match(target.strip("<>")) else match["label"]
        resolved = f"{id}#{fragment}" if fragment else id
        if id == document_id or resolved in seen:
            return match["label"]
        seen.add(resolved)
        return f"[{match['label']}]({format_link_target(resolved)})"

    return _LINK.sub(rewrite, text)


def resolve_target(target: str, document_id: str) -> tuple[list[str], str]:
    """Return the ids that a link's target may stand for, best first, and its fragment.

    `document_id` is the document with the link. Its first part is the collection, which a link can't leave.
    """
    address, _, fragment = target.strip("<>").partition("#")
    collection, slash, _ = document_id.partition("/")
    if not slash:
        return [], fragment
    if _WEB.match(address):
        try:
            return [make_document_id(collection, derive_name(address))], fragment
        except CannotFetch:
            return [], fragment
    path = unquote(address.partition("?")[0])
    if _SCHEME.match(address) or address.startswith("//"):
        return [], fragment
    if not path:
        return [document_id], fragment
    folder = collection if path.startswith("/") else posixpath.dirname(document_id)
    joined = posixpath.normpath(f"{folder}/{path.lstrip('/')}")
    if not joined.startswith(f"{collection}/"):
        return [], fragment
    # A link to a folder or without a suffix means the page that a website shows there.
    has_suffix = bool(posixpath.splitext(joined)[1]) and not path.endswith("/")
    pages = [] if has_suffix else [f"{joined}.md", f"{joined}.html", *(f"{joined}/{name}" for name in _INDEXES)]
    return [joined, *pages], fragment
