"""The `r2r` toolset: search, answers with citations, and lists of documents and collections.

Ingestion is in `ingestion`; collections are resolved by `collection_scope`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, ValidationError

from refdesk.answers import Answers, Question, WrittenAnswer
from refdesk.answers.extractive import build_not_found
from refdesk.answers.writing import check_grounding
from refdesk.cache.cache import Cache, Key, WireAnswer, add_cache_flags
from refdesk.calls import SILENT, Call, TenantId, text_content, tool_answer
from refdesk.config.models import CacheTtlConfig
from refdesk.engines.base import (
    IN_PROGRESS,
    DocumentStatus,
    Engine,
    EngineWriter,
    Hit,
    Listing,
    Search,
    SearchMode,
    Status,
)
from refdesk.engines.storage.search_history import PastSearch, SearchHistory
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.budget import Blocklist
from refdesk.tools.collection_scope import (
    ALL,
    NO_COLLECTION,
    CollectionId,
    CollectionIds,
    CollectionScope,
    ScopeResolver,
)
from refdesk.tools.json_schema import Arguments, Result, ResultItem, Unlisted
from refdesk.tools.paging import MAX_CHARACTERS, MaxTokens, format_path
from refdesk.tools.passages import (
    Passages,
    build_hit_metadata,
    format_pending,
    make_excerpt,
    search_distinct,
    search_passages,
)
from refdesk.tools.registry import Registry, add_tools, tool
from refdesk.validation import shorten

TOOLSET = "r2r"

RAG_SECONDS = 120.0
"""Timeout of a written answer: a slow model, asked twice."""

RAG_HITS = 8
"""Passages per answer: about 2,000 tokens, which nearly always include the right one."""

SOURCE_CHARACTERS = 500
"""Length of a source's passage beside the answer."""

SEARCH_MODES: dict[str, SearchMode] = {"basic": "semantic", "advanced": "hybrid", "custom": "hybrid"}

STATUSES: dict[str, tuple[Status, ...]] = {"pending": IN_PROGRESS, "success": ("success",), "failed": ("failed",)}
"""Statuses of documents that are listed and counted together."""

Offset = Annotated[int, Field(ge=0, le=10**9)]
Query = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]


class CustomSearchSettings(Arguments):
    mode: SearchMode = "hybrid"
    semantic_weight: Annotated[float | None, Field(ge=0, le=1)] = None


class R2RSearch(Arguments):
    query: Query
    collection_id: CollectionIds = None
    search_mode: Annotated[
        Literal["basic", "advanced", "custom"],
        Field(description="basic: semantic; advanced: hybrid; custom: by settings."),
    ] = "advanced"
    limit: Annotated[int, Field(ge=1, le=100)] = 10
    filters: Annotated[
        dict[str, Any] | None,
        Field(description='On document fields and metadata, e.g. {"metadata.lang": {"$in": ["en"]}}; $and, $or nest.'),
    ] = None
    settings: CustomSearchSettings | None = None
    max_tokens: MaxTokens = None


class R2RRagQuery(Arguments):
    question: Query
    collection_id: CollectionIds = None
    model: Annotated[str | None, Field(min_length=1, max_length=200)] = None
    max_tokens: Annotated[int, Field(ge=1, le=20_000)] = 500
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.7
    include_sources: bool = True


class R2RListDocuments(Arguments):
    collection_id: Annotated[CollectionId, Field(description='Id or name; "all"; default: current project.')] = None
    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 50
    status_filter: Literal["pending", "success", "failed", "all"] = "all"


class R2RListCollections(Arguments):
    offset: Offset = 0
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class SearchHit(ResultItem):
    chunk_id: str
    document_id: str
    text: str
    score: float
    metadata: dict[str, Any]
    continues_at: str | None = None
    """Chunk that continues the text."""

    def readable(self) -> str:
        metadata = self.metadata
        heading = metadata.get("path") or metadata.get("section") or metadata["title"]
        page = f", page {metadata['page']}" if "page" in metadata else ""
        version = f", version {metadata['version']}" if "version" in metadata else ""
        source = f"{self.chunk_id}{page}{version}, indexed {metadata['indexed_at'][:10]}, score {self.score}"
        more = f"; continues at {self.continues_at}" if self.continues_at is not None else ""
        return f"{heading}\n{self.text}\nSource: {source}{more}"


