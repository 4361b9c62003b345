"""The `docs` toolset: searches and reads documentation within a token budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import unquote

from anyio import to_thread
from pydantic import Field, StringConstraints

from refdesk.cache.cache import Cache, Key, add_cache_flags
from refdesk.calls import Call, TenantId, resource_entry, text_content, tool_answer
from refdesk.documents.tokens import CHARACTERS_PER_TOKEN, estimate_tokens
from refdesk.engines.base import CollectionInfo, DocumentInfo, Engine, Hit, Search
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.collection_versions import find_collection, get_family, list_names, resolve_document_id
from refdesk.tools.document_lookup import TECHDOC, build_document_not_found, resolve_links, resolve_reference
from refdesk.tools.federation import Federation, ForeignPassage, SourceResult, fuse_rankings, summarize_sources
from refdesk.tools.fragments import TextPlace, locate
from refdesk.tools.json_schema import Arguments
from refdesk.tools.paging import DEFAULT_TOKENS, MaxTokens, TextPage, fit_lines, format_document
from refdesk.tools.passages import Passages, format_pending, format_provenance, make_excerpt, search_passages
from refdesk.tools.prompts import Prompt, PromptArgument
from refdesk.tools.registry import Registry, add_tools, tool

TOOLSET = "docs"
ALL = "all"

CONTENTS_PATH = "docs"
"""Path of a set's contents in its URI; stable, as clients may have stored it."""

MAX_LISTED_DOCUMENTS = 1000
"""Documents in a set's table of contents: more than fit."""

MIN_PASSAGE_CHARACTERS = 200
"""Shown of every passage, however small the budget."""

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SearchDocumentation(Arguments):
    query: Annotated[Text, StringConstraints(max_length=1000), Field(description="Question or keywords.")]
    max_results: Annotated[int, Field(ge=1, le=20)] = 5
    doc_type: Annotated[str, Field(description="Documentation set.")] = ALL
    max_tokens: MaxTokens = None


class GetDocument(Arguments):
    document_id: Annotated[Text, Field(description="Id of a hit or document, e.g. refdesk/index.md.")]
    cursor: Annotated[str | None, Field(description="From the last answer.")] = None
    max_tokens: MaxTokens = None


