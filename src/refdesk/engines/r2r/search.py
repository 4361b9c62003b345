"""Search in R2R, always restricted to the tenant's collections, and answers by its own model.

An answer is returned only if it is based solely on passages the caller may see.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

from refdesk.calls import TenantId
from refdesk.engines.base import DocumentInfo, EngineAnswer, Hit, Search
from refdesk.engines.r2r import catalogue
from refdesk.engines.r2r.catalogue import LocalDb
from refdesk.engines.r2r.client import R2RClient, RemoteAnswer, build_search_settings
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.read import ForeignChunkListener, decode_remote_chunk, to_passages
from refdesk.engines.r2r.schemas import EPOCH, RemoteChunk, RemoteDocument, format_position, is_uuid, strip_unsafe
from refdesk.engines.storage.filters import compile_filter
from refdesk.engines.storage.records import SHORT_DIGEST
from refdesk.engines.storage.source_rows import make_document_id
from refdesk.errors import BreakerOpen, EngineError, InvalidArguments, Problem, R2RLeaked, WriterFailed
from refdesk.resilience.dependency import Dependency

MAX_RESULTS = 1000
"""Maximum number of results of R2R."""

MAX_MATCHING = 10_000
"""Maximum number of documents a filter may match. Each is a parameter of R2R's query."""

RANK_FUSION = 51.0
"""Normalizes R2R's score of a result that is first in both searches to 1: its constant plus the first rank."""

CONTEXT_HITS = 3
"""Hits whose neighbouring chunks are requested, each with a request of its own. More don't fit an answer."""

_ID_FIELDS = frozenset(("collection_id", "collection_ids", "doc_type", "document_id", "id"))
"""Filter fields whose values may be R2R's ids."""


@dataclass(frozen=True, slots=True)
class RemoteScope:
    """Scope of a search in R2R."""

    slugs: Mapping[str, str]
    """Local collection ids by R2R id."""
    documents: tuple[str, ...] | None = None
    """R2R ids; None means all."""

    def contains(self, chunk: RemoteChunk) -> bool:
        """Whether a chunk is in one of the collections."""
        return any(uuid in self.slugs for uuid in chunk.collections)

    def find_slug(self, chunk: RemoteChunk) -> str:
        """Return the local id of a chunk's collection."""
        return next(self.slugs[uuid] for uuid in chunk.collections if uuid in self.slugs)