class SearchResults(Result):
    """Search results, best first, within the budget."""

    results: list[SearchHit]
    count: int
    cached: bool = False
    collection_id: str
    """The searched collections: ids, or `all`."""
    tokens: int
    omitted: int
    confident: bool = True
    """Whether the results probably contain an answer."""
    hint: str | None = None

    def readable(self) -> str:
        shown = [f"### {number}. {hit.readable()}" for number, hit in enumerate(self.results, 1)]
        left_out = f"; {self.omitted} left out, raise max_tokens" if self.omitted else ""
        count = f"{self.count} result{'' if self.count == 1 else 's'} in {self.collection_id}"
        foot = f"({count}, about {self.tokens} tokens{left_out})"
        return "\n\n".join([*shown, f"{foot} {self.hint}" if self.hint else foot])


class RagSource(ResultItem):
    citation: int
    """Its number in the answer."""
    text: str
    document: str
    document_id: str
    chunk_id: str
    score: float
    version: str | None = None
    indexed_at: str


class RagAnswer(Result):
    answer: str
    sources: list[RagSource]
    model_used: str
    cached: bool = False
    found: bool
    """Whether an answer was found."""
    collection_id: Unlisted[str]
    """The searched collections: ids, or `all`."""
    hint: Unlisted[str | None] = None
    count: Unlisted[int]
    """Number of sources, returned or not."""

    def readable(self) -> str:
        lines = [
            f"[{s.citation}] {s.document} ({s.chunk_id}{f', version {s.version}' if s.version else ''})"
            for s in self.sources
        ]
        sources = ["", "Sources:", *lines] if lines else []
        foot = f"(model: {self.model_used})"
        return "\n".join([self.answer, *sources, "", f"{foot} {self.hint}" if self.hint else foot])


class ListedDocument(ResultItem):
    document_id: str
    title: str
    ingestion_status: Status
    created_at: str
    size_bytes: int
    error: str | None = None
    warning: str | None = None


class DocumentsPage(Result):
    documents: list[ListedDocument]
    total: int
    offset: Unlisted[int]
    limit: Unlisted[int]
    collection_id: Unlisted[str]
    hint: Unlisted[str | None] = None

    def readable(self) -> str:
        lines = [
            f"- {entry.document_id}: {entry.title} ({entry.ingestion_status}, {entry.size_bytes} bytes, "
            f"{entry.created_at[:10]})" + (f": {entry.error or entry.warning}" if entry.error or entry.warning else "")
            for entry in self.documents
        ]
        note = _format_page_note("document", self.offset, len(lines), self.total)
        return "\n".join([*lines, f"{note} {self.hint}" if self.hint else note])


class ListedCollection(ResultItem):
    collection_id: str
    name: str
    description: str
    document_count: int
    user_count: Unlisted[int]
    version: str | None = None


class CollectionsPage(Result):
    collections: list[ListedCollection]
    total: int
    offset: Unlisted[int]

    def readable(self) -> str:
        lines = [
            f"- {entry.collection_id}: {entry.name} ({entry.document_count} documents)"
            + (f": {entry.description}" if entry.description else "")
            for entry in self.collections
        ]
        return "\n".join([*lines, _format_page_note("collection", self.offset, len(lines), self.total)])