class Documentation:
    def __init__(self, engine: Engine, cache: Cache, seconds: float, federation: Federation | None = None) -> None:
        """`seconds` is the TTL of cached search results. `federation` searches other servers as well."""
        self._engine = engine
        self._federation = federation
        self._cache = cache
        self._seconds = seconds

    def register(self, registry: Registry) -> None:
        add_tools(registry, self, TOOLSET)
        registry.add_resources(TechdocResources(self._engine))
        registry.add_prompt(
            Prompt(
                name="answer_from_docs",
                title="Answer from the documentation",
                description="Answer a question from the indexed documentation, with its sources.",
                toolset=TOOLSET,
                arguments=[
                    PromptArgument("question", "What you want to know.", required=True),
                    PromptArgument("doc_type", "Documentation set to search.", choices=self.list_doc_types),
                ],
                render=self.answer_from_docs,
            )
        )

    def list_doc_types(self, call: Call) -> list[str]:
        """Return `all` and every set and federated source that the caller can search."""
        own = list_names(self._engine.cached_collections(call.caller.tenant))
        sources = self._federation.list_sources(call) if self._federation is not None else []
        return [ALL, *own, *(source for source in sources if source not in own)]

    @tool(
        "Search documentation",
        "Search documentation sets such as manuals and API references: the first call for a question about a product "
        "or library. Returns passages with ids; get_document reads on.",
        choices={"doc_type": "list_doc_types"},
        # For clients that otherwise load tools only when they search for them.
        meta={"anthropic/alwaysLoad": True},
    )
    async def search_documentation(self, arguments: SearchDocumentation, call: Call) -> dict[str, Any]:
        caller = call.caller
        own_set = find_collection(self._engine.cached_collections(caller.tenant), arguments.doc_type)
        revision = self._engine.revision(caller.tenant, (own_set.id,) if own_set else ())
        sources = self._federation.list_sources(call) if self._federation is not None else []
        parameters = (*arguments.model_dump().values(), *sources)
        key = Key(caller.tenant, caller.user, "search_documentation", parameters, revision)
        # Other servers' documents have no revision here.
        is_certain = self._engine.traits.has_certain_revision and not sources
        result = await self._cache.answer(
            key, self._seconds, lambda: self._run_search(arguments, call, bool(sources)), is_certain=is_certain
        )
        return add_cache_flags(result)

    async def _run_search(self, arguments: SearchDocumentation, call: Call, is_federated: bool) -> dict[str, Any]:
        query, doc_type, federation = arguments.query, arguments.doc_type, self._federation
        own_set = find_collection(self._engine.cached_collections(call.caller.tenant), doc_type)
        names = () if doc_type == ALL else (own_set.id if own_set else doc_type,)

        async def search_own() -> Passages:
            if names and own_set is None:
                return Passages()
            search = Search(query, limit=arguments.max_results, collections=names)
            return await search_passages(self._engine, call.caller.tenant, search, arguments.max_tokens)

        sources: Sequence[SourceResult] = ()
        if is_federated and federation is not None and own_set is None:
            only = doc_type if names else None
            own, sources = await asyncio.gather(search_own(), federation.search(query, call, only))
        else:
            own = await search_own()
        answer = None
        if sources:
            fused = fuse_rankings([grown.hit for grown in own.hits], sources, arguments.max_results)
            answer = _build_fused_answer(fused, arguments.max_tokens or DEFAULT_TOKENS) if fused else None
        if answer is None:
            answer = self._build_answer(query, own, names, call)
        if sources:
            note, meta = summarize_sources(sources, with_own=not names)
            answer["content"][-1]["text"] += f"\n\n({note})"
            answer = {**answer, "_meta": {**answer.get("_meta", {}), "sources": meta}}
        return answer

    def _build_answer(self, query: str, passages: Passages, names: Sequence[str], call: Call) -> dict[str, Any]:
        """Build the answer from passages that fit their budget; `names` are the searched sets, if not all."""
        items = [_describe_hit(grown.hit, grown.continues_at).to_item() for grown in passages.hits]
        doubts = passages.format_doubts(names[0] if names else "the documentation")
        pending = format_pending(self._engine.cached_collections(call.caller.tenant), names)
        notes = [note for note in (pending, doubts) if note]
        if items:
            answer = _add_summary(items, passages.omitted, notes)
        else:
            sets = f"Documentation sets: {', '.join(self.list_doc_types(call))}."
            answer = tool_answer([text_content(". ".join((f"Nothing matches {query!r}", *notes, sets)))])
        meta = {**answer.get("_meta", {}), "confident": passages.is_confident}
        return {**answer, "_meta": meta | ({"absent": list(passages.absent)} if passages.absent else {})}

    @tool("Get a document", "Read an indexed document, from a hit's id or from its start, in parts if long.")
    async def get_document(self, arguments: GetDocument, call: Call) -> dict[str, Any]:
        tenant = call.caller.tenant
        id, fragment = await resolve_reference(self._engine, tenant, arguments.document_id)
        document = await self._engine.read(tenant, id)
        if document is None:
            hint = "read_doc_section reads handles, and search_documentation finds documents by content."
            raise await build_document_not_found(self._engine, tenant, arguments.document_id, hint)
        place = TextPlace(0)
        if fragment and arguments.cursor is None and (packed := await self._engine.open(tenant, id)) is not None:
            with packed:
                place = await to_thread.run_sync(locate, packed, id, fragment, document.text)
        page = TextPage.of(document.text, arguments.cursor, arguments.max_tokens or DEFAULT_TOKENS, place.start)
        [text] = await resolve_links(self._engine, tenant, [(document.info.id, place.lead + page.text.strip("\n"))])
        tokens = estimate_tokens(len(text))
        meta: dict[str, Any] = {"metadata": _build_metadata(document.info), "tokens": tokens}
        source = f"(Source: {format_provenance(document.info)}; about {tokens} tokens)"
        if page.next_cursor is not None:
            meta["nextCursor"] = page.next_cursor
            source += f"\n{page.format_note()}"
        return tool_answer([text_content(f"{text}\n\n{source}", **meta)])

    async def answer_from_docs(self, arguments: Mapping[str, str], call: Call) -> str:
        doc_type = arguments.get("doc_type") or ALL
        return (
            f"Answer this question from the documentation: {arguments['question']}\n\n"
            f'Call search_documentation (doc_type "{doc_type}") and read on with get_document where a passage is cut. '
            "Use only what you find there, name the source after each statement, and say so plainly when the "
            "documentation does not contain the answer."
        )