@dataclass(eq=False, repr=False)
class R2RSearcher:
    """Searches passages in R2R, and lets its model answer from them; see `engines.base.EngineWriter`."""

    _client: R2RClient
    _mirror: Mirror
    _on_foreign_chunk: ForeignChunkListener
    _model: Dependency

    async def search(self, local_db: LocalDb, search: Search) -> list[Hit]:
        """Return the best passages, at most one per section."""
        if local_db.collections and not local_db.uuids:
            # R2R was down until now: "nothing found" would be wrong.
            await self._mirror.sync_collections()
        scope = await self.resolve_scope(local_db, search)
        query = build_query(search)
        if not scope.slugs or scope.documents == () or not query:
            return []
        limit = min(search.limit * 2 + 10, MAX_RESULTS)
        settings = build_search_settings(search, limit, scope.slugs, scope.documents)
        chunks = await self._client.search(query, settings)
        found = [
            chunk for chunk in self.drop_foreign(local_db, scope, chunks) if chunk.document not in local_db.tombstones
        ]
        hits = _keep_best_per_section(await self.to_hits(found, scope, search))[: search.limit]
        if not search.context:
            return hits
        own = {f"{_make_info(chunk, scope, None).id}#c{chunk.order + 1}": chunk for chunk in found if chunk.own}
        with_context = [
            self._add_context(local_db, scope, hit, own[hit.chunk_id], search.context)
            for hit in hits[:CONTEXT_HITS]
            if hit.chunk_id in own
        ]
        grown = {hit.chunk_id: hit for hit in await asyncio.gather(*with_context)}
        return [grown.get(hit.chunk_id, hit) for hit in hits]

    async def _add_context(
        self, local_db: LocalDb, scope: RemoteScope, hit: Hit, chunk: RemoteChunk, count: int
    ) -> Hit:
        first = max(chunk.order - count, 0)
        around = await self._client.get_chunks(chunk.document, first, chunk.order + count - first + 1)
        own = [one for one in self.drop_foreign(local_db, scope, around) if one.document == chunk.document]
        return replace(hit, context=to_passages(hit.document.id, own, first + 1))

    async def resolve_scope(self, local_db: LocalDb, search: Search) -> RemoteScope:
        """Return the scope of a search. Raises InvalidArguments if its filter is invalid."""
        condition = compile_filter(search.filters) if search.filters else None
        wanted = search.collections
        slugs = {u: slug for slug, u in local_db.uuids.items() if not wanted or slug in wanted or u in wanted}
        self._mirror.watch(slugs)
        if condition is None or not slugs:
            return RemoteScope(slugs)
        await self._mirror.list_documents(local_db, list(slugs.values()))
        uuids = {text.lower() for text in _iterate_texts(search.filters) if is_uuid(text)}
        if uuids:
            ids = {uuid: slug for slug, uuid in local_db.uuids.items()}
            ids |= await local_db.run(catalogue.find_local_ids, uuids)
            condition = compile_filter(_translate_ids(search.filters, ids))
        matching = await local_db.run(catalogue.find_matching, condition, list(slugs.values()))
        if len(matching) > MAX_MATCHING:
            rule = f"matches {len(matching):,} documents, more than the limit of {MAX_MATCHING:,}; narrow it"
            raise InvalidArguments([Problem("filters", rule)])
        return RemoteScope(slugs, tuple(matching))

    def drop_foreign(self, local_db: LocalDb, scope: RemoteScope, chunks: Sequence[RemoteChunk]) -> list[RemoteChunk]:
        """Return the chunks within the scope. Others are an R2R defect and are reported."""
        for chunk in chunks:
            if not scope.contains(chunk):
                self._on_foreign_chunk(local_db, chunk)
        return [chunk for chunk in chunks if scope.contains(chunk)]

    async def to_hits(self, chunks: Sequence[RemoteChunk], scope: RemoteScope, search: Search) -> list[Hit]:
        """Convert chunks to hits in the same order.

        Of a document being replaced, only the newer version is included.
        """
        foreign_ids = list(dict.fromkeys(chunk.document for chunk in chunks if chunk.own is None))
        remote_documents = {each.id: each for each in await self._client.get_documents(foreign_ids)}
        found = [(chunk, _make_info(chunk, scope, remote_documents.get(chunk.document))) for chunk in chunks]
        newest: dict[str, datetime] = {}
        for _, info in found:
            newest[info.id] = max(newest.get(info.id, info.indexed_at), info.indexed_at)
        return [_make_hit(chunk, info, search) for chunk, info in found if info.indexed_at == newest[info.id]]

    async def answer(
        self,
        tenant: TenantId,
        question: str,
        search: Search,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> EngineAnswer:
        """Return an answer of R2R's model, or an empty one if there is no passage to write it from."""
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None or not await self.search(local_db, search):
            return EngineAnswer("", (), "")
        scope = await self.resolve_scope(local_db, search)
        settings = build_search_settings(search, search.limit, scope.slugs, scope.documents)
        request = partial(self._request, strip_unsafe(question), settings, model, max_tokens, temperature)
        # A model named by the caller bypasses the breaker, so that its failures don't affect others.
        answer = await (request() if model else self._model.run(request))
        own = self.drop_foreign(local_db, scope, answer.chunks)
        if len(own) < len(answer.chunks) or answer.others:
            raise R2RLeaked(
                "R2R's answer used content outside the requested collections, so it is withheld. "
                "Use r2r_search, and tell R2R's administrator."
            )
        hits = await self.to_hits(own, scope, search)
        if len(hits) < len(own) or any(chunk.document in local_db.tombstones for chunk in own):
            raise WriterFailed("A document was replaced while R2R used it for the answer. Try again.")
        text = number_citations(_strip_position_lines(answer.text, own), [chunk.id for chunk in own])
        return EngineAnswer(text, tuple(hits), answer.model)

    async def _request(self, *args: Any) -> RemoteAnswer:
        """Request an answer, and raise failures as WriterFailed: R2R itself is up and can search."""
        try:
            answer = await self._client.answer(*args)
        except BreakerOpen:
            raise
        except EngineError as error:
            if not error.retryable:
                raise
            status = {name: value for name, value in error.data.items() if name == "status_code"}
            detail = f"R2R's model did not respond. {error.detail}"
            raise WriterFailed(detail, retry_after=error.retry_after, data=status) from error
        if not answer.text.strip():
            raise WriterFailed("R2R's model returned an empty answer. Try again, or use another model.")
        return answer


def build_query(search: Search) -> str:
    """Return the query for R2R. Its full-text search requires all words by default; Refdesk matches any."""
    query = strip_unsafe(search.query).strip()
    return " OR ".join(re.findall(r"\w+", query)) if search.mode == "fulltext" else query


def _iterate_texts(value: Any) -> Iterator[str]:
    """Yield the texts in a filter, without its names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _iterate_texts(each)


def _translate_ids(filters: Any, ids: Mapping[str, str], *, is_id: bool = False) -> Any:
    """Replace R2R's ids by local ids in the fields of a filter that are ids."""
    if isinstance(filters, list):
        return [_translate_ids(each, ids, is_id=is_id) for each in filters]
    if isinstance(filters, dict):
        return {
            name: _translate_ids(value, ids, is_id=name in _ID_FIELDS or (is_id and name.startswith("$")))
            for name, value in filters.items()
        }
    return ids.get(filters.lower(), filters) if is_id and isinstance(filters, str) else filters


def _make_info(chunk: RemoteChunk, scope: RemoteScope, document: RemoteDocument | None) -> DocumentInfo:
    slug, own = scope.find_slug(chunk), chunk.own
    if own is None:
        return DocumentInfo(
            id=f"{slug}/{chunk.document}",
            collection=slug,
            title=document.title if document else "",
            version="",
            indexed_at=document.updated_at if document else EPOCH,
            digest=chunk.document.replace("-", "")[:SHORT_DIGEST],
            media_type=catalogue.MEDIA_TYPES.get(document.kind, "") if document else "",
            size_bytes=document.size if document else 0,
            metadata=chunk.metadata,
        )
    return DocumentInfo(
        id=make_document_id(slug, own.name),
        collection=slug,
        title=own.title,
        version=own.version,
        indexed_at=own.indexed_at,
        digest=own.digest[:SHORT_DIGEST],
        source=own.source,
        media_type=own.media_type,
        size_bytes=own.size,
        metadata=own.metadata,
    )


def _make_hit(chunk: RemoteChunk, info: DocumentInfo, search: Search) -> Hit:
    decoded = decode_remote_chunk(chunk.order + 1, chunk)
    scale = RANK_FUSION if search.mode == "hybrid" else 1.0
    return Hit(
        document=info,
        chunk_id=f"{info.id}#{decoded.id}",
        section=decoded.section,
        path=decoded.path,
        page=decoded.first_page,
        text=decoded.text,
        score=min(max(chunk.score * scale, 0.0), 1.0),
        anchor=decoded.anchor,
        anchors=decoded.anchors,
    )


def _keep_best_per_section(hits: Sequence[Hit]) -> list[Hit]:
    """Return the best hit of each section. Foreign documents have no sections, so all hits are kept."""
    best: dict[tuple[str, str], Hit] = {}
    for hit in sorted(hits, key=lambda hit: -hit.score):
        best.setdefault((hit.document.id, hit.section or hit.chunk_id), hit)
    return list(best.values())


_CHUNK_CITATION = re.compile(r"\[([0-9a-f]{7,8}(?:\s*[,;]\s*[0-9a-f]{7,8})*)\]", re.IGNORECASE)
"""Citation by R2R's model: the first digits of a chunk's id."""

_NUMBER_CITATION = re.compile(r"\[(\^?\d{1,6}(?:\s*[-–—,;]\s*\d{1,6})*)\]")
"""Citation format of Refdesk's answers. In the output of R2R's model it has no meaning."""


def _strip_position_lines(text: str, chunks: Sequence[RemoteChunk]) -> str:
    """Remove position lines of chunks that the model has copied into its answer."""
    for line in {format_position(decode_remote_chunk(0, chunk)) for chunk in chunks if chunk.own is not None}:
        text = re.sub(rf"^(?:Document Title: .*\n\s*)?(?:Text: )?{re.escape(line)}\n?", "", text, flags=re.MULTILINE)
    return text.strip()


def number_citations(text: str, ids: Sequence[str]) -> str:
    """Replace chunk ids in citations by their numbers from 1. Raises WriterFailed for unknown ids."""

    def format_numbers(match: re.Match[str]) -> str:
        found = [find_number(short.lower()) for short in re.split(r"\s*[,;]\s*", match[1])]
        return "".join(f"[{number}]" for number in dict.fromkeys(found))

    def find_number(short: str) -> int:
        for number, id in enumerate(ids, 1):
            if id.replace("-", "").startswith(short):
                return number
        raise WriterFailed("R2R's model cited an unknown passage, so its answer is withheld. Try again.")

    return _CHUNK_CITATION.sub(format_numbers, _NUMBER_CITATION.sub(r"(\1)", text))