@dataclass(eq=False, repr=False)
class KnowledgeTools:
    """Tools of the toolset `r2r`, except those that ingest documents."""

    engine: Engine
    history: SearchHistory
    scopes: ScopeResolver
    writer: Answers
    cache: Cache
    ttl: CacheTtlConfig
    blocklist: Blocklist

    def register(self, registry: Registry) -> None:
        add_tools(registry, self, TOOLSET)

    @tool(
        "Search the knowledge base",
        "Search the project's own documents, or all collections, with filters on metadata. For documentation sets, use "
        "search_documentation.",
        result=SearchResults,
    )
    async def r2r_search(self, arguments: R2RSearch, call: Call) -> WireAnswer:
        scope = await self.scopes.resolve_search(call, arguments.collection_id)
        settings = arguments.settings
        if settings is not None and arguments.search_mode != "custom":
            raise InvalidArguments([Problem("settings", "only with search_mode custom")])
        search = Search(
            arguments.query,
            limit=arguments.limit,
            mode=settings.mode if settings else SEARCH_MODES[arguments.search_mode],
            collections=scope.collections,
            filters=arguments.filters,
            semantic_weight=settings.semantic_weight if settings else None,
        )
        # Independent of the order of keys.
        filters = None if arguments.filters is None else json.dumps(arguments.filters, sort_keys=True)
        parameters = (scope, search.query, search.limit, search.mode, search.semantic_weight, filters)

        async def find() -> SearchResults:
            passages = await search_passages(self.engine, call.caller.tenant, search, arguments.max_tokens)
            pending = format_pending(self.engine.cached_collections(call.caller.tenant), scope.collections)
            return _build_results(passages, scope, pending)

        answer = await self._answer_from_cache(
            call, "r2r_search", (*parameters, arguments.max_tokens), self.ttl.search, find, SearchResults,
            scope.collections,
        )  # fmt: skip
        self._record_search(call, arguments.query, scope, answer["structuredContent"]["count"])
        return answer

    @tool(
        "Answer from the knowledge base",
        "Answer a question with citations, written by the configured model. Without one, it quotes sentences from the "
        "passages that r2r_search finds.",
        result=RagAnswer,
        seconds=RAG_SECONDS,
    )
    async def r2r_rag_query(self, arguments: R2RRagQuery, call: Call) -> WireAnswer:
        scope = await self.scopes.resolve_search(call, arguments.collection_id)
        is_sampled = (
            self.writer.uses_sampling and self.engine.writer is None and call.client.can("sampling/createMessage")
        )

        async def write() -> RagAnswer:
            search = Search(arguments.question, limit=RAG_HITS, collections=scope.collections)
            question = Question(arguments.question, arguments.max_tokens, arguments.temperature, arguments.model)
            if self.engine.writer is not None:
                written, hits = await _write_with_engine(self.engine.writer, call.caller.tenant, question, search)
            else:
                # A model must not read blocked words either.
                hits = self.blocklist.screen_hits(await search_distinct(self.engine, call.caller.tenant, search))
                written = await self.writer.write(question, hits, call.client if is_sampled else SILENT)
            return _build_rag_answer(written, hits, scope, include_sources=arguments.include_sources)

        parameters = (scope, *arguments.model_dump(exclude={"collection_id"}).values())
        # An answer written by a client's own model is returned to that client only, so it isn't cached.
        seconds = 0 if is_sampled else self.ttl.rag
        answer = await self._answer_from_cache(
            call, "r2r_rag_query", parameters, seconds, write, RagAnswer, scope.collections
        )
        self._record_search(call, arguments.question, scope, answer["structuredContent"]["count"])
        return answer

    @tool("List documents", "List documents with their ingestion status.", result=DocumentsPage)
    async def r2r_list_documents(self, arguments: R2RListDocuments, call: Call) -> WireAnswer:
        tenant = call.caller.tenant
        scope = await self.scopes.resolve_search(call, arguments.collection_id)
        collection = scope.collections[0] if scope.collections else None
        listing = Listing(collection, STATUSES.get(arguments.status_filter, ()), arguments.offset, arguments.limit)

        async def page() -> DocumentsPage:
            empty: tuple[Sequence[DocumentStatus], int] = ((), 0)
            listed, total = empty if scope.is_project_empty else await self.engine.documents(tenant, listing)
            documents = [
                ListedDocument(
                    document_id=status.id,
                    title=shorten(status.title, MAX_CHARACTERS),
                    ingestion_status=status.status,
                    created_at=_format_time(status.created_at),
                    size_bytes=status.size_bytes,
                    error=shorten(status.error, MAX_CHARACTERS) if status.error else None,
                    warning=status.warning,
                )
                for status in listed
            ]
            return DocumentsPage(
                documents=documents,
                total=total,
                offset=listing.offset,
                limit=listing.limit,
                collection_id=NO_COLLECTION if scope.is_project_empty else scope.label,
                hint=_end_sentence(scope.note),
            )

        return await self._answer_from_cache(
            call, "r2r_list_documents", (listing, scope), self._list_seconds, page, DocumentsPage
        )

    @tool("List collections", "List the collections: documentation sets and projects.", result=CollectionsPage)
    async def r2r_list_collections(self, arguments: R2RListCollections, call: Call) -> WireAnswer:
        start, end = arguments.offset, arguments.offset + arguments.limit

        async def page() -> CollectionsPage:
            collections = await self.engine.collections(call.caller.tenant)
            shown = [
                ListedCollection(
                    collection_id=info.id,
                    name=shorten(info.name, MAX_CHARACTERS),
                    description=shorten(info.description, MAX_CHARACTERS),
                    document_count=info.documents,
                    user_count=1,  # the tenant: all of its users see the same
                    version=info.version or None,
                )
                for info in collections[start:end]
            ]
            return CollectionsPage(collections=shown, total=len(collections), offset=start)

        return await self._answer_from_cache(
            call, "r2r_list_collections", (start, end), self._list_seconds, page, CollectionsPage
        )

    @property
    def _list_seconds(self) -> float:
        """TTL of lists; a local engine lists in a millisecond, so these are not cached."""
        return 0 if self.engine.traits.has_certain_revision else self.ttl.list

    async def _answer_from_cache(
        self,
        call: Call,
        tool: str,
        parameters: tuple[Hashable, ...],
        seconds: float,
        make: Callable[[], Awaitable[Result]],
        kind: type[Result],
        collections: Sequence[str] = (),
    ) -> WireAnswer:
        """Return the cached answer, or make one if there is none or the documents of the collections have changed."""
        caller = call.caller

        async def make_answer() -> WireAnswer:
            result = await make()
            structured = result.model_dump(mode="json", exclude_none=True)
            return tool_answer([text_content(result.readable())], structured=structured)

        def fits(answer: WireAnswer) -> bool:
            try:
                kind.model_validate(answer.get("structuredContent"))
            except ValidationError:
                return False
            return True

        key = Key(caller.tenant, caller.user, tool, parameters, self.engine.revision(caller.tenant, collections))
        result = await self.cache.answer(
            key,
            seconds,
            make_answer,
            fits=fits,
            is_certain=self.engine.traits.has_certain_revision,
        )
        return add_cache_flags(result)

    def _record_search(self, call: Call, query: str, scope: CollectionScope, results: int) -> None:
        past = PastSearch(query, scope.label, results, datetime.now(UTC))
        self.history.add(call.caller.tenant, call.caller.user, past)