class TechdocResources:
    """Resources `techdoc://<doc_type>/<collection>` (contents of a set) and `techdoc://{doc_type}/{path}`."""

    SCHEME = TECHDOC
    TEMPLATE = "techdoc://{doc_type}/{path}"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        collections = self._engine.cached_collections(call.caller.tenant)
        for entry in collections:
            version = f", version {entry.version}" if entry.version else ""
            description = f"{entry.description or entry.name}{version}: contents of {entry.documents} documents"
            uri = self._build_uri(entry, collections)
            yield resource_entry(entry.id, entry.name, description, "text/markdown", uri=uri)

    def templates(self) -> Iterable[Mapping[str, Any]]:
        title, description = "A document of the documentation", "One document as Markdown."
        yield resource_entry("document", title, description, "text/markdown", uriTemplate=self.TEMPLATE)

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        if not uri.startswith(self.SCHEME):
            return None
        tenant, path = call.caller.tenant, unquote(uri.removeprefix(self.SCHEME))
        text = await self._format_contents(path, tenant)
        if text is None:
            id = resolve_document_id(self._engine.cached_collections(tenant), path)
            document = await self._engine.read(tenant, id)
            text = format_document(document) if document else None
        return None if text is None else [{"uri": uri, "mimeType": "text/markdown", "text": text}]

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        tenant = call.caller.tenant
        collections = self._engine.cached_collections(tenant)
        if name == "doc_type":
            return [each for each in list_names(collections) if each.startswith(value)]
        if name != "path":
            raise InvalidArguments([Problem("argument.name", f"{template} has no variable {name!r}")])
        paths: list[str] = []
        chosen = find_collection(collections, context["doc_type"]) if "doc_type" in context else None
        for entry in [chosen] if chosen else () if "doc_type" in context else collections:
            ids = await self._engine.list_document_ids(tenant, prefix=f"{entry.id}/{value}")
            paths += [id.partition("/")[2] for id in ids]
        return paths

    async def _format_contents(self, path: str, tenant: TenantId) -> str | None:
        """Return the contents of the set that a path names: by its id twice, or by any of its names and `docs`."""
        name, _, rest = path.partition("/")
        entry = find_collection(self._engine.cached_collections(tenant), name)
        if entry is None or rest not in (entry.id, CONTENTS_PATH):
            return None
        document = f"{entry.id}/{CONTENTS_PATH}"
        if rest == CONTENTS_PATH and not entry.shared and await self._engine.filter_ids(tenant, [document]):
            return None
        ids = await self._engine.list_document_ids(tenant, prefix=f"{entry.id}/", limit=MAX_LISTED_DOCUMENTS)
        lines = fit_lines(f"- [{id}]({self.SCHEME}{id})" for id in ids)
        more = entry.documents - len(lines)
        footer = f"- … {more} more; r2r_list_documents with collection_id {entry.id!r} lists all"
        return "\n".join([f"# {entry.name}", "", *lines, *([footer] if more > 0 else [])])

    @classmethod
    def _build_uri(cls, entry: CollectionInfo, collections: Sequence[CollectionInfo]) -> str:
        family = get_family(entry)
        if family != entry.id:
            is_newest = find_collection(collections, family) is entry
            return f"{cls.SCHEME}{family if is_newest else f'{family}@{entry.version}'}/{CONTENTS_PATH}"
        return f"{cls.SCHEME}{entry.id}/{CONTENTS_PATH if entry.shared else entry.id}"


