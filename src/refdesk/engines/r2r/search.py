"""Searches at R2R, and what they find in our words. Never without a collection, and never a chunk of another one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from refdesk.engines.base import DocumentInfo, Hit, Search
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.client import R2RClient, SearchSettings
from refdesk.engines.r2r.local_db import Record
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.naming import without_unsafe
from refdesk.engines.r2r.read import piece_of
from refdesk.engines.r2r.schemas import RemoteChunk, RemoteDocument
from refdesk.engines.storage.filters import compile_filter
from refdesk.engines.storage.rows import SHORT_DIGEST
from refdesk.engines.storage.sources import document_id
from refdesk.errors import InvalidArguments, Problem

MAX_FOUND = 1000
"""The most that R2R finds at once."""

MAX_MATCHING = 10_000
"""Documents that a filter may let through; each is a parameter of R2R's query."""

RANK_FUSION = 51.0
"""What makes R2R's score of the best of both searches one: its constant, and the first rank."""

_COLLECTION_FIELDS = frozenset(("collection_id", "collection_ids", "doc_type"))

Foreign = Callable[[Record, RemoteChunk], None]
"""Told of a chunk that R2R should not have given."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a search looks: the collections' ids at R2R, with ours."""

    slugs: Mapping[str, str]
    """Ours by R2R's."""
    documents: tuple[str, ...] | None = None
    """Ids at R2R; None means all."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be found."""
        return not self.slugs or self.documents == ()

    def holds(self, chunk: RemoteChunk) -> bool:
        """Whether a chunk is in one of the collections."""
        return any(uuid in self.slugs for uuid in chunk.collections)

    def slug_of(self, chunk: RemoteChunk) -> str:
        """The collection that a chunk is found in."""
        return next(self.slugs[uuid] for uuid in chunk.collections if uuid in self.slugs)

    def settings(self, search: Search, limit: int) -> SearchSettings:
        """The search as R2R is asked for it."""
        return SearchSettings(tuple(self.slugs), limit, search.mode, search.semantic_weight, self.documents)


class Searcher:
    """Finds passages."""

    def __init__(self, client: R2RClient, mirror: Mirror, foreign: Foreign) -> None:
        self._client = client
        self._mirror = mirror
        self._foreign = foreign

    async def search(self, record: Record, search: Search) -> list[Hit]:
        """The best passages, at most one a section."""
        scope = await self.scope(record, search)
        query = query_of(search)
        if scope.is_empty or not query:
            return []
        limit = min(search.limit * 2 + 10, MAX_FOUND)
        chunks = await self._client.search(query, scope.settings(search, limit))
        found = [chunk for chunk in self.own(record, scope, chunks) if chunk.document not in record.given_up]
        hits = await self.hits(found, scope, search)
        return _one_a_section(hits)[: search.limit]

    async def scope(self, record: Record, search: Search) -> Scope:
        """Where the search looks; raises InvalidArguments when its filter is wrong."""
        condition = compile_filter(_with_our_ids(search.filters, record)) if search.filters else None
        slugs = {uuid: slug for slug, uuid in record.uuids.items() if _is_wanted(search.collections, slug, uuid)}
        self._mirror.keep_watching(slugs)
        if condition is None or not slugs:
            return Scope(slugs)
        await self._mirror.list_documents(record, list(slugs.values()))
        matching = await record.run(lambda database: catalogue.matching(database, condition, list(slugs.values())))
        if len(matching) > MAX_MATCHING:
            rule = f"lets {len(matching):,} documents through, and at most {MAX_MATCHING:,} may be; narrow it"
            raise InvalidArguments([Problem("filters", rule)])
        return Scope(slugs, tuple(matching))

    def own(self, record: Record, scope: Scope, chunks: Sequence[RemoteChunk]) -> list[RemoteChunk]:
        """The chunks that were asked for. One of another collection is a fault of R2R's, which is told of."""
        for chunk in chunks:
            if not scope.holds(chunk):
                self._foreign(record, chunk)
        return [chunk for chunk in chunks if scope.holds(chunk)]

    async def hits(self, chunks: Sequence[RemoteChunk], scope: Scope, search: Search) -> list[Hit]:
        """Chunks as hits, in the same order; of a document that is just being replaced, only the newer state."""
        strangers = list(dict.fromkeys(chunk.document for chunk in chunks if chunk.own is None))
        joined = {each.id: each for each in await self._client.documents(strangers)}
        found = [(chunk, _info(chunk, scope, joined.get(chunk.document))) for chunk in chunks]
        newest: dict[str, datetime] = {}
        for _, info in found:
            newest[info.id] = max(newest.get(info.id, info.indexed_at), info.indexed_at)
        return [_hit(chunk, info, search) for chunk, info in found if info.indexed_at == newest[info.id]]