def _build_results(passages: Passages, scope: CollectionScope, pending: str) -> SearchResults:
    results = [
        SearchHit(
            chunk_id=grown.hit.chunk_id,
            document_id=grown.hit.document.id,
            text=grown.hit.text,
            score=round(grown.hit.score, 4),
            metadata=build_hit_metadata(grown.hit),
            continues_at=grown.continues_at,
        )
        for grown in passages.hits
    ]
    hints = [pending, passages.format_doubts("your documents" if scope.label == ALL else scope.label)]
    if scope.note:
        hints.append(scope.note)
    elif not passages.hits:
        hints.append("Nothing matches; use other words, fewer filters, or another collection")
    return SearchResults(
        results=results,
        count=len(results),
        collection_id=scope.label,
        tokens=passages.tokens,
        omitted=passages.omitted,
        confident=passages.is_confident,
        hint=". ".join(filter(None, hints)) + "." if any(hints) else None,
    )


async def _write_with_engine(
    writer: EngineWriter, tenant: TenantId, question: Question, search: Search
) -> tuple[WrittenAnswer, Sequence[Hit]]:
    """Return an answer by the engine's own model, and its hits; it cites like our own writers."""
    generated = await writer.answer(
        tenant, question.text, search,
        model=question.model, max_tokens=question.max_tokens, temperature=question.temperature,
    )  # fmt: skip
    if not generated.hits:
        return build_not_found(()), ()
    grounding = check_grounding(generated.text, len(generated.hits))
    # Not every model cites: then all hits count as sources.
    cited = grounding.cited or (() if grounding.is_denial else tuple(range(len(generated.hits))))
    return WrittenAnswer(generated.text, cited, generated.model, found=not grounding.is_denial), generated.hits


def _build_rag_answer(
    written: WrittenAnswer, hits: Sequence[Hit], scope: CollectionScope, *, include_sources: bool
) -> RagAnswer:
    sources = [
        RagSource(
            citation=position + 1,
            text=make_excerpt(hit.text, SOURCE_CHARACTERS),
            document=format_path(hit.path) or shorten(hit.document.title, MAX_CHARACTERS),
            document_id=hit.document.id,
            chunk_id=hit.chunk_id,
            score=round(hit.score, 4),
            version=hit.document.version or None,
            indexed_at=_format_time(hit.document.indexed_at),
        )
        for position, hit in ((position, hits[position]) for position in written.cited if position < len(hits))
    ]
    return RagAnswer(
        answer=written.text,
        sources=sources if include_sources else [],
        model_used=written.model,
        found=written.found,
        count=len(sources),
        collection_id=scope.label,
        hint=_end_sentence(scope.note),
    )


def _end_sentence(note: str) -> str | None:
    return f"{note}." if note else None


def _format_page_note(what: str, offset: int, shown: int, total: int) -> str:
    more = f"; continue with offset {offset + shown}" if offset + shown < total and shown else ""
    return f"({shown} of {total} {what}{'' if total == 1 else 's'}{more})"


def _format_time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