@dataclass(frozen=True, slots=True)
class DocumentationHit:
    """A hit of `search_documentation`: model of a content item, its text and its metadata."""

    heading: str
    text: str
    source: str
    """Document, version and age, for readers. Programs use `metadata`."""
    metadata: Mapping[str, Any]
    score: float | None = None
    """Score and chunk are None for hits of other servers."""
    chunk_id: str | None = None

    def fit(self, room: int) -> DocumentationHit:
        """Return the hit with its text cut to about so many characters in total."""
        room -= len(self.heading) + len(self.source) + _ITEM_FRAME_CHARACTERS
        return replace(self, text=make_excerpt(self.text, max(room, MIN_PASSAGE_CHARACTERS)))

    def to_item(self) -> dict[str, Any]:
        """Return the content item. `_meta.passage` is where the passage starts and ends in its text."""
        head = f"### {self.heading}\n"
        meta: dict[str, Any] = {"metadata": self.metadata, "passage": [len(head), len(head) + len(self.text)]}
        if self.chunk_id is not None:
            meta |= {"score": self.score, "chunk_id": self.chunk_id}
        return text_content(f"{head}{self.text}\nSource: {self.source}", **meta)

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> DocumentationHit | None:
        """Return the hit of a content item. None if the item is only a message."""
        text, meta = item["text"], item.get("_meta", {})
        if "passage" not in meta:
            return None
        start, end = meta["passage"]
        heading, source = text[len("### ") : start - 1], text[end + len("\nSource: ") :].partition("\n")[0]
        return cls(heading, text[start:end], source, meta["metadata"], meta.get("score"), meta.get("chunk_id"))


_ITEM_FRAME_CHARACTERS = len("### \n\nSource: ")


def _build_fused_answer(hits: Sequence[Hit | ForeignPassage], max_tokens: int) -> dict[str, Any]:
    items: list[dict[str, Any]] = []
    left = max_tokens * CHARACTERS_PER_TOKEN
    for position, hit in enumerate(hits):
        # The remaining budget is shared among the remaining hits, so that a long first one leaves room.
        room = max(left // (len(hits) - position), 1)
        shown = _describe_hit(hit) if isinstance(hit, Hit) else _describe_foreign_hit(hit)
        item = shown.fit(room).to_item()
        if items and len(item["text"]) > left:
            break
        items.append(item)
        left -= len(item["text"])
    return _add_summary(items, len(hits) - len(items))


def _add_summary(items: Sequence[dict[str, Any]], omitted: int, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Add a last line with counts and notes to the last item."""
    tokens = estimate_tokens(sum(len(item["text"]) for item in items))
    left_out = f", {omitted} left out (raise max_tokens)" if omitted else ""
    counts = f"{len(items)} result{'s' if len(items) > 1 else ''}, about {tokens} tokens{left_out}"
    items[-1]["text"] += f"\n\n({'. '.join([counts, *notes])})"
    return {**tool_answer(items), "_meta": {"tokens": tokens, "omitted": omitted}}


def _describe_hit(hit: Hit, continues_at: str | None = None) -> DocumentationHit:
    heading, anchors = " › ".join(hit.path) or hit.document.title, [anchor for anchor in hit.anchors if anchor]
    section = hit.path[-1] if hit.path else None
    location = {"page": hit.page, "section": section, "anchor": hit.anchor or None, "anchors": anchors}
    metadata = {**_build_metadata(hit.document), **location}
    source = format_provenance(hit.document, hit.chunk_id)
    if continues_at is not None:
        source += f"; continues at {continues_at}"
    return DocumentationHit(heading, hit.text, source, metadata, score=hit.score, chunk_id=hit.chunk_id)


def _describe_foreign_hit(hit: ForeignPassage) -> DocumentationHit:
    version = f", version {hit.version}" if hit.version else ""
    source = f"{hit.url or 'no URL'} by {hit.server}{version}, fetched {hit.fetched_at}"
    metadata = {
        "source": hit.url or hit.server,
        "title": hit.title or None,
        "doc_type": hit.server,
        "server": hit.server,
        "version": hit.version or None,
        "fetched_at": hit.fetched_at,
        "page": None,
        "section": None,
    }
    return DocumentationHit(hit.title or hit.url or hit.server, hit.text, source, metadata)


def _build_metadata(info: DocumentInfo) -> dict[str, Any]:
    return {
        "source": info.id,
        "title": info.title,
        "doc_type": info.collection,
        "version": info.version or None,
        "indexed_at": info.indexed_at.isoformat(),
    }