def query_of(search: Search) -> str:
    """The words that R2R searches for. By itself its full text wants all of them at once; we want any."""
    query = without_unsafe(search.query).strip()
    return " OR ".join(re.findall(r"\w+", query)) if search.mode == "fulltext" else query


def _is_wanted(wanted: Sequence[str], slug: str, uuid: str) -> bool:
    return not wanted or slug in wanted or uuid in wanted


def _with_our_ids(filters: Any, record: Record) -> Any:
    """A filter in which R2R's ids of collections are ours."""
    ours = {uuid: slug for slug, uuid in record.uuids.items()}

    def translated(value: Any) -> Any:
        if isinstance(value, list):
            return [translated(each) for each in value]
        if isinstance(value, dict):
            return {key: translated(each) for key, each in value.items()}
        return ours.get(value, value) if isinstance(value, str) else value

    if isinstance(filters, list):
        return [_with_our_ids(each, record) for each in filters]
    if not isinstance(filters, dict):
        return filters
    return {
        name: translated(value) if name in _COLLECTION_FIELDS else _with_our_ids(value, record)
        for name, value in filters.items()
    }


def _info(chunk: RemoteChunk, scope: Scope, joined: RemoteDocument | None) -> DocumentInfo:
    slug, own = scope.slug_of(chunk), chunk.own
    if own is None:
        return DocumentInfo(
            id=f"{slug}/{chunk.document}",
            collection=slug,
            title=joined.title if joined else "",
            version=chunk.document.replace("-", "")[:SHORT_DIGEST],
            indexed_at=joined.updated_at if joined else datetime.fromtimestamp(0, UTC),
            media_type=catalogue.ORDERLY_MEDIA.get(joined.kind, "") if joined else "",
            size_bytes=joined.size if joined else 0,
            metadata=chunk.metadata,
        )
    return DocumentInfo(
        id=document_id(slug, own["name"]),
        collection=slug,
        title=own["title"],
        version=own["version"] or own["digest"][:SHORT_DIGEST],
        indexed_at=datetime.fromisoformat(own["indexed_at"]),
        source=own["source"],
        media_type=own["media_type"],
        size_bytes=own["size"],
        metadata=own["metadata"],
    )


def _hit(chunk: RemoteChunk, info: DocumentInfo, search: Search) -> Hit:
    piece = piece_of(chunk)
    spot = piece.spot
    scale = RANK_FUSION if search.mode == "hybrid" else 1.0
    return Hit(
        document=info,
        chunk_id=f"{info.id}#c{chunk.order + 1}",
        section=spot.section,
        path=spot.path,
        page=spot.first_page,
        text=piece.text,
        score=min(max(chunk.score * scale, 0.0), 1.0),
        anchor=spot.anchors[-1] if spot.anchors else "",
        anchors=spot.anchors,
    )


def _one_a_section(hits: Sequence[Hit]) -> list[Hit]:
    """The best of each section; a stranger's document has none that are known, and gives what it has."""
    best: dict[tuple[str, str], Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault((hit.document.id, hit.section or hit.chunk_id), hit)
    return list(best.values())
